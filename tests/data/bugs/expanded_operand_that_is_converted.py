"""A kernel that converts an expanded operand to the dtype of the other reads a copy without expanded dimensions, and lays out
its result by that; a program said it by the operands as they are."""

import torch


def program(x, other):
    product, sign = x[:1] * other[:1], torch.copysign(x, other)
    return product, product.exp(), product.relu() + 1, sign, sign.exp(), torch.angle(sign + 1j)


def inputs():
    return torch.randn(2, 3, 1).expand(2, 3, 4), torch.randn(2, 4, 3, dtype=torch.float64).mT
