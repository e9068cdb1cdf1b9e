"""Torch took a number less itself for 0, and one times 0, which is NaN where the data are infinite; and it put sums of
numbers off tensors in order, which rounds otherwise."""

import torch

DYNAMO = False


def program(x, y):
    a, b = x.sum().item(), y.sum().item()
    return (torch.ones(2) * (a - a)).isnan(), (torch.ones(2) * (a * 0)).isnan(), y * ((b + b * 0.1 + b * 0.2) * 3)


def inputs():
    return torch.tensor([float("inf")]), torch.randn(7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
