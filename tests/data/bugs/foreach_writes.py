"""Fake tensors do not count the writes of `_foreach_*_`: the write of an input was taken for one behind autograd's back, and
views of what was written kept their old gradient."""

import torch


def program(x, y):
    torch._foreach_add_([y], 1.0)
    v = x + 2
    w = v.t()
    torch._foreach_neg_([w])
    return w.expand_as(w), y.sum()


def inputs():
    return torch.randn(4, requires_grad=True), torch.randn(3)
