"""Averages that a step makes in a dictionary, which somebody clears between calls: the call after that was refused."""

import torch

PROGRAMS = 2
EAGER_CALLS = 0


class Average:
    def __init__(self):
        self.total, self.count = 0.0, 0


def make():
    averages = {}
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        loss = (weight * x).sum()
        if "loss" not in averages:
            averages["loss"] = Average()
        averages["loss"].total += loss.item()
        averages["loss"].count += 1
        return loss.detach()

    def calls():
        for number in range(9):
            if number % 3 == 0:
                averages.clear()
            yield (torch.full((3,), float(number)),)

    return step, calls(), lambda: [(key, found.total, found.count) for key, found in averages.items()]
