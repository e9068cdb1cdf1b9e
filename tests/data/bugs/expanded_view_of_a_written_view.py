"""A view of an expanded view of an input that autograd sees written: its new contents were copied into expanded memory, which
torch refuses."""

import torch


def program(x, y):
    wide = x.expand(2, *x.shape)
    x.masked_fill_(x > 0, 2)
    return wide.view_as(wide) + y.sum()


def inputs():
    base = torch.arange(-6.0, 6.0).requires_grad_() * 1
    return base[:4], base[2:6]
