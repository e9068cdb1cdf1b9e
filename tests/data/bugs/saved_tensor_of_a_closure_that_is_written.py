"""A second backward was refused, as if the closed-over tensor that it needs had been written since it was saved."""

import torch

HELD = {}


def program(x):
    HELD["count"].add_(1)
    return x * HELD["count"]


def finish(results):
    results.sum().backward(retain_graph=True)


def inputs():
    HELD["count"] = torch.ones(3)
    return (torch.rand(3, requires_grad=True),)
