"""The strides that torch's kernels give, computed as ATen computes them, dimensions of size 1 included.

Fakes take the strides of dimensions of size 1 for unimportant. They are not: `suggest_memory_format` looks at them, and
by what it says, an image of batch size 1 is read with its channels first or last.

The tables say which kernels lay out their results how, where fakes do not. `tests/ops` compares operators
with their fakes over memory formats, transposed operands and dimensions of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from dovetail.torch_compat.dispatch import Overload, schema_of, tags_of

_aten = torch.ops.aten

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
_CHANNELS_LAST = (0, 2, 3, 1)


def iterator_strides(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...]:
    """Strides of a new result of `TensorIterator`, which reads these operands in this order.

    Source: `fast_set_up`, `reorder_dimensions` and `invert_perm` in ATen/TensorIterator.cpp.
    """
    if all(own == tuple(shape) for own, _ in operands):
        strides = _fast(shape, operands)
        if strides is not None:
            return strides
    return packed_strides(
        shape, order_of_dimensions(shape, [broadcast_strides(shape, *operand) for operand in operands])
    )


def layouts_read(operands: Sequence[Any], made: torch.Tensor) -> list[Layout]:
    """How an elementwise kernel that makes a tensor reads its operands, of plain sizes; numbers come last.

    On CPU it first converts those of another dtype than the common one, each by itself, to a tensor without gaps: no
    dimension of it is expanded any more. Source: `compute_types` in ATen/TensorIterator.cpp.
    """
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    numbers: list[Layout] = [((), ())] * (len(operands) - len(tensors))
    chooses = tensors[0].dtype is torch.bool and len(tensors) == 3  # `where` converts but what it chooses from
    counted = tensors[1:] if chooses else operands
    common = elementwise_dtypes(*counted, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]
    if made.is_floating_point() and not (common.is_floating_point or common.is_complex):
        common = made.dtype
    layouts = []
    for place, one in enumerate(tensors):
        is_read_so = one.dtype is common or made.device.type != "cpu" or (chooses and not place)
        shape, stride = tuple(one.shape), one.stride()
        layouts.append((shape, stride if is_read_so else like_strides(shape, stride)))
    return [*layouts, *numbers]


def like_strides(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides of a new tensor that is to lie as another one. Source: `empty_like` in ATen/TensorFactories.cpp, and
    `infer_dense_strides` in ATen/ExpandUtils.cpp.
    """
    if _ispacked_strides(shape, stride, _by_stride(shape, stride)):
        return tuple(stride)
    return packed_strides(shape, order_of_dimensions(shape, [stride]))


def place_of_model(op: Any, args: Sequence[Any]) -> int | None:
    """The place of the operand that a kernel's result lies as, if that is dense; None where it is none."""
    if op in _ALIKE_FOR_SOME and _ALIKE_FOR_SOME[op](args[0].dtype):
        return 0
    return ALIKE.get(op)


@cache
def is_elementwise(op: Any) -> bool:
    """Whether an operator's kernel asks `TensorIterator` for the strides of its result."""
    if op in ITERATORS:
        return True
    if not isinstance(op, Overload) or torch.Tag.pointwise not in tags_of(op) or schema_of(op).is_mutable:
        return False
    return op not in OWN_WAY and schema_of(op).namespace == "aten"


def operands_read(op: Any, args: Sequence[Any]) -> list[Any]:
    """What an elementwise kernel reads: its tensors, and the numbers that it takes for tensors."""
    schema = schema_of(op)
    described = zip(args, schema.arguments, strict=False)
    meant = [one for one, told in described if isinstance(one, torch.Tensor) or told.type == "Tensor"]
    takes_number = "scalar" in schema.overload.lower() and op not in NUMBER_APART
    return [*meant, 0] if takes_number else meant


