"""A text of a number that the step counts was a key: the step was refused; a program is for one number."""

import torch

PROGRAMS = 3


class Counter:
    number = 3


def make():
    counter, weight = Counter(), torch.zeros(2)

    def step(x):
        counter.number += 1
        weight.add_(x)
        return {f"epoch {counter.number}": weight.sum()}

    return step, ((torch.ones(2) * number,) for number in range(4)), lambda: [weight.clone(), counter.number]
