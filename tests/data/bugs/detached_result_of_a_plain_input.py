"""`x.detach()` came back as a view of `x` where `x` needed no gradient: what was done to `x` later was done to it, too."""

import torch


def program(x):
    return x, x.detach(), x.detach()[1:]


def inputs():
    return (torch.ones(3),)


def finish(results):
    x, *detached = results
    for result in detached:
        result.requires_grad_()
    x.mul_(torch.full((3,), 2.0, requires_grad=True))
    for result in detached:
        result.requires_grad_(False)
