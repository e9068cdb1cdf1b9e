"""A write that no version counter shows, to an input that shares bytes with one whose counter moves: whether the first one's
counter moves is a matter of the call."""

import torch


def program(x, y):
    y.data.mul_(2)
    part = x.narrow(-1, 0, 1).clone()
    x.sigmoid_()
    return part


def inputs():
    base = torch.arange(4.0).requires_grad_() * 1
    return base, base.data[0:4]
