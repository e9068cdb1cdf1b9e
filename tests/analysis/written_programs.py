r"""Programs written as text, for checks of programs: each line runs once on real tensors, which describe its results.

written("m = aten.mul.Tensor(x, 2)\nreturn m", x=torch.ones(4))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.ir.convert import describe
from dovetail.ir.program import Node, Program, ScalarMeta, Stage, Value, map_operands
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.sizes import symbol
from dovetail.ops import prims
from dovetail.pipeline.differential import same_bits
from dovetail.torch_compat.dispatch import storage_key
from tests.harness.shared_bytes import OrderMatters, WritesHaveOneMeaning, shared_bytes

aten = torch.ops.aten


def written(text: str, inputs: Mapping[str, Any], stage: Stage = Stage.IN_PLACE) -> Program:
    """The program that `text` says: a call a line, then a return. Arguments are constants and earlier names."""
    return _Reading(copied(inputs)).program(ast.parse(text).body, stage)


class _Reading:
    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.numbers: dict[int, int] = {}
        self.tensors: dict[Value, Any] = {}
        self.scope: dict[str, Any] = {"torch": torch, "aten": aten, "prims": prims, "checks": torch.ops.dovetail_checks}
        self.inputs = [self._value(name, thing) for name, thing in inputs.items()]
        self.nodes: list[Node] = []

    def program(self, lines: Sequence[ast.stmt], stage: Stage) -> Program:
        outputs: tuple[Any, ...] = ()
        for line in lines:
            if isinstance(line, ast.Return):
                held = () if line.value is None else self._of(line.value)
                outputs = tuple(held) if isinstance(held, tuple) else (held,)
                continue
            assert isinstance(line, ast.Assign | ast.Expr)
            assert isinstance(line.value, ast.Call)
            args = tuple(self._of(a) for a in line.value.args)
            kwargs = {k.arg: self._of(k.value) for k in line.value.keywords if k.arg}
            target = self._of(line.value.func)
            real = [map_operands(a, self.tensors.__getitem__) for a in (args, *kwargs.values())]
            with torch.no_grad():
                made = target(*real[0], **dict(zip(kwargs, real[1:], strict=True)))
            results: tuple[Value | None, ...] = ()
            unpack = False
            if isinstance(line, ast.Assign):
                place = line.targets[0]
                unpack = isinstance(place, ast.Tuple)
                names = [name.id for name in ast.walk(place) if isinstance(name, ast.Name)]
                things = list(made) if unpack else [made]
                assert len(things) == len(names)
                results = tuple(
                    None if thing is None else self._value(n, thing) for n, thing in zip(names, things, strict=True)
                )
            self.nodes.append(Node(target, args, tuple(kwargs.items()), results, unpack))
        roles = Signature(
            tuple(UserInput(i) for i in range(len(self.inputs))), tuple(UserOutput(i) for i in range(len(outputs)))
        )
        return Program("small", stage, tuple(self.inputs), tuple(self.nodes), outputs, roles)

    def _of(self, expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "<program>", "eval"), self.scope)

    def _value(self, name: str, thing: Any) -> Value:
        if isinstance(thing, torch.Tensor):
            number = self.numbers.setdefault(storage_key(thing), len(self.numbers))
            value = Value(name, describe(thing, number))
        else:
            value = Value(name, ScalarMeta(symbol(f"{name}_number")))
        self.tensors[value] = thing
        self.scope[name] = value
        return value


def copied(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs on memory of their own, which they share as the given ones do."""
    memory: dict[int, Any] = {}
    found: dict[str, Any] = {}
    for name, thing in inputs.items():
        found[name] = thing
        if isinstance(thing, torch.Tensor):
            key = storage_key(thing)
            if key not in memory:
                memory[key] = thing.untyped_storage().clone()
            made = torch.empty(0, dtype=thing.dtype)
            found[name] = made.set_(memory[key], thing.storage_offset(), thing.shape, thing.stride())
    return found


EFFECTS: list[torch.Tensor] = []
"""What `dovetail_checks::note` was called with."""


def execute(program: Program, given: Sequence[Any]) -> list[Any]:
    """Run the program on real tensors; it writes those that it is given."""
    env = dict(zip(program.inputs, given, strict=True))
    with torch.no_grad(), WritesHaveOneMeaning():
        for node in program.nodes:
            args: Any = map_operands(node.args, env.__getitem__)
            kwargs = {name: map_operands(operand, env.__getitem__) for name, operand in node.kwargs}
            made: Any = node.target(*args, **kwargs)
            things = list(made) if node.unpack else [made]
            env.update({v: t for v, t in zip(node.outputs, things, strict=False) if v is not None})
    return [env[o] if isinstance(o, Value) else o for o in program.outputs]


def difference(
    functional: Program, inplace: Program, inputs: Mapping[str, Any], donated: frozenset[int] = frozenset()
) -> str:
    """What somebody who runs both programs on these inputs can tell apart; "" when nothing."""
    sides = []
    for program in (functional, inplace):
        given = list(copied(inputs).values())
        EFFECTS.clear()
        torch.manual_seed(0)
        try:
            outputs = execute(program, given)
        except OrderMatters as error:
            return str(error)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            return f"it fails: {error}"
        sides.append((given, outputs, torch.get_rng_state(), list(EFFECTS)))
    (given, outputs, state, effects), (other_given, other_outputs, other_state, other_effects) = sides
    if not torch.equal(state, other_state):
        return "the generator ends elsewhere"
    if len(effects) != len(other_effects) or not all(map(same_bits, effects, other_effects)):
        return "effects differ"
    for position, (a, b) in enumerate(zip(outputs, other_outputs, strict=True)):
        if not same_bits(a, b):
            return f"output {position} differs"
    kept = [(a, b) for i, (a, b) in enumerate(zip(given, other_given, strict=True)) if i not in donated]
    for a, b in kept:
        if isinstance(a, torch.Tensor) and not same_bits(*map(_all_bytes, (a, b))):
            return "an input is left with other contents"
    return "" if _sharing([a for a, _ in kept], outputs) == _sharing([b for _, b in kept], other_outputs) else "sharing"


