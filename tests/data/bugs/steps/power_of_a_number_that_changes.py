"""A number to the power of a tensor, under a gradient: the formula of the gradient asks for a plain number, so that the
step raised once the number had changed and had become an input."""

import torch

PROGRAMS = 5


def make():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(base, x):
        optimizer.zero_grad()
        (base**weight * x).sum().backward()
        optimizer.step()

    return step, ((1.5 + number, torch.ones(3)) for number in range(5)), lambda: [weight.detach().clone()]
