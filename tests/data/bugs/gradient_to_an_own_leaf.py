"""A result that requires gradients only because of a leaf that the program makes came back without requiring them."""

import torch

DYNAMO = False


def program(x):
    own = torch.ones_like(x).requires_grad_()
    (gradient,) = torch.autograd.grad((own * x.detach()).sum(), own)
    with torch.no_grad():
        view = x[0]
    return gradient, (view.detach() * 2), x * own


def inputs():
    return (torch.randn(3, 2, requires_grad=True),)
