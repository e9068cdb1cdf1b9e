"""Tangents of two rows: the second one got the memory of the first, of a matrix of another size, which torch refused."""

import torch


def program(w, x, y):
    def derivative(row):
        return torch.func.jvp(lambda t: (t @ w).sum(), (row,), (torch.ones_like(row),))[1]

    return derivative(x[0]), derivative(y[0]) * derivative(x[1])


def inputs():
    torch.manual_seed(0)
    shapes = (2, 3), (5, 2), (9, 2)
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)
