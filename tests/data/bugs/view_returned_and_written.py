"""A caller could not write a result that is a view: autograd refuses views that a custom function returns."""

import torch
import torch.nn.functional as F


def program(x, weight):
    return F.conv2d(x, weight).flatten(1), (x * 2)[0]


def inputs():
    return torch.randn(2, 1, 6, 6, requires_grad=True), torch.randn(2, 1, 3, 3, requires_grad=True)


def finish(results):
    made, part = results
    made.relu_()
    part[:, 0].mul_(3)
