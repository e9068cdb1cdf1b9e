"""The last bits of a complex quotient depend on whether it lies where the dividend lies: `div_` was replaced by `div`."""

import torch


def program(x, y, z):
    return x.div_(y), (z * 2).addcmul_(x, y)


def inputs():
    return tuple(torch.randn(67, dtype=torch.complex64) for _ in range(3))
