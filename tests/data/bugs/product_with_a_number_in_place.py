"""In bfloat16, `mul_(number)` rounds otherwise than `mul(number)`: the backward of `addmm` was run in place, and was off."""

import torch


def program(x, a, b):
    return torch.addmm(x, a, b, beta=0.2, alpha=0.6)


def inputs():
    return tuple(torch.randn(9, 9).bfloat16().requires_grad_() for _ in range(3))
