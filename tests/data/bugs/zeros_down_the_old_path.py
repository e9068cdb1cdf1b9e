"""The write to an input sent zeros down its old gradient path, which made +0 of a gradient of -0 and laid it out anew."""

import torch


class ShowSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.copysign(torch.ones_like(gradient), gradient)


def program(leaf, x):
    x.mul_(-0.0)
    return x


def inputs():
    leaf = torch.rand(3, 2, requires_grad=True)
    return leaf, ShowSign.apply(leaf)
