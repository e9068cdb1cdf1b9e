"""A size kept in an attribute, and taken away again, was made as any tuple is, and then looked into as one."""

from types import SimpleNamespace

import torch

PROGRAMS = 2


def make():
    held = SimpleNamespace(size=None)

    def step(x):
        held.size = x.shape if held.size is None else None
        return x * (2 if held.size else 3)

    def state():
        assert held.size is None or type(held.size) is torch.Size
        return [torch.tensor(held.size or ())]

    return step, ((torch.ones(2) * number,) for number in range(5)), state
