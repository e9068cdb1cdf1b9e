"""A profiler was told of the first step alone, so that its schedule never went on."""

import torch

PROGRAMS = 1


def make():
    weight = torch.ones(3)
    profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=100, warmup=1, active=1))

    def step(x):
        weight.add_(x)
        profiler.step()
        return weight.sum()

    calls = ((torch.arange(3.0) * number,) for number in range(4))
    return step, calls, lambda: [weight.clone(), profiler.step_num]
