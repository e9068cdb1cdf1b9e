"""`aten.unique_consecutive` was called as the method of that name, which is written in Python and returns fewer results."""

import torch


def program(x):
    return torch.unique_consecutive(x) * 2, *torch.unique_consecutive(x, return_inverse=True)


def inputs():
    return (torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 1.0]),)
