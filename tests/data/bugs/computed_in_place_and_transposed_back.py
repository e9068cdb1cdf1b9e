"""New contents were computed in the memory of an input to which their transpose is copied."""

import torch


def program(x):
    x.copy_((x + 1).t())


def inputs():
    return (torch.randn(6, 6),)
