"""The expressions that several programs compute from one pool of constants, each once.

An *expression* is an operator applied to constants and to results of expressions, with the same arguments; equal ones
of several programs, or of one, are one. Its digest says what it is, whatever programs call it. Only what can be
computed once and kept is an expression: pure, bit by bit the same each time, of fixed sizes, in memory that is
never written or returned.

Cost: O(nodes + operands).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import torch

from dovetail.analysis.union_find import UnionFind
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Program, ScalarMeta, Target, TensorMeta, Value
from dovetail.ir.signature import Constant, InputMutation, SharedBytes
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ir.text import identifier
from dovetail.ops.facts import facts_of, is_reinterpretation, runs_in_grad_mode, writes_of, written_values
from dovetail.ops.packing import is_packing
from dovetail.ops.prims import InGradMode
from dovetail.torch_compat.dispatch import HigherOrder, Overload, schema_of

REASONS = {
    "DRAWS": "it draws random numbers",
    "GENERATOR": "it reads the state of a random generator",
    "EFFECT": "it has effects, or may have",
    "WRITES": "it writes an operand",
    "VARIES": "it is not deterministic bit for bit",
    "SUB-PROGRAM": "it runs subgraphs",
    "GRAD-MODE": "its results depend on the grad mode",
    "SYMBOLIC-SIZE": "a size is only known when the program runs",
    "NUMBER": "a result is not a tensor",
    "OPERAND": "it takes an object that is not a plain value",
    "WRITTEN": "its memory is written",
    "ESCAPES": "its memory is returned to the caller, who may write it",
    "DIFFERS": "the programs describe it differently",
    "OPAQUE": "the layout of its result is for one machine, and cannot be saved",
    "LAZY-BITS": "its bytes are read with a different layout",
}


@dataclass(frozen=True, slots=True)
class PoolValue:
    """A constant (maker is -1) or a result of an expression. storage: a member of `Pool.storages`."""

    meta: TensorMeta
    maker: int
    storage: int
    digest: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Expression:
    """An application that can be computed once. node: one of its occurrences. is_lazy: a view that cannot be kept."""

    node: Node
    operands: tuple[int, ...]
    outputs: tuple[int | None, ...]
    is_lazy: bool


@dataclass(frozen=True, slots=True)
class Barred:
    """A node (or constant) over constants alone that is not an expression, and why: a key of REASONS."""

    program: int
    name: str
    reason: str


@dataclass
class Pool:
    """Constants and expressions of several programs. Built once, read afterwards.

    storages: joins the storages of all programs; `PoolValue.storage` is a member. of: by program, the number of each
    value. called: by program, the expression that each node is. barred: what is left out, in program order. settled:
    nodes that check what is known of constants, and find it so. opaque: packed weights may be expressions.
    """

    programs: tuple[Program, ...]
    constants: frozenset[str]
    opaque: bool
    values: list[PoolValue] = field(default_factory=list)
    expressions: list[Expression] = field(default_factory=list)
    storages: UnionFind = field(default_factory=UnionFind)
    of: list[dict[Value, int]] = field(default_factory=list)
    called: list[dict[Node, int]] = field(default_factory=list)
    barred: list[Barred] = field(default_factory=list)
    settled: set[Node] = field(default_factory=set)
    _members: dict[tuple[int, int], int] = field(default_factory=dict)
    _by_digest: dict[str, int] = field(default_factory=dict)

    def storage_of(self, value: int) -> int:
        """The class of storages that a value lies in."""
        return self.storages.find(self.values[value].storage)

    def member(self, program: int, storage: int) -> int:
        """The member of `storages` for a storage of a program."""
        key = (program, storage)
        if key not in self._members:
            self._members[key] = self.storages.new()
        return self._members[key]

    def known(self, digest: str) -> int | None:
        """The expression of this digest."""
        return self._by_digest.get(digest)

    def add(self, digest: str, expression: Expression) -> int:
        """Add an expression."""
        self.expressions.append(expression)
        self._by_digest[digest] = len(self.expressions) - 1
        return len(self.expressions) - 1


def pool_of(programs: Sequence[Program], constants: Collection[str], *, opaque: bool = True) -> Pool:
    """The pool of these programs.

    constants: names of inputs that nobody writes while the programs are in use. opaque: packed weights may be computed
    once.
    """
    pool = Pool(tuple(programs), frozenset(constants), opaque)
    bars = [_bars(program) for program in programs]
    _add_constants(pool, bars)
    for number, program in enumerate(programs):
        pool.called.append({})
        for node in program.nodes:
            _add_node(pool, number, node, bars[number])
    return pool


def _bars(program: Program) -> dict[int, str]:
    """Storages whose contents are not fixed, with the reason."""
    found = dict.fromkeys(program.output_storages(), "ESCAPES")
    inputs = program.inputs
    for result in program.signature.outputs:
        if isinstance(result, InputMutation):
            hit = [inputs[result.input]] if result.input >= 0 else _called(program, result.constant)
            found.update((value.tensor.storage, "WRITTEN") for value in hit if value.is_tensor)
    written = {value for node in program.nodes for value in written_values(node)}
    found.update((value.tensor.storage, "WRITTEN") for value in written if value.is_tensor)
    for role, whole in zip(program.signature.inputs, inputs, strict=True):
        if isinstance(role, SharedBytes) and whole.is_tensor:
            members = [inputs[index] for index in role.inputs]
            found.update((value.tensor.storage, "WRITTEN") for value in (whole, *members) if value.is_tensor)
    return found


def _called(program: Program, constant: str) -> list[Value]:
    roles = zip(program.signature.inputs, program.inputs, strict=True)
    return [value for role, value in roles if isinstance(role, Constant) and role.name == constant]


def _add_constants(pool: Pool, bars: Sequence[dict[int, str]]) -> None:
    leaves: dict[str, int] = {}
    found: list[tuple[int, Value, int]] = []
    reasons: dict[int, str] = {}
    for number, program in enumerate(pool.programs):
        pool.of.append({})
        for value in program.inputs:
            if value.name not in pool.constants or not value.is_tensor:
                continue
            member = pool.member(number, value.tensor.storage)
            leaf = leaves.setdefault(value.name, len(pool.values))
            if leaf == len(pool.values):
                digest = _digest("constant", value.name, _layout(value))
                pool.values.append(PoolValue(value.tensor, -1, member, digest, value.name))
            pool.storages.join(member, pool.values[leaf].storage)
            found.append((number, value, leaf))
    for number, value, leaf in found:
        known = pool.values[leaf].meta
        reason = bars[number].get(value.tensor.storage)
        if value.tensor.layout() != known.layout() or value.tensor.offset != known.offset:
            reason = "DIFFERS"
        if _has_symbols(value.tensor):
            reason = "SYMBOLIC-SIZE"
        if reason is not None:
            reasons.setdefault(pool.storage_of(leaf), reason)
    for number, value, leaf in found:
        reason = reasons.get(pool.storage_of(leaf))
        if reason is None:
            pool.of[number][value] = leaf
        else:
            pool.barred.append(Barred(number, value.name, reason))


def _add_node(pool: Pool, number: int, node: Node, bars: dict[int, str]) -> None:
    known = pool.of[number]
    operands = node.operands()
    if any(value not in known for value in operands):
        return
    if _is_settled(node):
        pool.settled.add(node)
        return
    reason = _reason_against(node, bars, pool.opaque)
    if reason is not None:
        name = next((value.name for value in node.results()), str(node.target))
        pool.barred.append(Barred(number, name, reason))
        return
    digest = _node_digest(pool, known, node)
    expression = pool.known(digest)
    if expression is None:
        expression = _new_expression(pool, number, node, digest)
    else:
        for value, other in zip(node.outputs, pool.expressions[expression].outputs, strict=True):
            if value is not None and other is not None:
                pool.storages.join(pool.member(number, value.tensor.storage), pool.values[other].storage)
    pool.called[number][node] = expression
    for value, output in zip(node.outputs, pool.expressions[expression].outputs, strict=True):
        if value is not None and output is not None:
            known[value] = output


def _new_expression(pool: Pool, number: int, node: Node, digest: str) -> int:
    known = pool.of[number]
    operands = tuple(known[value] for value in node.operands())
    makers = [(operand, pool.values[operand].maker) for operand in operands]
    lazy = {pool.storage_of(o) for o, maker in makers if maker >= 0 and pool.expressions[maker].is_lazy}
    outputs: list[int | None] = []
    is_lazy = is_reinterpretation(node.target)
    for place, value in enumerate(node.outputs):
        if value is None:
            outputs.append(None)
            continue
        member = pool.member(number, value.tensor.storage)
        is_lazy = is_lazy or (bool(lazy) and pool.storages.find(member) in lazy)
        outputs.append(len(pool.values))
        pool.values.append(PoolValue(value.tensor, len(pool.expressions), member, f"{digest}.{place}"))
    return pool.add(digest, Expression(node, operands, tuple(outputs), is_lazy))


def _is_settled(node: Node) -> bool:
    """Whether the node only asserts what the description of its operand says, too."""
    if node.target is not torch.ops.aten._assert_tensor_metadata.default:
        return False
    names = ("a", "size", "stride", "dtype", "device", "layout")
    given = {**dict(zip(names, node.args, strict=False)), **dict(node.kwargs)}
    value = given.pop("a", None)
    if not isinstance(value, Value) or not value.is_tensor:
        return False
    meta = value.tensor
    known = {
        "size": list(meta.shape),
        "stride": list(meta.stride),
        "dtype": meta.dtype,
        "device": meta.device,
        "layout": torch.strided,
    }
    return all(asserted is None or asserted == known.get(name) for name, asserted in given.items())


def _reason_against(node: Node, bars: dict[int, str], opaque: bool) -> str | None:
    """Why the node, over constants alone, cannot be computed once."""
    reason = _reason_against_target(node.target)
    if not opaque and is_packing(node.target):
        reason = "OPAQUE"
    if reason is not None:
        return reason
    if writes_of(node):
        return "WRITES"
    results = node.results()
    if not results or not all(value.is_tensor for value in results):
        return "NUMBER"
    if any(_has_symbols(value.tensor) for value in results) or any(True for _ in node.symbols()):
        return "SYMBOLIC-SIZE"
    if not all(map(_has_text, node.args)) or not all(_has_text(operand) for _, operand in node.kwargs):
        return "OPERAND"
    return next((bars[value.tensor.storage] for value in results if value.tensor.storage in bars), None)


@cache
def _reason_against_target(target: Target) -> str | None:
    """Why no application of an operator can be computed once."""
    facts = facts_of(target)
    run = target.run if isinstance(target, Prim) else None
    tests = {
        "SUB-PROGRAM": isinstance(target, HigherOrder) or isinstance(run, WithSubPrograms),
        "DRAWS": facts.draws,
        "GENERATOR": facts.reads_generator,
        "WRITES": bool(facts.writes),
        "EFFECT": facts.effect or not isinstance(target, Overload | Prim),
        "VARIES": not facts.repeats,
        "GRAD-MODE": runs_in_grad_mode(target) or isinstance(run, InGradMode),
    }
    return next((reason for reason, holds in tests.items() if holds), None)


def _has_symbols(meta: TensorMeta) -> bool:
    return not (
        isinstance(meta.offset, int)
        and all(isinstance(size, int) for size in meta.shape)
        and all(isinstance(step, int) for step in meta.stride)
    )


# --- digests ----------------------------------------------------------------------------------------------------------

_PLAIN = (Value, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _has_text(operand: Operand) -> bool:
    if isinstance(operand, tuple | list):
        return all(map(_has_text, operand))
    return isinstance(operand, _PLAIN)


def _node_digest(pool: Pool, known: dict[Value, int], node: Node) -> str:
    def text(operand: Operand) -> str:
        if isinstance(operand, Value):
            return f"<{pool.values[known[operand]].digest}>"
        if isinstance(operand, tuple | list):
            return f"{type(operand).__name__}({','.join(map(text, operand))})"
        if isinstance(operand, float | complex):
            number = complex(operand)
            return f"{type(operand).__name__} {struct.pack('>dd', number.real, number.imag).hex()}"
        return f"{type(operand).__name__} {operand!r}"

    kwargs = [f"{name}={text(operand)}" for name, operand in sorted(node.kwargs, key=lambda pair: pair[0])]
    results = ["" if value is None or isinstance(value.meta, ScalarMeta) else _layout(value) for value in node.outputs]
    return _digest(_target_text(node.target), text(node.args), *kwargs, "->", *results, str(node.unpack))


@cache
def _target_text(target: Target) -> str:
    """The operator's full name."""
    if isinstance(target, Overload):
        schema = schema_of(target)
        return f"{schema.namespace}::{schema.name}.{schema.overload}"
    assert isinstance(target, Prim), "only operators and primitives are expressions"
    return target.python


