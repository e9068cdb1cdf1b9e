"""A list of numbers from which each call takes one ended with an error of Python's, as its last place was gone."""

import torch

PROGRAMS = 5


def make():
    weights, scales = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], torch.ones(2)

    def step(x):
        scales.mul_(weights.pop(0))
        weights[0] = weights[0] + 0.25
        return x * scales

    return step, ((torch.ones(2) * number,) for number in range(5)), lambda: [torch.tensor(weights), scales.clone()]
