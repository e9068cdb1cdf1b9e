"""How many numbers `normal_` draws depends on the strides of what it writes; the functional twin wrote a contiguous tensor
and drew others, and left the generator elsewhere."""

import torch


def program(x):
    x.normal_()
    return torch.rand(3)


def inputs():
    return (torch.randn(4, 4, 6)[..., ::2],)
