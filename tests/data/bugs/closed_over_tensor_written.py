"""A write to a tensor that the function closes over was carried out while the function was recorded, and once more when it
ran."""

import torch

DYNAMO = False
_count = torch.zeros(2)


def program(x):
    _count.add_(1)
    return x * _count


def inputs():
    _count.zero_()
    return (torch.randn(3, 2, requires_grad=True),)
