"""A tensor that autograd leads to by another way than by views (a copy into `x.detach()`) was taken for a view of `x`, and
got the gradient of one."""

import torch


def program(x):
    y = x * 1
    z = y.detach()
    z.copy_(torch.relu(y) * 3)
    return z, y


def inputs():
    return (torch.randn(3, 3, requires_grad=True),)
