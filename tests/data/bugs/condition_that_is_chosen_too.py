"""A choice that reads its condition twice found a method in which the two are swapped, and later choices took it."""

import torch


def program(x, y):
    large = x > 0
    first = torch.where(large, large, x)
    return first, torch.where(large, y > 0, x)


def inputs():
    return torch.tensor([1.0, 2.0, -3.0]), torch.tensor([-1.0, 1.0, 1.0])
