"""How to run a functional operator so that it writes into memory that is there already.

Three forms, all found by schema:

- `writing_form`: the operator of which this one is the functional variant, with the arguments it writes
  (`add` -> `add_`, `_foreach_add` -> `_foreach_add_`, `functional_form(op)` -> `op`);
- `out_form`: the overload that takes the place of the result as an argument (`mm` -> `mm.out`);
- `part_of`, `view_of_copy`: the view behind an operator that replaces a part of its first operand, or copies one
  (`slice_scatter` -> `slice`, `permute_copy` -> `permute`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Target, Value, values_in
from dovetail.ops.facts import (
    draws_otherwise_in_place,
    facts_of,
    ignores_first_contents,
    is_copy,
    once_for_each,
    resizes_out,
    rounds_otherwise_in_place,
    rounds_otherwise_into_out,
)
from dovetail.ops.functional_variants import functional_variant, inplace_variant
from dovetail.ops.prims import COPY_TO_LAYOUT, FunctionalForm, ViewScatter, view_scatter
from dovetail.ops.views import replayed_args
from dovetail.torch_compat.dispatch import Overload, Schema, has_kernel, overloads, schema_of


@dataclass(frozen=True, slots=True)
class WritingForm:
    """An operator that writes, for a functional one with the same arguments.

    written: positions of the arguments it writes. fresh: how many leading results are new tensors in both; the other
    results of the functional operator are the new contents of the written arguments, in order, lists flattened.
    returns_written: the operator returns its only written tensor.
    """

    target: Overload
    written: tuple[int, ...]
    fresh: int = 0
    returns_written: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The view `view(base, *args)`, item `index` of it where it gives several."""

    view: Overload
    index: int | None = None


@once_for_each
def writing_form(target: Target, dtype: torch.dtype | None) -> WritingForm | None:
    """The writing form of an operator whose (first) written tensor has this dtype, if there is one."""
    if isinstance(target, Prim):
        run = target.run
        if not isinstance(run, FunctionalForm):
            return None
        schema = schema_of(run.op)
        return WritingForm(run.op, run.writes, sum(1 for _, _, is_write in schema.returns if not is_write))
    if not isinstance(target, Overload) or rounds_otherwise_in_place(target, dtype):
        return None
    variant = inplace_variant(target, dtype)
    if variant is not None and not schema_of(variant).arguments[0].type.startswith("List"):
        return WritingForm(variant, (0,), returns_written=True)
    return _other_writing_form(target)


@cache
def _other_writing_form(target: Overload) -> WritingForm | None:
    schema = schema_of(target)
    base = schema.name.removesuffix("_functional")
    for name in (f"{schema.name}_", base, f"{base}_"):
        for candidate in overloads(schema.namespace, name):
            other = schema_of(candidate)
            writes = tuple(i for i, a in enumerate(other.arguments) if a.is_write and not a.is_out)
            if not writes or not _takes_the_same(schema, other):
                continue
            variant = functional_variant(candidate, writes)
            if variant.target is target and not variant.drops_out:
                return WritingForm(candidate, writes, variant.fresh)
            if writes == (0,) and _refills(schema, other) and not draws_otherwise_in_place(candidate):
                return WritingForm(candidate, writes, returns_written=True)
    return None


def _refills(functional: Schema, writing: Schema) -> bool:
    """Whether one fills its operand with random numbers and the other gives new memory, filled alike (`uniform`)."""
    first, *others = functional.arguments
    fills = bool(others) and others[-1].name == "generator" and {a.type for a in others[:-1]} <= _NUMBERS
    returned = [type_ for type_, _, _ in functional.returns]
    return fills and first.type == "Tensor" and returned == ["Tensor"] and len(writing.arguments) == len(others) + 1


_NUMBERS = {"float", "int", "Optional[int]", "Optional[float]"}


def _takes_the_same(a: Schema, b: Schema) -> bool:
    return [(x.type, x.kwarg_only, x.default) for x in a.arguments] == [
        (x.type, x.kwarg_only, x.default) for x in b.arguments
    ]


@once_for_each
def out_form(target: Target, device_type: str) -> Overload | None:
    """The overload of a functional operator with one result that takes `out=`, if there is one.

    An overload that has no kernel for the device makes a result first, and copies it: nothing is won.
    """
    if not isinstance(target, Overload) or not facts_of(target).is_pure:
        return None
    if rounds_otherwise_into_out(target) or resizes_out(target):
        return None
    schema = schema_of(target)
    if [(type_, alias) for type_, alias, _ in schema.returns] != [("Tensor", "")]:
        return None
    wanted = [(a.name, a.type, a.default) for a in schema.arguments]
    for candidate in overloads(schema.namespace, schema.name):
        arguments = schema_of(candidate).arguments
        outs = [a for a in arguments if a.is_out]
        same = [(a.name, a.type, a.default) for a in arguments if not a.is_out] == wanted
        is_tensor = len(outs) == 1 and outs[0].name == "out" and outs[0].type == "Tensor"
        if same and is_tensor and has_kernel(candidate, device_type):
            return candidate
    return None


