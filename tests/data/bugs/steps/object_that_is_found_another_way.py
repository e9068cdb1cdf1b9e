"""The object whose attribute the step sets is held twice. While the step was recorded the other holder was read as well,
from which the attribute is then called by another path: `KeyError` when the program was bound.
"""

import torch
from torch import nn

PROGRAMS = 1
NAME = "config"


class Config:
    def __init__(self):
        self.kind = None
        self.factor = 3


class Inner(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) * getattr(self, NAME).factor  # no code names it


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner(Config())
        self.config = self.inner.config

    def forward(self, x):
        assert self.config.factor  # before the first weight is met
        out = self.inner(x)
        if self.config.kind is None:
            self.config.kind = "sum"
        return out.sum() if self.config.kind == "sum" else out.mean()


def make():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = net(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def calls():
        for seed in range(3):
            yield (torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)),)

    return step, calls(), lambda: [*(p.detach().clone() for p in net.parameters()), net.config.kind == "sum"]
