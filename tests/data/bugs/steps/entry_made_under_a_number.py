"""An entry that the first call makes under a number in an ordered dictionary was looked for under names only."""

from collections import OrderedDict

import torch

PROGRAMS = 3


def make():
    held = OrderedDict()

    def step(x):
        held[len(held)] = 1.0
        return x * next(iter(held))

    return step, ((torch.ones(2) * number,) for number in range(3)), lambda: [torch.tensor(list(held))]
