"""A view of an input required gradients once the input did, although the input was a view itself: then it does not."""

import torch


def program(x):
    part = x[0]
    x.requires_grad_()
    return part * torch.arange(3.0), (x * x).sum()


def inputs():
    return (torch.arange(9.0).view(3, 3).t(),)


DYNAMO = False
