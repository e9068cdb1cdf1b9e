"""A partial whose `__setstate__` gives it another function or other arguments: the step went on with those of before."""

import functools

import torch

PROGRAMS = 3


def make():
    weight = torch.ones(3)
    scaled = functools.partial(torch.mul, other=2.0)

    def step(x):
        weight.add_(scaled(x))
        return weight * 1

    def calls():
        for n in range(6):
            if n == 2:
                scaled.__setstate__((torch.mul, (), {"other": 5.0}, {}))
            if n == 4:
                scaled.__setstate__((torch.sub, (), {"other": 5.0}, {}))
            yield (torch.full((3,), float(n)),)

    return step, calls(), lambda: [weight.clone()]
