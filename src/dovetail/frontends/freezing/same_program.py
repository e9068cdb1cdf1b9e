"""Whether a program of free sizes is, at some sizes, the one that was recorded for these."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch

from dovetail.frontends.freezing.record import Recorded
from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Program, ScalarMeta, TensorMeta, Value, map_leaves
from dovetail.ir.sizes import Number, Scalar, SizeExpr, evaluate
from dovetail.ops.prims import EXPECT
from dovetail.ops.writing_forms import OVER_SLICES
from dovetail.passes.no_ops import remove_no_ops

aten = torch.ops.aten
Constant: TypeAlias = tuple[torch.dtype, tuple[int, ...], bytes]

_SAME_SHAPE = frozenset({aten.view.default, aten.expand.default})
_MAKERS = frozenset({aten.full.default, aten.stack.default, aten.lift_fresh_copy.default})
_SMALL = 64  # elements of a tensor of known numbers


def difference_at(
    free: Recorded, fixed: Recorded, at: Mapping[str, Number], tensors: Mapping[str, torch.Tensor]
) -> str:
    """How a program of free sizes differs, at these, from one that was recorded for them; "" when it does not.

    tensors: what both hold, by the names of their inputs.
    """
    ours, theirs = (_without_idle_views(each.program) for each in (free, fixed))  # indexing makes such views or not
    constants = {**_constants(ours, free, at, tensors), **_constants(theirs, fixed, at, tensors)}
    nodes, others = ([node for node in program.nodes if not _counts(node, constants)] for program in (ours, theirs))
    if len(nodes) != len(others):
        return f"runs {len(others)} operators, and not {len(nodes)}"
    twins: dict[Value, object] = dict(_pairs(ours, theirs, len(free.arguments)))
    for one, other in zip(nodes, others, strict=True):
        if one.target is not other.target:
            return f"runs {other.target}, and not {one.target}, from {one.origin}"
        if not _same_operands(one, other, {**constants, **twins}, at):
            return f"gives {one.target} other operands, from {one.origin}"
        for value, twin in zip(one.outputs, other.outputs, strict=True):
            if value is None or twin is None or not _same_meta(value, twin, at):
                if value is not twin:
                    return f"makes another {one.target}, from {one.origin}"
                continue
            twins[value] = twin
    return ""


def _pairs(ours: Program, theirs: Program, arguments: int) -> list[tuple[Value, Value]]:
    """The inputs that are one. Where one program holds more tensors than the other, these have names."""
    if len(ours.inputs) == len(theirs.inputs):
        return list(zip(ours.inputs, theirs.inputs, strict=True))
    held = {value.name: value for value in theirs.inputs[arguments:]}
    return [
        *zip(ours.inputs[:arguments], theirs.inputs[:arguments], strict=True),
        *((value, held[value.name]) for value in ours.inputs[arguments:] if value.name in held),
    ]


def _constants(
    program: Program, recorded: Recorded, at: Mapping[str, Number], tensors: Mapping[str, torch.Tensor]
) -> dict[Value, Constant]:
    """Small tensors of numbers that are known at these sizes: `torch.tensor(x.shape[0])` is made in one way where that
    is a symbol, and is a constant where it is a number.
    """
    known: dict[Value, torch.Tensor] = {}
    held = {v: tensors[v.name] for v in program.inputs[len(recorded.arguments) :] if v.name in tensors}
    for node in program.nodes:
        if node.target not in _MAKERS or len(node.results()) != 1:
            continue
        values = node.operands()
        given = {v: held.get(v, known.get(v)) for v in values if v.is_tensor}
        if any(found is None for found in given.values()) or not _is_small(node.results()[0].tensor, at):
            continue
        settle = partial(_number_or_tensor, tensors=given, at=at)
        kwargs = {name: map_leaves(operand, settle) for name, operand in node.kwargs}
        known[node.results()[0]] = node.target(*map_leaves(node.args, settle), **kwargs)  # type: ignore[misc]
    return {v: (x.dtype, tuple(x.shape), x.numpy().tobytes()) for v, x in known.items()}


def _is_small(meta: TensorMeta, at: Mapping[str, Number]) -> bool:
    known = [evaluate(size, at) for size in meta.shape if is_known(size, at)]
    return len(known) == len(meta.shape) and math.prod(known) <= _SMALL and meta.device.type == "cpu"


def _number_or_tensor(operand: Operand, tensors: Mapping[Value, Any], at: Mapping[str, Number]) -> Any:
    if isinstance(operand, Value):
        return tensors[operand] if operand.is_tensor else _at(operand.meta.expr, at)  # type: ignore[union-attr]
    return _at(operand, at) if isinstance(operand, SizeExpr) else operand


def _without_idle_views(program: Program) -> Program:
    """The program without views of all of a tensor in its own shape, and writes through them.

    Their strides in dimensions of size 1 move nothing: fakes of symbolic sizes may have others than C++. What follows
    is compared.
    """
    program = remove_no_ops(program)[0]
    draft = Draft(program)
    for node in program.nodes:
        values = [*node.operands()]
        if node.target in _SAME_SHAPE and len(values) == 1 and _is_idle(values[0], node.results()[0]):
            draft.substitute(node.results()[0], draft.current(values[0]))
        elif node.target in OVER_SLICES and len(values) == 2 and _is_idle(values[1], node.results()[0]):
            draft.substitute(node.results()[0], draft.current(values[1]))  # over all of it
        else:
            draft.take(node)
    return draft.finish()


def _is_idle(value: Value, view: Value) -> bool:
    ours, theirs = value.tensor, view.tensor
    if (ours.shape, ours.offset, ours.dtype) != (theirs.shape, theirs.offset, theirs.dtype):
        return False
    steps = zip(ours.shape, ours.stride, theirs.stride, strict=True)
    return all(size == 1 or a == b for size, a, b in steps)


def _counts(node: Node, constants: Collection[Value]) -> bool:
    """Whether a node only computes numbers: sizes, of which a program of fixed sizes has none, and constants."""
    if node.results() and all(value in constants for value in node.results()):
        return True
    return bool(node.outputs) and all(value is not None and not value.is_tensor for value in node.outputs)


def _same_operands(one: Node, other: Node, twins: Mapping[Value, object], at: Mapping[str, Number]) -> bool:
    def settled(operand: Operand) -> Operand:
        if isinstance(operand, Value):
            meta = operand.meta
            return _at(meta.expr, at) if isinstance(meta, ScalarMeta) else twins.get(operand, operand)
        return _at(operand, at) if isinstance(operand, SizeExpr) else operand

    count = 1 if one.target is EXPECT else None  # with that goes a text, which has the names of sizes
    ours, theirs = (
        (map_leaves(node.args[:count], settled), [(name, map_leaves(o, settled)) for name, o in node.kwargs])
        for node in (one, other)
    )
    return bool(ours == theirs)


def _same_meta(value: Value, twin: Value, at: Mapping[str, Number]) -> bool:
    ours, theirs = value.meta, twin.meta
    if isinstance(ours, ScalarMeta) or isinstance(theirs, ScalarMeta):
        return type(ours) is type(theirs)
    shape, other = ([_at(size, at) for size in meta.shape] for meta in (ours, theirs))
    if shape != other or (ours.dtype, ours.device) != (theirs.dtype, theirs.device):
        return False
    steps = zip(shape, ours.stride, theirs.stride, strict=True)
    return all(size == 1 or _at(a, at) == _at(b, at) for size, a, b in steps)


def _at(size: Scalar, at: Mapping[str, Number]) -> Number | str:
    """The number that a size is; what depends on data is known by no more than that."""
    return evaluate(size, at) if is_known(size, at) else "depends on data"


def is_known(number: Scalar, at: Mapping[str, Number]) -> bool:
    """Whether these sizes tell a number."""
    return not isinstance(number, SizeExpr) or set(number.symbols()) <= set(at)