def part_of(node: Node) -> tuple[Part, tuple[Operand, ...]] | None:
    """For an application `(base, source, *args)` that gives base with a part replaced: the view, and `args`.

    The primitive takes places in the storage of its copy of the base, which starts there; they are told for the base.
    """
    if len(node.args) < 2 or len(node.outputs) != 1 or not isinstance(node.args[0], Value):
        return None
    part, base = _scattered_part(node.target), node.args[0]
    if part is None:
        return None
    if isinstance(node.target, Overload) or not base.is_tensor:
        return part, node.args[2:]
    return part, replayed_args(part.view, (base, *node.args[2:]), base.tensor.offset)[1:]


@cache
def _scattered_part(target: Target) -> Part | None:
    if isinstance(target, Prim):
        return Part(target.run.view, target.run.index) if isinstance(target.run, ViewScatter) else None
    if not isinstance(target, Overload):
        return None
    schema = schema_of(target)
    if not schema.name.endswith("_scatter") or len(schema.arguments) < 2:
        return None
    wanted = [a.type for a in (schema.arguments[0], *schema.arguments[2:])]
    view = _view(schema, schema.name.removesuffix("_scatter"), wanted)
    return None if view is None else Part(view)


@cache
def view_of_copy(target: Target) -> Overload | None:
    """The view of which this operator gives a copy (`permute` for `permute_copy`), if it is one."""
    if not isinstance(target, Overload) or not schema_of(target).name.endswith("_copy"):
        return None
    schema = schema_of(target)
    return _view(schema, schema.name.removesuffix("_copy"), [a.type for a in schema.arguments])


def _view(schema: Schema, name: str, wanted: list[str]) -> Overload | None:
    for candidate in overloads(schema.namespace, name):
        other = schema_of(candidate)
        is_view = other.arguments[0].alias and not other.is_mutable
        if is_view and [a.type for a in other.arguments] == wanted and len(other.returns) == len(schema.returns):
            return candidate
    return None


@once_for_each
def copies_or_scatters(target: Target) -> bool:
    """Whether the result holds what an operand holds, all of it or but for the part that a view shows."""
    copies = is_copy(target) or ignores_first_contents(target) or view_of_copy(target) is not None
    return copies or is_scatter(target)


@once_for_each
def replaces_a_part(target: Target) -> bool:
    """Whether the result is the first operand with a part replaced, which an index or a mask selects.

    Known by an argument of that name, and by an in-place variant.
    """
    if isinstance(target, Prim):
        return isinstance(target.run, FunctionalForm | ViewScatter)
    if not isinstance(target, Overload) or inplace_variant(target) is None:
        return _scattered_part(target) is not None
    return any(argument.name in ("index", "indices", "mask") for argument in schema_of(target).arguments[1:])


def is_scatter(target: Target) -> bool:
    """Whether it is an operator that replaces the part of its first operand that a view shows."""
    is_named_so = isinstance(target, Overload) and schema_of(target).name.endswith("_scatter")
    return is_named_so and replaces_a_part(target)


def written_operands(form: WritingForm, node: Node) -> list[Value] | None:
    """The values that the writing form of a node writes, lists flattened, parallel to its results after the fresh ones.

    None where an argument to write was not given by position, or is a number.
    """
    found: list[Value] = []
    for position in form.written:
        if position >= len(node.args):
            return None
        found += values_in(node.args[position])
    return found if len(found) == len(node.outputs) - form.fresh else None


def makes_new_memory(node: Node, result: Value) -> bool:
    """Whether a result that is not a view surely shares no memory with anything else.

    What the operators of other libraries return is not known; the copies that a functional form makes are.
    """
    target = node.target
    if isinstance(target, Overload):
        return schema_of(target).namespace in _OWN_MEMORY
    if not isinstance(target, Prim):
        return False
    run = target.run
    if isinstance(run, FunctionalForm):
        fresh = sum(1 for _, _, is_write in schema_of(run.op).returns if not is_write)
        return node.outputs.index(result) >= fresh or schema_of(run.op).namespace in _OWN_MEMORY
    return isinstance(run, ViewScatter) or target is COPY_TO_LAYOUT


_OWN_MEMORY = frozenset({"aten", "prims"})


def written_over_all(node: Node) -> Value | None:
    """What is put in place of all elements of a tensor, by a slice that leaves none out."""
    values = [value for value in node.operands() if value.is_tensor]
    if node.target not in OVER_SLICES or len(values) != 2 or len(node.results()) != 1:
        return None
    source, result = values[1], node.results()[0]
    return source if (source.tensor.shape, source.tensor.dtype) == (result.tensor.shape, result.tensor.dtype) else None


OVER_SLICES = frozenset({torch.ops.aten.slice_scatter.default, view_scatter(torch.ops.aten.slice.Tensor, None)})
"""What puts a tensor in the place of a slice."""
