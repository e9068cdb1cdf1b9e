"""A context variable that the step sets and resets was taken for a change that no program can make."""

from contextvars import ContextVar

import torch
from torch import nn

PROGRAMS = 1
COLLECTED = ContextVar("collected", default=None)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        if COLLECTED.get() is not None:
            COLLECTED.get()["hidden"] = y
        return y.sin()


def make():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        token = COLLECTED.set({})
        try:
            loss = net(x).sum() + COLLECTED.get()["hidden"].square().sum()
        finally:
            COLLECTED.reset(token)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, ((torch.ones(2, 3) / (1 + number),) for number in range(4)), lambda: [net.linear.weight.detach().clone()]
