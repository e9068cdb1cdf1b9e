"""Modules of attention asked whether anything overrides torch's functions, and took another way than in eager mode."""

import torch
from torch import nn

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    teacher = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher(x)
        loss = (net(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    calls = ((torch.arange(80.0).view(2, 5, 8) / (40 + number),) for number in range(4))
    return step, calls, lambda: [net.weight.detach().clone()]
