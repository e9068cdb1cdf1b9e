"""Gradients that autograd copies once a backward has made them.

A leaf's `.grad` lies as the leaf does if that has no gaps, and in order otherwise. A gradient that lies so becomes
`.grad` itself, if nobody else has it; of any other autograd makes a copy. That is when backward has ended, and all
gradients are there.

Source: `accumulateGrad` and `obeys_layout_contract` of torch (`accumulate_grad.h`, `grad_layout_contract.h`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dovetail.ir.program import Program, TensorMeta, Value
from dovetail.ir.signature import Constant, Gradient, InputRole, Residual, Tangent
from dovetail.ir.sizes import Size, is_dense, product


def copied_gradients(forward: Program, backward: Program, leaves: Collection[int]) -> Mapping[int, TensorMeta]:
    """The places of such gradients among the outputs of backward, with the layouts of the copies.

    leaves: numbers of the inputs that are leaves of autograd's graph. None of them is taken to have a gradient yet.
    """
    held = {v for role, v in zip(backward.signature.inputs, backward.inputs, strict=True) if _is_held(role)}
    found: dict[int, TensorMeta] = {}
    for place, (role, value) in reversed([*enumerate(zip(backward.signature.outputs, backward.outputs, strict=True))]):
        if not isinstance(role, Gradient) or not isinstance(value, Value) or not value.is_tensor:
            continue
        leaf = forward.inputs[role.input] if role.input in leaves and role.wrapper is None else None
        if leaf is not None and leaf.is_tensor and leaf.tensor.shape == value.tensor.shape:
            stride = leaf.tensor.stride if _fills_its_memory(leaf.tensor) else _in_order(value.tensor)
            if value in held or not _lies_so(value.tensor, stride):
                found[place] = replace(value.tensor, stride=stride, offset=0)
        held.add(value)
    return found


def _is_held(role: InputRole) -> bool:
    """Whether autograd, or who calls it, may have an input of backward as well."""
    return isinstance(role, Tangent | Residual | Constant)


def _lies_so(meta: TensorMeta, stride: tuple[Size, ...]) -> bool:
    found = zip(meta.shape, meta.stride, stride, strict=True)
    return all(step != 0 if size == 1 else step == wanted for size, step, wanted in found)


def _in_order(meta: TensorMeta) -> tuple[Size, ...]:
    return tuple(product(meta.shape[place + 1 :]) for place in range(len(meta.shape)))


def _fills_its_memory(meta: TensorMeta) -> bool:
    """Whether the elements lie without gaps, none on another one."""
    return meta.stride == _in_order(meta) or is_dense(meta.shape, meta.stride)