def view_strides(shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a view of another shape; None where there is none. Source: `computeStride` in ATen/TensorUtils.cpp."""
    if not shape or 0 in shape:
        return None
    found = [0] * len(wanted)
    at, step, chunk, made = len(wanted) - 1, stride[-1], 1, 1
    for dim in reversed(range(len(shape))):
        chunk *= shape[dim]
        if dim > 0 and (shape[dim - 1] == 1 or stride[dim - 1] == chunk * step):
            continue
        while at >= 0 and (made < chunk or wanted[at] == 1):
            found[at] = made * step
            made *= wanted[at]
            at -= 1
        if made != chunk:
            return None
        if dim > 0:
            step, chunk, made = stride[dim - 1], 1, 1
    return tuple(found) if at == -1 else None


def expand_strides(
    shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int], made: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of a tensor that is expanded to symbolic sizes; None where `made` has them. Made by fakes: these differ
    where a size is 1. Source: `inferExpandGeometry` in ATen/ExpandUtils.cpp."""
    found = list(made)
    for dim in reversed(range(len(wanted))):
        own = dim - (len(wanted) - len(shape))
        if type(wanted[dim]) is int and wanted[dim] == 1:
            found[dim] = 0 if not shape else stride[own] if own >= 0 else wanted[dim + 1] * found[dim + 1]
    differs = any(type(a) is type(b) is int and a != b for a, b in zip(found, made, strict=True))
    return tuple(found) if differs else None


def _fast(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...] | None:
    ranges = list(reversed(range(len(shape))))
    if all(_ispacked_strides(own, stride, ranges) for own, stride in operands):
        return packed_strides(shape, ranges)
    last = list(reversed(_CHANNELS_LAST))
    if len(shape) == 4 and all(_ispacked_strides(own, stride, last) for own, stride in operands):
        return packed_strides(shape, last)
    first = operands[0][1]
    if all(stride == first for _, stride in operands) and _ispacked_strides(shape, first, _by_stride(shape, first)):
        return first
    return None


def _by_stride(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    return sorted(range(len(shape)), key=lambda dim: (stride[dim], shape[dim]))


def _ispacked_strides(shape: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    """Whether the dimensions, from the fastest on, follow each other without gaps; those of size 1 do not count."""
    wide = [dim for dim in order if shape[dim] != 1]
    steps = [1, *(stride[dim] * shape[dim] for dim in wide)]
    return all(stride[dim] == step for dim, step in zip(wide, steps, strict=False))


def packed_strides(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """The strides of dimensions that follow each other without gaps, in this order from the fastest on."""
    found, step = [0] * len(shape), 1
    for dim in order:
        found[dim] = step
        step *= max(shape[dim], 1) if type(shape[dim]) is int else torch.sym_max(shape[dim], 1)
    return tuple(found)


def broadcast_strides(shape: Sequence[int], own: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The strides of an operand as it is read for a wider result: 0 where it is repeated."""
    missing = len(shape) - len(own)
    wide = zip(own, stride, shape[missing:], strict=True)
    return (*[0] * missing, *(0 if size == 1 and wanted != 1 else step for size, step, wanted in wide))


def order_of_dimensions(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions, from the fastest on, as operands with these strides tell `TensorIterator`."""
    order = list(reversed(range(len(shape))))
    for position in range(1, len(order)):
        place = position
        for other in reversed(range(position)):
            comes_after = _compare(shape, operands, order[other], order[place])
            if comes_after < 0:
                break
            if comes_after > 0:
                order[other], order[place] = order[place], order[other]
                place = other
    return order


def _compare(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """1 if dimension `a` is to be slower than `b`, -1 if it is faster, 0 if nothing tells."""
    for stride in operands:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return 1 if stride[a] > stride[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0


# Kernels that lay out their first result in the memory format of an operand, by its place.
IN_MEMORY_FORMAT: dict[Any, int] = {
    _aten.batch_norm_backward.default: 1,
    _aten.channel_shuffle.default: 0,
    _aten.max_unpool2d.default: 0,
    _aten.native_batch_norm_backward.default: 1,
    _aten.native_channel_shuffle.default: 0,
    _aten.native_group_norm.default: 0,
    _aten.native_group_norm_backward.default: 1,
    _aten.reflection_pad2d_backward.default: 1,
    _aten.reflection_pad3d.default: 0,
    _aten.reflection_pad3d_backward.default: 1,
    _aten.replication_pad2d_backward.default: 1,
    _aten.replication_pad3d.default: 0,
    _aten.replication_pad3d_backward.default: 1,
    _aten.upsample_bicubic2d.default: 0,
    _aten.upsample_bilinear2d.default: 0,
    _aten.upsample_nearest2d.default: 0,
}
VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default})
# Kernels whose results lie as an operand does, if that is dense: by its place.
ALIKE: dict[Any, int] = {
    _aten._conj_physical.default: 0,
    _aten._prelu_kernel.default: 0,
    _aten.binary_cross_entropy.default: 0,
    _aten.binary_cross_entropy_backward.default: 1,
    _aten.binary_cross_entropy_with_logits.default: 1,
    _aten.deg2rad.default: 0,
    _aten.fill.Scalar: 0,
    _aten.fill.Tensor: 0,
    _aten.flip.default: 0,
    _aten.frexp.Tensor: 0,
    _aten.full_like.default: 0,
    _aten.hardtanh.default: 0,
    _aten.huber_loss.default: 0,
    _aten.log_sigmoid_backward.default: 0,
    _aten.nan_to_num.default: 0,
    _aten.ones_like.default: 0,
    _aten.rad2deg.default: 0,
    _aten.rand_like.default: 0,
    _aten.randn_like.default: 0,
    _aten.sort.default: 0,
    _aten.sort.stable: 0,
    _aten.zeros_like.default: 0,
}
# The same, for some dtypes of the first operand.
_ALIKE_FOR_SOME: dict[Any, Callable[[torch.dtype], bool]] = {
    _aten.abs.default: lambda dtype: dtype.is_complex,
    _aten.isinf.default: lambda dtype: not dtype.is_complex and not dtype.is_floating_point,
}
# Losses in the dtype of their first operand, whatever the second one has; fakes take the wider of both.
DTYPE_OF_FIRST = frozenset({_aten.huber_loss.default, _aten.soft_margin_loss.default})
# Kernels that ask `TensorIterator` for strides and are not marked as elementwise.
ITERATORS = frozenset(
    {
        _aten.complex.default,
        _aten.hardswish.default,
        _aten.lerp.Scalar,
        _aten.lerp.Tensor,
        _aten.mse_loss.default,
        _aten.polar.default,
        _aten.smooth_l1_loss.default,
    }
)
# Elementwise kernels whose number is no operand.
NUMBER_APART = frozenset({_aten.lerp.Scalar, _aten.pow.Tensor_Scalar})
# Elementwise kernels that do not ask `TensorIterator` for strides.
OWN_WAY = frozenset(
    {
        _aten.clone.default,
        _aten.deg2rad.default,
        _aten.frexp.Tensor,
        _aten.hardtanh.default,
        _aten.isinf.default,
        _aten.ldexp.Tensor,
        _aten.masked_fill.Scalar,
        _aten.masked_fill.Tensor,
        _aten.mvlgamma.default,
        _aten.nan_to_num.default,
        _aten.rad2deg.default,
    }
)
# Elementwise kernels whose fakes read the operands in another order: by their places, in the order of the kernel.
ELEMENTWISE: dict[Any, tuple[int, ...]] = {
    _aten._prelu_kernel_backward.default: (1, 2, 0),
    _aten.copysign.Tensor: (0, 1),
    _aten.div.Tensor_mode: (0, 1),
    _aten.elu_backward.default: (0, 5),
    _aten.floor_divide.default: (0, 1),
    _aten.hardsigmoid_backward.default: (0, 1),
    _aten.hardswish_backward.default: (0, 1),
    _aten.hardtanh_backward.default: (0, 1),
    _aten.heaviside.default: (0, 1),
    _aten.leaky_relu_backward.default: (1, 0),
    _aten.logaddexp.default: (0, 1),
    _aten.logaddexp2.default: (0, 1),
    _aten.logical_and.default: (0, 1),
    _aten.logical_or.default: (0, 1),
    _aten.logical_xor.default: (0, 1),
    _aten.logit_backward.default: (0, 1),
    _aten.mish_backward.default: (0, 1),
    _aten.native_dropout_backward.default: (0, 1),
    _aten.soft_margin_loss_backward.default: (2, 1),
    _aten.softplus_backward.default: (0, 1),
    _aten.special_xlog1py.default: (0, 1),
    _aten.threshold_backward.default: (1, 0),
    _aten.xlogy.Tensor: (0, 1),
}
# Kernels that give a contiguous tensor, unless what they are the gradient of is smaller than that.
LOSSES: dict[Any, tuple[int, ...]] = dict.fromkeys(
    (
        _aten.huber_loss_backward.default,
        _aten.mse_loss_backward.default,
        _aten.smooth_l1_loss_backward.default,
    ),
    (1, 2, 0),
)
# Kernels that give contiguous tensors, whatever they read: on which devices.
_CPU, _EVERYWHERE = ("cpu",), ("cpu", "cuda")
CONTIGUOUS: dict[Any, tuple[str, ...]] = {
    _aten._log_softmax.default: _CPU,
    _aten._log_softmax_backward_data.default: _EVERYWHERE,
    _aten._softmax.default: _CPU,
    _aten._softmax_backward_data.default: _CPU,
    _aten._standard_gamma.default: _EVERYWHERE,
    _aten.glu_backward.default: _CPU,
    _aten.isin.Tensor_Scalar: _EVERYWHERE,
    _aten.isin.Tensor_Tensor: _EVERYWHERE,
    _aten.log_sigmoid_forward.default: _CPU,
    _aten.masked_fill.Scalar: _CPU,
    _aten.masked_fill.Tensor: _CPU,
    _aten.native_layer_norm.default: _CPU,
    _aten.native_layer_norm_backward.default: _CPU,
    _aten.normal.Tensor_Tensor: _EVERYWHERE,
    _aten.normal.float_Tensor: _EVERYWHERE,
    _aten.poisson.default: _EVERYWHERE,
    _aten.pow.Scalar: _EVERYWHERE,
    _aten.rrelu_with_noise.default: _CPU,
    _aten.rrelu_with_noise_functional.default: _CPU,
    _aten.tril.default: _CPU,
    _aten.triu.default: _CPU,
}
