"""How an operator writes its results into memory that it is given, and which operators may see that memory at all.

    t = mm(a, w)                     ->   t = mm(a, w, out=place)
    v, i = max(x, 1)                 ->   v, i = max(x, 1, max=place, max_values=other)
    c = clone(x, memory_format=...)  ->   c = copy_(place, x)
    e = empty_like(x)                ->   e = alias(place)

What torch generates for operators without such a kernel makes results first and copies them: it is not among these.
Whether a form gives the same bits, and takes nothing for itself that the operator does not take, is for a trial to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Target, Value
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ops.facts import (
    facts_of,
    is_copy,
    leaves_contents_open,
    may_resize,
    resizes_out,
    rounds_otherwise_into_out,
    writes_of,
)
from dovetail.torch_compat.dispatch import Overload, overloads, schema_of, tags_of

_COPY = torch.ops.aten.copy_.default
_ALIAS = torch.ops.aten.alias.default
_DTYPES = frozenset(
    {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool}
    | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
)
"""Complex ones are left out: what they hold may be conjugated by a flag of the tensor, which a place does not have."""
_OF_NEW_TENSORS = frozenset({"dtype", "layout", "device", "pin_memory"})
_OWN = frozenset({"aten", "prims"})


def placed_node(node: Node, places: Sequence[Value]) -> Node | None:
    """The node that writes its results into places, one for each; None where its operator cannot do that.

    places: laid out as the results are, on their storages.
    """
    if not places or len(places) != len(node.outputs) or any(value.tensor.dtype not in _DTYPES for value in places):
        return None
    if is_copy(node.target):
        source = node.args[0] if node.args else None
        is_plain = isinstance(source, Value) and source.is_tensor and source.tensor.dtype in _DTYPES
        return replace(node, target=_COPY, args=(places[0], source), kwargs=(), unpack=False) if is_plain else None
    if leaves_contents_open(node.target):
        return replace(node, target=_ALIAS, args=(places[0],), kwargs=())
    form = _form_with_places(node.target, len(places)) if not writes_of(node) else None
    if form is None:
        return None
    op, names = form
    kwargs = tuple((name, operand) for name, operand in node.kwargs if name in _argument_names(op))
    args = node.args[: sum(not argument.kwarg_only for argument in schema_of(op).arguments)]
    if len(args) < len(node.args):
        return None
    return replace(node, target=op, args=args, kwargs=(*kwargs, *zip(names, places, strict=True)))


def _argument_names(op: Overload) -> frozenset[str]:
    return frozenset(argument.name for argument in schema_of(op).arguments if not argument.is_out)


@cache
def _form_with_places(target: Target, count: int) -> tuple[Overload, tuple[str, ...]] | None:
    """The overload that takes memory for so many results, and the names under which it takes it."""
    if not isinstance(target, Overload) or not facts_of(target).is_pure:
        return None
    if rounds_otherwise_into_out(target) or resizes_out(target):
        return None
    schema = schema_of(target)
    if [(type_, alias) for type_, alias, _ in schema.returns] != [("Tensor", "")] * count:
        return None
    wanted = [(a.name, a.type, a.default) for a in schema.arguments]
    without = [what for what in wanted if what[0] not in _OF_NEW_TENSORS]
    for candidate in overloads(schema.namespace, schema.name):
        arguments = schema_of(candidate).arguments
        outs = [a for a in arguments if a.is_out]
        same = [(a.name, a.type, a.default) for a in arguments if not a.is_out]
        fits = len(outs) == count and all(a.type == "Tensor" for a in outs) and same in (wanted, without)
        if fits and torch.Tag.generated not in tags_of(candidate):
            return candidate, tuple(a.name for a in outs)
    return None


def lets_go_of_operands(node: Node) -> bool:
    """Whether nothing keeps an operand once the node ran: it is torch's own, and no code of the user's sees it."""
    target = node.target
    if isinstance(target, Overload):
        return schema_of(target).namespace in _OWN and not may_resize(target)
    if not isinstance(target, Prim) or target.outside or isinstance(target.run, WithSubPrograms):
        return False
    op = getattr(target.run, "op", None)
    if isinstance(op, Overload):
        return schema_of(op).namespace in _OWN and not may_resize(op)
    return target.checks or not target.effect
