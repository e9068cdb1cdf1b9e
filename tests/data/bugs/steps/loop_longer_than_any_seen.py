"""Recording never ended where a loop waits for a number of data to be small, and goes on for longer than eager mode has shown."""

import torch

PROGRAMS = 2
EAGER_CALLS = 2


class Search:
    tolerance = 0.1


def make():
    Search.tolerance = 0.1

    def step(x):
        x, count = x + torch.rand(3) * 0.0, 0  # a draw: what is computed from it is not known
        while x.norm().item() > Search.tolerance:
            x, count = x * 0.5, count + 1
        return x, count

    def calls():
        for tolerance in (0.1, 0.1, 0.1, 0.01, 0.01, 0.01):
            Search.tolerance = tolerance
            yield (torch.ones(3),)

    return step, calls(), lambda: []
