"""A comparison read a view of written memory: its node was made then, and gradients were added in another order."""

import torch


def program(x, w):
    y = x * w
    part, turned = y[1:], y.t()
    part.diagonal().mul_(0.5)
    chosen = torch.where(turned > 0, turned, y.mean())
    return part.cumsum(0) * 1, chosen * chosen


def inputs():
    torch.manual_seed(3)
    return torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
