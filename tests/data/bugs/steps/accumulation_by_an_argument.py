"""A whole number among the arguments led to a program for each of its values, though the step only asks it one question."""

import torch

PROGRAMS = 3


def make():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.zeros(3)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(number, x):
        (weight * x).sum().backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return number * 2

    calls = ((number, torch.arange(3.0) + number) for number in range(14))
    return step, calls, lambda: [weight.detach().clone(), weight.grad.clone()]
