"""A function imported by its name (`from math import exp`) was refused, and was not the one that `math` has."""

import math
from math import exp

import torch

PROGRAMS = 1


def make():
    seen = []

    def step(x):
        seen.append(exp(x.mean().item()))
        return exp is math.exp

    return step, ((torch.full((2,), number / 4),) for number in range(3)), lambda: list(seen)
