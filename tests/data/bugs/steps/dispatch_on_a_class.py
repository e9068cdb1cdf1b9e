"""A table whose keys are tuples of objects and numbers: a number inside a key was taken for one that can be put."""

import torch
from torch import nn

PROGRAMS = 1


class Kind:
    """A key."""


def make():
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    factors = {(Kind, 3): 2.0, (Kind, 4): 3.0}

    def step(x):
        optimizer.zero_grad()
        loss = (net(x) * factors[Kind, 3]).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, ((torch.ones(1, 2) * number,) for number in range(4)), lambda: [net.weight.detach().clone()]
