"""Two views of one tensor, of which autograd sees one written: the other's gradient passes the write. Its gradient function was
kept from before, because the version counter said what it had said then."""

import torch


def program(x, y):
    x.mul_(2)
    return x + y


def inputs():
    base = torch.arange(8.0).requires_grad_() * 1
    return base[:4], base[2:6]
