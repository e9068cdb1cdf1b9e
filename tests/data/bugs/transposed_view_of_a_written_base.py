"""The gradient of a base that was written after the view was made got the strides of the view: a later sum rounded otherwise."""

import torch


def program(x, w):
    y = x * w - w.sum()
    view = y.t()
    y.mul_(2)
    return view.square().mean()


def inputs():
    return torch.randn(7, 13, requires_grad=True), torch.randn(7, 13, requires_grad=True)
