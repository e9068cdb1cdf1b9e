"""The functional variant of an operator that writes: same results, nothing written.

Found by schema: the same name without its trailing underscore (or without its out argument) whose arguments have the
same types, or `<name>_functional`. Where no variant exists, `ops.prims.functional_form` serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Operand, Target, TensorMeta
from dovetail.ops.facts import facts_of, rounds_otherwise_in_place
from dovetail.ops.prims import functional_form
from dovetail.torch_compat.dispatch import Argument, Overload, Schema, overloads, schema_of


@dataclass(frozen=True, slots=True)
class FunctionalVariant:
    """A functional operator and how its results map to those of the writing one.

    target: the functional operator. drops_out: the writing operator's out arguments are not passed on.
    fresh: how many leading results are the writing operator's own fresh results; the new contents of the written
    tensors follow, in argument order with lists flattened. returns_list: whether results come as a sequence.
    """

    target: Target
    fresh: int
    returns_list: bool
    drops_out: bool = False


def exact_variant(op: Overload, writes: tuple[int, ...], written: Sequence[TensorMeta]) -> FunctionalVariant:
    """The functional variant that gives, bit by bit, what `op` writes into these tensors. Never fails.

    An operator that is not elementwise may add up in another order where the result is laid out differently.
    """
    facts, in_place = facts_of(op), schema_of(op).name.endswith("_")
    for meta in written:
        rounds_otherwise = in_place and rounds_otherwise_in_place(op, meta.dtype)
        if rounds_otherwise or not (facts.pointwise or meta.is_contiguous()):
            return _own_form(op, writes)
    return functional_variant(op, writes)


@cache
def functional_variant(op: Overload, writes: tuple[int, ...]) -> FunctionalVariant:
    """The functional variant of `op`, which writes the arguments at positions `writes`. Never fails.

    A draw has no variant among the operators: which numbers it draws depends on the strides of what it writes, and a
    variant writes a tensor of its own.
    """
    schema = schema_of(op)
    finders = () if facts_of(op).draws else (_variant_of_out, _variant_of_inplace, _variant_by_suffix)
    for find in finders:
        variant = find(schema, writes)
        if variant is not None:
            return variant
    return _own_form(op, writes)


def _own_form(op: Overload, writes: tuple[int, ...]) -> FunctionalVariant:
    """The operator itself, on copies."""
    return FunctionalVariant(functional_form(op, writes), fresh=_fresh_count(schema_of(op)), returns_list=True)


@cache
def inplace_variant(op: Overload, dtype: torch.dtype | None = None) -> Overload | None:
    """The operator that does what `op` does and leaves the result, of `dtype`, in its first argument, if there is one.

    `op` is the functional variant of what is returned, with equal defaults.
    """
    if rounds_otherwise_in_place(op, dtype):
        return None
    schema = schema_of(op)
    for candidate in overloads(schema.namespace, f"{schema.name}_"):
        other = schema_of(candidate)
        same = [(a.type, a.kwarg_only, a.default) for a in other.arguments] == [
            (a.type, a.kwarg_only, a.default) for a in schema.arguments
        ]
        writes = tuple(i for i, a in enumerate(other.arguments) if a.is_write)
        if same and writes == (0,) and functional_variant(candidate, writes).target is op:
            return candidate
    return None


def spell_out_defaults(op: Overload, variant: Overload, args: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """`args` for `variant`: defaults of `op` that were left out are added where the variant's differ."""
    missing = [a for a in schema_of(op).arguments[len(args) :] if not a.kwarg_only]
    others = [a for a in schema_of(variant).arguments[len(args) :] if not a.kwarg_only]
    differs = [i for i, (a, b) in enumerate(zip(missing, others, strict=False)) if a.default != b.default]
    return (*args, *(a.default for a in missing[: differs[-1] + 1])) if differs else args


@cache
def form_of_lists(op: Overload) -> Prim | None:
    """The functional form of the operator of which `op` is the functional variant, where that writes lists.

    The new contents come in the order of `op`'s results, in one list: `_fused_adam` and `_fused_adam_`, say.
    """
    schema = schema_of(op)
    wanted = [(a.name, a.type, a.kwarg_only, a.default) for a in schema.arguments]
    for candidate in overloads(schema.namespace, f"{schema.name}_"):
        other = schema_of(candidate)
        same = [(a.name, a.type, a.kwarg_only, a.default) for a in other.arguments] == wanted
        written = [a.type for a in other.arguments if a.is_write]
        if same and not other.returns and written == [type_ for type_, _, _ in schema.returns]:
            return functional_form(candidate, tuple(i for i, a in enumerate(other.arguments) if a.is_write))
    return None


def _fresh_count(schema: Schema) -> int:
    return sum(1 for type_, _, is_write in schema.returns if not is_write)


def _candidates(namespace: str, name: str, wanted: list[tuple[str, str]], by_name: bool) -> list[Overload]:
    found = []
    for candidate in overloads(namespace, name):
        other = schema_of(candidate)
        signature = [(a.name, a.type) for a in other.arguments]
        same = signature == wanted if by_name else [t for _, t in signature] == [t for _, t in wanted]
        if not other.is_mutable and same:
            found.append(candidate)
    return found


def _variant_of_out(schema: Schema, writes: tuple[int, ...]) -> FunctionalVariant | None:
    outs = [a for a in schema.arguments if a.is_out]
    if not outs or len(outs) != len(writes) or any(a.type.startswith("List") for a in outs):
        return None
    wanted = [(a.name, a.type) for a in schema.arguments if not a.is_out]
    for candidate in _candidates(schema.namespace, schema.name, wanted, by_name=True):
        if len(schema_of(candidate).returns) == len(outs):
            return FunctionalVariant(candidate, fresh=0, returns_list=len(outs) > 1, drops_out=True)
    return None


def _variant_of_inplace(schema: Schema, writes: tuple[int, ...]) -> FunctionalVariant | None:
    if not schema.name.endswith("_") or schema.name.endswith("__") or _fresh_count(schema):
        return None
    wanted = [(a.name, a.type) for a in schema.arguments]
    candidates = _candidates(schema.namespace, schema.name[:-1], wanted, by_name=False)
    candidates.sort(key=lambda c: schema_of(c).overload != schema.overload)
    for candidate in candidates:
        returned = [type_ for type_, _, _ in schema_of(candidate).returns]
        written = [schema.arguments[i].type for i in writes]
        if returned == ["Tensor"] and written == ["Tensor"]:
            return FunctionalVariant(candidate, fresh=0, returns_list=False)
        if len(returned) == 1 and returned[0].startswith("List") and len(written) == 1:
            return FunctionalVariant(candidate, fresh=0, returns_list=True)
    return None


def _variant_by_suffix(schema: Schema, writes: tuple[int, ...]) -> FunctionalVariant | None:
    written: list[Argument] = [schema.arguments[i] for i in writes]
    if any(a.type.startswith("List") for a in written):
        return None
    wanted = [(a.name, a.type) for a in schema.arguments]
    base = schema.name.rstrip("_")
    places = ((f"{base}_functional", True), (f"{base}_functional", False))
    for name, by_name in places:
        for candidate in _candidates(schema.namespace, name, wanted, by_name):
            count = len(schema_of(candidate).returns)
            if count == _fresh_count(schema) + len(writes):
                return FunctionalVariant(candidate, fresh=_fresh_count(schema), returns_list=count > 1)
    return None
