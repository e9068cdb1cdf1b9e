"""The transposition was repeated after `requires_grad_()`, where autograd refuses it: the tensor is a leaf by then."""

import torch


def program(x):
    x.t_()
    x.requires_grad_()
    return x * torch.arange(9.0).view(3, 3)


def inputs():
    return (torch.randn(3, 3),)


DYNAMO = False
