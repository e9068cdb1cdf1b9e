"""A list that each call sorts, and takes from, ended with an error of Python's before it was empty."""

import torch

PROGRAMS = 6


def make():
    left = [5, 4, 3, 2, 1]

    def step(x):
        left.sort()
        return x * (left.pop(0) if left else 9)

    return step, ((torch.ones(2) * number,) for number in range(8)), lambda: [torch.tensor(left)]
