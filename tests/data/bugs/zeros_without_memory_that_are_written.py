"""The gradient of `sgn` is zeros without memory: backward wrote into them, and left out copies, which read otherwise."""

import torch


def program(x):
    y = x * 2
    y[..., 0] = 0.9
    return torch.sgn(y), torch.sgn(x * 3) + x


def inputs():
    return (torch.randn(4, 3, requires_grad=True),)
