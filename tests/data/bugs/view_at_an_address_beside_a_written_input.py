"""A view that `as_strided` makes beside its input came back as a copy, where the input is written."""

import torch


def program(x):
    view = x.flatten().as_strided((2, 2), (1, 1), 0)
    x.mul_(2)
    return view


def inputs():
    return (torch.arange(20.0)[2:11].view(3, 3),)


def finish(results):
    results.copy_(results.clone())
    storage = torch.empty(0).set_(results.untyped_storage(), 0, (20,))
    storage.fill_(7)
