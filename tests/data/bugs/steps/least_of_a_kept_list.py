"""The least of a list that the step has just added to was that of the list from before: its read went unnoticed."""

import math

import torch

PROGRAMS = 3


def make():
    total, losses, weights = torch.zeros(()), [9.0], [2.0]

    def step(x):
        total.add_(x.sum())
        losses.append(10.0 - len(losses))
        weights.append(len(x) / 2)
        return min(losses), math.prod(weights)

    return step, ((torch.ones(number + 2),) for number in range(3)), lambda: [total.clone(), list(losses), list(weights)]
