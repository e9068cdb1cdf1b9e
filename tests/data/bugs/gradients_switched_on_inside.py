"""Called without gradients, a program with a region that has them gave results and views that nobody could differentiate;
a write that autograd follows there was carried out unseen."""

import torch


def around():
    return torch.no_grad()


def program(x, b):
    with torch.enable_grad():
        y = x.sin()
        view = x[1:]
        b.mul_(x)
    return y, view, x * 3


def inputs():
    return torch.randn(3, requires_grad=True), torch.randn(3)
