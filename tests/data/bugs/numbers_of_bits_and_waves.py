"""There was no expression of sizes for `abs`, bits of integers, decimals and functions of `math`."""

import math

import torch


def program(x, y):
    rows = y.shape[0]
    scale = abs(rows - 20) + (rows & 5) + (rows | 3) + (rows ^ 6) + round(rows / 7, 2) + round(rows * 1.5, -1)
    return x * scale * math.log2(rows) * math.sin(rows) + y[: abs(rows - 5) + 1].sum()


def inputs():
    return torch.randn(7, requires_grad=True), torch.ones(9)
