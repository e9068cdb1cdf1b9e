"""A tensor with a gradient history that the code closes over kept a history of fakes, and sent fakes to its leaf."""

import torch

HELD = {}


def program(leaf, x):
    HELD["state"].mul_(x)
    return x * 2, HELD["state"]


def inputs():
    leaf = torch.rand(3, requires_grad=True)
    HELD["state"] = leaf * 2
    return leaf, torch.rand(3, requires_grad=True)
