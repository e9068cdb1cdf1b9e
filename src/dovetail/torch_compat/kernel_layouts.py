"""Which kernels lay out their results how, where torch's fakes do not say so: tables for `fake_layouts`.

Each line was found by comparing the operator with its fake over memory formats, transposed and broadcast operands, and
dimensions of size 1; `checks.fake_layouts` does so again for each version of torch.
"""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten

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
    _aten.replication_pad2d_backward.default: 1,
    _aten.upsample_bicubic2d.default: 0,
    _aten.upsample_bilinear2d.default: 0,
    _aten.upsample_nearest2d.default: 0,
}
VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default})
# Kernels whose results lie as an operand does, if that is dense: by its place.
ALIKE: dict[Any, int] = {
    _aten._prelu_kernel.default: 0,
    _aten.binary_cross_entropy.default: 0,
    _aten.binary_cross_entropy_backward.default: 1,
    _aten.binary_cross_entropy_with_logits.default: 1,
    _aten.flip.default: 0,
    _aten.frexp.Tensor: 0,
    _aten.full_like.default: 0,
    _aten.hardtanh.default: 0,
    _aten.huber_loss.default: 0,
    _aten.log_sigmoid_backward.default: 0,
    _aten.nan_to_num.default: 0,
    _aten.ones_like.default: 0,
    _aten.rand_like.default: 0,
    _aten.randn_like.default: 0,
    _aten.sort.default: 0,
    _aten.sort.stable: 0,
    _aten.zeros_like.default: 0,
}
# Kernels that ask `TensorIterator` for strides and are not marked as elementwise.
ITERATORS = frozenset(
    {
        _aten.complex.default,
        _aten.hardswish.default,
        _aten.lerp.Scalar,
        _aten.lerp.Tensor,
        _aten.mse_loss.default,
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
    _aten.leaky_relu_backward.default: (1, 0),
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
    _aten.glu_backward.default: _CPU,
    _aten.isin.Tensor_Scalar: _EVERYWHERE,
    _aten.isin.Tensor_Tensor: _EVERYWHERE,
    _aten.log_sigmoid_forward.default: _CPU,
    _aten.masked_fill.Scalar: _CPU,
    _aten.masked_fill.Tensor: _CPU,
    _aten.native_layer_norm.default: _CPU,
    _aten.native_layer_norm_backward.default: _CPU,
    _aten.normal.Tensor_Tensor: _EVERYWHERE,
    _aten.pow.Scalar: _EVERYWHERE,
    _aten.rrelu_with_noise.default: _CPU,
    _aten.rrelu_with_noise_functional.default: _CPU,
    _aten.tril.default: _CPU,
    _aten.triu.default: _CPU,
}
