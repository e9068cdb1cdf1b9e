"""Whether what a batch norm adds to each channel may be a term of the sum that the layer before it computes.

With s the scale of a channel, b the layer's bias, d = (b - mean) * s + beta the folded shift, S = sum |s * w * x| over
the n terms of one element, and u the unit roundoff, forward error analysis bounds the error of that element by

    eager:                        u * ((n + 1) * (S + |s * b|) + 4 * (S + |s * mean| + |beta|))
    d is a term of the sum:       u * (n + 2) * (S + |d|)               # a kernel that begins with it rounds it n times
    d is added to the sum:        u * ((n + 1) * S + 3 * (S + |d|))

The last is never above eager's by more than rounding of the weight, but costs another pass over the result. So the
shift is a term unless that bound, in the largest channel, is more than twice eager's. S depends on the input; the
statistics say how large it usually is: the sum of w * x has the mean `mean - b` and the variance `var`, and S is no
smaller. A mean of more than eight standard deviations is counted as eight: of inputs that are not just like those the
statistics were taken of, it says little.

Source: Higham, "Accuracy and Stability of Numerical Algorithms" (2nd ed., 2002), section 3.1. Cost: O(channels).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dovetail.ir.program import Value
from dovetail.passes.linear_forms import Affine
from dovetail.passes.norm_forms import BatchNorm

_TRUSTED_DEVIATIONS = 8.0
_ALLOWED = 2.0


def is_added_afterwards(norm: BatchNorm, layer: Affine, contents: Mapping[str, torch.Tensor]) -> bool:
    """Whether the shift stays out of the sum. contents: tensors by the names of values, as far as they are known.

    Without the contents of a bias or of the norm's tensors, the shift is a term. So it is in layers of 16 bits, whose
    kernels keep sums in float32.
    """
    needed = (*norm.parameters(), *(() if layer.bias is None else (layer.bias,)))
    if layer.weight.tensor.dtype.itemsize < 4 or any(value.name not in contents for value in needed):
        return False

    def read(value: Value | None, missing: float) -> torch.Tensor:
        if value is None:
            return torch.tensor(missing, dtype=torch.float64)
        return contents[value.name].detach().to("cpu", torch.float64)

    mean, var, bias = read(norm.mean, 0.0), read(norm.var, 1.0), read(layer.bias, 0.0)
    beta = read(norm.bias, 0.0)
    signed = read(norm.weight, 1.0) * (var + norm.eps).rsqrt()
    scale = signed.abs()
    offset = (mean - bias).square().minimum(_TRUSTED_DEVIATIONS**2 * var)
    size = scale * (var + offset).sqrt()
    shift = ((bias - mean) * signed + beta).abs()
    terms = _terms(layer)
    eager = (terms + 1) * (size + scale * bias.abs()) + 4 * (size + scale * mean.abs() + beta.abs())
    folded = (terms + 2) * (size + shift)
    return bool(folded.max() > _ALLOWED * eager.max())


def _terms(layer: Affine) -> int:
    """How many products are added up in one element of the result."""
    count = 1
    for dim, size in enumerate(layer.weight.tensor.shape):
        if dim != layer.weight_channel % len(layer.weight.tensor.shape):
            assert isinstance(size, int), "constants have known sizes"
            count *= size
    return count // layer.groups
