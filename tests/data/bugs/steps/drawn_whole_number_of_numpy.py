"""Whole numbers and truth values drawn by NumPy were Python's in results, and did not overflow as NumPy's do."""

import numpy as np
import torch

PROGRAMS = 1


def make():
    np.random.seed(0)
    weight = torch.zeros(2)

    def step(x):
        drawn = np.random.permutation(9)[0]
        weight.add_(x * (drawn + 1))
        return [repr(part) for part in (drawn, drawn > 3, drawn / 2, np.random.choice([1, 2]))], (drawn + 2) ** 50 % 1000

    return step, ((torch.ones(2) * number,) for number in range(5)), lambda: [weight.clone()]
