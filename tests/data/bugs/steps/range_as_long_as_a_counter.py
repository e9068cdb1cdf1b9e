"""The step counts, and makes a tensor of as many elements: the length was a number that the program took as an input, but
kept the length of its capture."""

import torch

PROGRAMS = 3


class State:
    count = 0


def make():
    state = State()
    weight = torch.ones(1)

    def step(x):
        state.count += 1
        weight.add_(torch.arange(state.count).sum() * x)
        return weight.clone()

    return step, ((torch.ones(1),) for _ in range(5)), lambda: [weight.clone(), state.count]
