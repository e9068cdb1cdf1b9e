"""Functions of NumPy, and those built in, that have one name were mixed up in a program: `np.round` and `round`."""

import numpy as np
import torch

PROGRAMS = 1


def make():
    weight = torch.zeros(2)

    def step(x):
        weight.add_(x)
        mean = weight.mean().item() / 3
        return float(np.round(mean, 3)), round(mean, 1), float(np.max([mean, 1.0])), max(mean, 2.0), sum([mean, 2])

    return step, ((torch.ones(2) * number,) for number in range(4)), lambda: [weight.clone()]
