"""One of several objects was chosen at random: the step was refused, as if it computed what it chooses from."""

import random

import torch

PROGRAMS, EAGER_CALLS = 2, 1


def make():
    random.seed(0)
    weight, kept = torch.ones(2), [(torch.ones(2), torch.sin), (torch.ones(2) * 2, torch.cos)]

    def step(x):
        other, function = random.choice(kept)
        weight.add_(function(x) * other)
        return weight.sum()

    return step, ((torch.ones(2) * number,) for number in range(12)), lambda: [weight.clone(), random.getstate()]
