"""A number drawn from an array of NumPy, or read from one, was returned as a float of Python's."""

import numpy as np
import torch

PROGRAMS = 1


def make():
    np.random.seed(0)
    total, kept = torch.zeros(()), []

    def step(x):
        drawn = np.random.rand(3)
        total.add_(x.sum() * drawn[0])
        kept.append(drawn.mean() * 2)
        return drawn[1]

    def state():
        return [total.clone(), [(float(number), type(number).__name__) for number in kept]]

    return step, ((torch.ones(2) * number,) for number in range(3)), state