def _all_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _sharing(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[int, int, frozenset[int]]]:
    """Pairs that share bytes, and which, counted from where the output starts."""
    things = [t for t in (*outputs, *inputs) if isinstance(t, torch.Tensor)]
    count = sum(1 for t in outputs if isinstance(t, torch.Tensor))
    return [
        (i, j, frozenset(byte - a.data_ptr() for byte in shared_bytes(a, b)))
        for i, a in enumerate(things[:count])
        for j, b in enumerate(things)
        if i != j
    ]


# --- breaking programs ------------------------------------------------------------------------------------------------


def broken(text: str) -> Iterator[tuple[str, str]]:
    """Texts that differ from `text` in one thing, each with a word for what was done."""
    tree = ast.parse(text)
    body, last = tree.body[:-1], tree.body[-1]
    for i in range(len(body)):
        for j in range(len(body)):
            if i != j and j != i - 1:  # moving down by one is moving the other up
                yield "move", _text([*_without(body, i)[:j], body[i], *_without(body, i)[j:], last])
        yield "drop", _dropped(tree.body, i)
        yield "repeat", _text([*body[: i + 1], _again(body[i]), *body[i + 1 :], last])
    source = ast.unparse(tree)
    yield from (*_other_operands(source), *_other_numbers(source), *_other_operators(source))
    assert isinstance(last, ast.Return)
    names = _names(body)
    for place in range(source.splitlines()[-1].count(",") + 1):
        for name in names:
            yield "return another", _with_output(tree.body, place, name)
        yield "return a copy", _with_output(tree.body, place, None)


def _text(lines: Sequence[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, lines))


def _without(lines: Sequence[ast.stmt], index: int) -> list[ast.stmt]:
    return [*lines[:index], *lines[index + 1 :]]


def _names(lines: Sequence[ast.stmt]) -> list[str]:
    targets = [target for line in lines if isinstance(line, ast.Assign) for target in line.targets]
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


class _Renamed(ast.NodeTransformer):
    def __init__(self, old: str, new: str, only: int | None = None) -> None:
        self.old, self.new, self.only, self.count = old, new, only, 0

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == self.old:
            self.count += 1
            if self.only is None or self.count - 1 == self.only:
                return ast.Name(self.new, node.ctx)
        return node


def _dropped(lines: Sequence[ast.stmt], index: int) -> str:
    """Without a line; its result, if any, is its first operand."""
    text = _text(_without(lines, index))
    operands = [n.id for n in ast.walk(lines[index]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    operands = [name for name in operands if name not in ("torch", "aten", "prims", "checks")]
    names = _names([lines[index]])
    if len(names) == 1 and operands:
        return ast.unparse(_Renamed(names[0], operands[0]).visit(ast.parse(text)))
    return text


def _again(line: ast.stmt) -> ast.stmt:
    """A line once more, its results under other names."""
    copy = ast.parse(ast.unparse(line))
    for name in _names([line]):
        copy = _Renamed(name, f"{name}_again", only=0).visit(copy)
    found: ast.stmt = copy.body[0]
    return found


def _other_operands(source: str) -> Iterator[tuple[str, str]]:
    lines = source.splitlines()
    reserved = {"torch", "aten", "prims", "checks"}
    inputs = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)} - reserved
    inputs -= set(_names(ast.parse(source).body))
    for index, line in enumerate(lines[:-1]):
        known = [*sorted(inputs), *_names(ast.parse("\n".join(lines[:index])).body)]
        (statement,) = ast.parse(line).body
        used = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        for name, only in [(n, k) for n in sorted({n.id for n in used} - reserved) for k in range(len(used))]:
            for other in known:
                changed = ast.unparse(_Renamed(name, other, only).visit(ast.parse(line)))
                if changed != line:
                    yield "other operand", "\n".join([*lines[:index], changed, *lines[index + 1 :]])


def _other_numbers(source: str) -> Iterator[tuple[str, str]]:
    count = sum(1 for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    for place in range(count):
        for by in (1, -1):
            tree = ast.parse(source)
            constant = [n for n in ast.walk(tree) if isinstance(n, ast.Constant)][place]
            if type(constant.value) in (int, float):
                constant.value += by
                yield "other number", ast.unparse(tree)


def _other_operators(source: str) -> Iterator[tuple[str, str]]:
    """Each operator in place instead, or not in place instead."""
    count = sum(1 for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute))
    for place in range(count):
        tree = ast.parse(source)
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)][place]
        if isinstance(found.value, ast.Name) and found.value.id == "aten":
            found.attr = found.attr[:-1] if found.attr.endswith("_") else f"{found.attr}_"
            if hasattr(aten, found.attr):
                yield "in place or not", ast.unparse(tree)


def _with_output(lines: Sequence[ast.stmt], place: int, name: str | None) -> str:
    last = ast.parse(ast.unparse(lines[-1])).body[0]
    assert isinstance(last, ast.Return)
    assert last.value is not None
    items = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    copy = [] if name is not None else ast.parse(f"copy_of_it = aten.clone.default({ast.unparse(items[place])})").body
    items[place] = ast.Name(name or "copy_of_it")
    value = ast.Tuple(items) if len(items) > 1 else items[0]
    return _text([*lines[:-1], *copy, ast.Return(value)])
