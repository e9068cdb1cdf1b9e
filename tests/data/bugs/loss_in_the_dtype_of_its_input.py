"""Fakes give losses of two dtypes the wider one, and the kernels that of the input: native code read numbers that are not there."""

import torch
import torch.nn.functional as F


def program(x, target):
    means = [loss(x, target) for loss in (F.huber_loss, F.soft_margin_loss)]
    each = F.huber_loss(x, target, reduction="none")
    return *means, means[0] * 0.1 + x.sum(), means[1].exp(), each, each * 2 + x


def inputs():
    return torch.randn(40), torch.randn(40, dtype=torch.float64)
