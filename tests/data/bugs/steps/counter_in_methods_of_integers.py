"""Methods of integers on a number that the step counts: torch's symbols lack them, and rounded to tens as if to ones."""

import torch

PROGRAMS = 1


class Counter:
    number = 3


def make():
    counter, weight = Counter(), torch.zeros(2)

    def step(x):
        counter.number += 1
        number = counter.number
        weight.add_(x * (~number).bit_count())
        return round(number * 37, -1), number.real, pow(3, number, 7), divmod(100, number)

    return step, ((torch.ones(2) * number,) for number in range(5)), lambda: [weight.clone(), counter.number]
