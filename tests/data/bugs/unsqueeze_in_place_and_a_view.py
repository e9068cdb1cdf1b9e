"""After `unsqueeze_` no tensor object stands for the storage's first value any more, and returning two tensors on that
storage failed with a KeyError."""

import torch


def program(x):
    y = x @ x
    y.unsqueeze_(0)
    return y[0], y


def inputs():
    return (torch.randn(2, 2, requires_grad=True),)
