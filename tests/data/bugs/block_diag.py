"""`torch.block_diag` is a Python function around the binding of its name: the generated code called it with one list."""

import torch


def program(x, y):
    return torch.block_diag(x, y)


def inputs():
    return torch.randn(2, 3, requires_grad=True), torch.randn(1, 4)
