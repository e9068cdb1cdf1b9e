"""What an operator application means, whether it writes or not: the same key for `add(a, b)`, `add_(a, b)`,
`add.out(a, b, out=c)` and `functional_form(add_)(a, b)`.

An `OperatorCall` is an application taken apart by the schema of its operator. Its *canonical name* leaves out all that
says where results go: the trailing underscore, `_functional`, out arguments. The `ValueNumbers` return one set of value
numbers for each key: canonical name, arguments that are not tensors, and for each tensor its contents and layout.
Results come in one order for all forms: fresh ones first, then the new contents of each written argument, lists
flattened.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch

from dovetail.analysis.symbolic_contents import Numbering, Shape
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Target, Value
from dovetail.ir.sizes import Number, SizeExpr, evaluate
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ops.facts import hidden_writes
from dovetail.ops.prims import FunctionalForm, InGradMode, OverParameters
from dovetail.torch_compat.dispatch import Argument, Overload, overloads, schema_of, tags_of
from dovetail.torch_compat.symbols import number_function_text

_TRANSPARENT_NAMESPACES = frozenset({"aten", "prims", "mkldnn", "mkl", "quantized", "quantized_decomposed"})
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


class Write(NamedTuple):
    """A written argument: its name, its alias set, its operand."""

    argument: str
    alias: str
    operand: Operand


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One application, argument by argument.

    op: the operator, None where there is no schema. name: the canonical one. arguments: each argument with its operand,
    defaults filled in, out arguments left out. outs: operands of out arguments. writes: what it writes, out arguments
    included; nothing in a form that returns the new contents instead. in_place: whether a result lies where an argument
    lies, or on a copy of it.
    """

    op: Overload | None
    name: Hashable
    arguments: tuple[tuple[str, Operand], ...]
    writes: tuple[Write, ...]
    outs: tuple[Operand, ...]
    draws: bool
    reads_generator: bool
    effect: bool
    pointwise: bool
    in_place: bool

    @property
    def base(self) -> str:
        """`namespace::name` of an operator, in its canonical form; "" for anything else."""
        return self.name[0] if self.op is not None and isinstance(self.name, tuple) else ""

    @property
    def reads_only_shape(self) -> bool:
        """Whether the first operand says no more than what the result looks like."""
        name = self.base.removeprefix("aten::")
        is_filled = name in ("fill", "zero")
        return self.base.startswith("aten::") and (is_filled or name.endswith("_like") or name.startswith("new_"))

    @property
    def is_fill(self) -> bool:
        """Whether it only puts numbers into its first operand that depend on its shape, dtype and numbers alone.

        Not so `bernoulli`: it takes another path through memory that is not contiguous, and draws in another order.
        """
        reads_more = any(isinstance(operand, Value) for _, operand in self.arguments[1:])
        return self.op is not None and not reads_more and self.base != "aten::bernoulli"

    def rounds_by_place(self, dtype: torch.dtype) -> bool:
        """Whether the bits of a result may depend on whether it lies where an operand lies. dtype: of the operands.

        Kernels of complex numbers round by the path that they take, which depends on it. A product of a tensor of 16
        bits and a number takes its factors in the other order in place: then the number is rounded to 16 bits first.
        """
        if dtype.is_complex:
            return self.op is not None
        is_product = not self.outs and self.base in ("aten::mul", "aten::_foreach_mul")
        is_by_number = is_product and "Tensor" in self.types[0] and "number" in self.types[1]
        return is_by_number and dtype.is_floating_point and dtype.itemsize == 2

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the arguments in the schema, out arguments left out."""
        return () if self.op is None else tuple(a.type for a in schema_of(self.op).arguments if not a.is_out)

    @property
    def is_empty(self) -> bool:
        """Whether the result holds nothing in particular."""
        return self.base.removeprefix("aten::") in _EMPTY


def call_of(node: Node) -> OperatorCall:
    """The application that a node makes."""
    target: object = node.target
    prim = target if isinstance(target, Prim) else None
    kwargs = dict(node.kwargs)
    form = prim.run if prim is not None and isinstance(prim.run, FunctionalForm) else None
    marks: tuple[Hashable, ...] = ()
    if form is not None:
        target = form.op
    elif prim is not None and isinstance(prim.run, InGradMode):
        target, marks = prim.run.op, ("grad mode",)
    elif prim is not None and isinstance(prim.run, OverParameters):
        target, marks = prim.run.op, ("over parameters",)
    if not isinstance(target, Overload):
        plain = [("", a) for a in node.args] + sorted(kwargs.items())
        is_opaque = number_function_text(node.target) is None
        draws, reads, effect = (prim.draws, prim.reads_generator, prim.effect) if prim else (False, False, is_opaque)
        return OperatorCall(None, _opaque_name(node.target), tuple(plain), (), (), draws, reads, effect, False, False)
    schema = schema_of(target)
    given = {a.name: operand for a, operand in zip(schema.arguments, node.args, strict=False)} | kwargs
    operands = [(a, given.get(a.name, a.default)) for a in schema.arguments]
    written = {i for i, a in enumerate(schema.arguments) if a.is_write}
    written |= set(hidden_writes(target, [operand for _, operand in operands], {}))
    if form is not None:
        written = set()
    opaque = schema.namespace not in _TRANSPARENT_NAMESPACES
    return OperatorCall(
        op=target,
        name=(_canonical_name(target), tuple(a.type for a in schema.arguments if not a.is_out), *marks),
        arguments=tuple((a.name, _normal(a, operand)) for a, operand in operands if not a.is_out),
        writes=tuple(Write(operands[i][0].name, operands[i][0].alias, operands[i][1]) for i in sorted(written)),
        outs=tuple(operand for a, operand in operands if a.is_out),
        draws=torch.Tag.nondeterministic_seeded in tags_of(target)
        or any("Generator" in a.type for a in schema.arguments),
        reads_generator=False,
        effect=opaque or not (schema.returns or any(a.is_write for a in schema.arguments)),
        pointwise=_is_pointwise(target),
        in_place=any(a.is_write and not a.is_out for a in schema.arguments),
    )


def _opaque_name(target: Target) -> Hashable:
    if not isinstance(target, Prim):
        return ("function", id(target))
    if isinstance(target.run, WithSubPrograms):
        leaves = tuple(_leaf(leaf) for leaf in target.run.leaves)
        return ("subgraphs", target.run.operator.name(), leaves, target.run.places)
    return ("prim", target.name, target.run)


def _leaf(leaf: object) -> Hashable:
    """A subgraph by what it consists of, anything else as a constant. A rewritten subgraph is another one."""
    if not isinstance(leaf, torch.fx.GraphModule):
        return id(leaf) if isinstance(leaf, torch.nn.Module | torch.fx.Graph) else constant(leaf, {})
    numbers = {node: number for number, node in enumerate(leaf.graph.nodes)}

    def part(operand: object) -> Hashable:
        if isinstance(operand, torch.fx.Node):
            return ("node", numbers[operand])
        if isinstance(operand, dict):
            return tuple((key, part(item)) for key, item in operand.items())
        if isinstance(operand, tuple | list):
            return tuple(part(item) for item in operand)
        return operand if isinstance(operand, str) or callable(operand) else constant(operand, {})

    found: list[Hashable] = []
    for node in leaf.graph.nodes:
        target = part(node.target) if node.op not in ("placeholder", "output") else ""
        if node.op in ("get_attr", "call_module"):
            target = _leaf(dict(leaf.named_modules()).get(str(node.target), leaf.graph))
        found.append((node.op, target, part(node.args), part(node.kwargs)))
    return tuple(found)


@cache
def _canonical_name(op: Overload) -> str:
    schema = schema_of(op)
    name = schema.name
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return f"{schema.namespace}::{name.removesuffix('_functional')}"


@cache
def _is_pointwise(op: Overload) -> bool:
    """Whether the operator, or the one of its kind that writes nothing, is tagged so."""
    namespace, _, name = _canonical_name(op).partition("::")
    types = [a.type for a in schema_of(op).arguments if not a.is_out]
    kin = [k for k in overloads(namespace, name) if [a.type for a in schema_of(k).arguments if not a.is_out] == types]
    return any(torch.Tag.pointwise in tags_of(k) for k in (op, *kin))


def _normal(argument: Argument, operand: Operand) -> Operand:
    """A number in the type that the operator sees."""
    if argument.type in ("float", "Optional[float]") and isinstance(operand, int):
        return float(operand)
    return operand


def constant(operand: Operand, hints: Mapping[str, Number]) -> Hashable:
    """An operand that holds no value, as something to compare: text that says its type and all of it."""
    if isinstance(operand, tuple | list):
        return tuple(constant(item, hints) for item in operand)
    if isinstance(operand, SizeExpr):
        return (str(operand), repr(evaluate(operand, hints)))
    if isinstance(operand, torch.Generator) or callable(operand):
        return (type(operand).__name__, id(operand))
    return (type(operand).__name__, repr(operand))


def compared(operand: Operand, seen: Callable[[Value], Hashable], hints: Mapping[str, Number]) -> Hashable:
    """An operand as something to compare; `seen` says what is compared of a value."""
    if isinstance(operand, Value):
        return seen(operand)
    if isinstance(operand, tuple | list):
        return tuple(compared(item, seen, hints) for item in operand)
    return constant(operand, hints)


@dataclass(slots=True)
class Result:
    """One result of an application. start: its first value number. layout: None for a number."""

    start: int
    layout: tuple[Shape, Shape, torch.dtype] | None


@dataclass(slots=True)
class Application:
    """All results; None where nobody has asked for one yet. label: the node that it was first seen at."""

    results: list[Result | None]
    label: str


@dataclass(slots=True)
class ValueNumbers:
    """Every application that has been made, by its key."""

    numbering: Numbering = field(default_factory=Numbering)
    made: dict[Hashable, Application] = field(default_factory=dict)
    alike: dict[Hashable, list[tuple[tuple[Hashable, ...], str]]] = field(default_factory=dict)

    def make(self, name: Hashable, operands: Sequence[Hashable], count: int, label: str) -> Application:
        """The application with this key, a new one if need be."""
        key = (name, tuple(operands))
        known = self.made.get(key)
        if known is None:
            known = self.made[key] = Application([None] * count, label)
            self.alike.setdefault(name, []).append((tuple(operands), label))
        return known

    def find(self, name: Hashable, operands: Sequence[Hashable]) -> Application | None:
        """The application with this key, if it has been made."""
        return self.made.get((name, tuple(operands)))

    def nearest(self, name: Hashable, operands: Sequence[Hashable]) -> tuple[str, tuple[Hashable, ...]] | None:
        """The application of this operator that differs in the fewest operands: its label and its operands."""
        alike = self.alike.get(name, ())
        differences = [sum(a != b for a, b in zip(operands, others, strict=False)) for others, _ in alike]
        if not differences:
            return None
        others, label = alike[differences.index(min(differences))]
        return label, others
