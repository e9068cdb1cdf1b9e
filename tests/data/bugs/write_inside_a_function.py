"""A custom autograd function that writes its argument: autograd follows, although the write happens with gradients off."""

import torch

DYNAMO = False


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def program(x, y):
    Double.apply(x)
    return x * y


def inputs():
    leaf = torch.arange(4.0).requires_grad_()
    return leaf * 1, torch.ones(4)