def _layout(value: Value) -> str:
    return _text(value.tensor.layout())


@lru_cache(maxsize=4096)
def _text(item: object) -> str:
    return repr(item)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def names_for(pool: Pool, stored: Sequence[int], reserved: Collection[str]) -> tuple[tuple[int, str], ...]:
    """A name for each stored value, in order: equal expressions over equal constants always get the same one.

        weight_t_2d7f41cd: of the first constant, of the operator, of the whole expression

    reserved: names that they must not have.
    """
    taken = {*reserved, *(value.name for program in pool.programs for value in program.values())}
    firsts = _first_constants(pool)
    found: list[tuple[int, str]] = []
    for value in stored:
        facts = pool.values[value]
        expression = pool.expressions[facts.maker]
        digest, _, place = facts.digest.partition(".")
        wish = f"{firsts[value]}_{_short(expression.node.target)}"
        suffix = f"_{place}" if len(expression.outputs) > 1 else ""
        lengths = iter(range(8, len(digest) + 1, 8))
        name = identifier(f"{wish}_{digest[: next(lengths)]}{suffix}")
        while name in taken:
            name = identifier(f"{wish}_{digest[: next(lengths)]}{suffix}")
        taken.add(name)
        found.append((value, name))
    return tuple(found)


def _first_constants(pool: Pool) -> list[str]:
    """By value, the name of the first constant that it is computed from."""
    found: list[str] = []
    for facts in pool.values:
        operands = pool.expressions[facts.maker].operands if facts.maker >= 0 else ()
        found.append(found[operands[0]] if operands else facts.name[:60] or "made")
    return found


def _short(target: object) -> str:
    return str(getattr(target, "__name__", "call")).partition(".")[0].strip("_")
