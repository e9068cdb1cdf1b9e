"""A list that calls grow and sort, and that is cleared between them, ended with an error of Python's."""

import torch

PROGRAMS = 8
EAGER_CALLS = 2


def make():
    losses = []

    def step(x):
        losses.append(round(x.sum().item(), 2))
        losses.sort()
        return losses[0]

    def calls():
        torch.manual_seed(0)
        for number in range(14):
            if number in (4, 5, 9):
                losses.clear()
            if number == 12:
                del losses[1:]
            yield (torch.randn(2),)

    return step, calls(), lambda: [torch.tensor(losses)]
