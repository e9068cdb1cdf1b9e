"""A dictionary whose order and whose values change in one step kept its order."""

import torch

PROGRAMS = 1
EAGER_CALLS = 1


def make():
    held = {"first": 0, "second": 0}

    def step(x):
        held["first"] = held.pop("first") + 1
        held["second"] += 1
        return x * next(iter(held.values()))

    def state():
        return [torch.tensor(list(held.values())), torch.tensor(list(map(len, held)))]

    return step, ((torch.ones(2) * number,) for number in range(5)), state
