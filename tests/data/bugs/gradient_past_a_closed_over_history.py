"""A leaf got the gradient twice that flows to it through a closed-over tensor with a history."""

import torch

HELD = {}


def program(leaf, x):
    return (x * leaf + HELD["state"] * 3).sum()


def inputs():
    leaf = torch.rand(3, requires_grad=True)
    HELD["leaf"], HELD["state"] = leaf, leaf * 2
    return leaf, torch.rand(3)
