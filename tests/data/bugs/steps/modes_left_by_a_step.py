"""Modes of torch that a step leaves set were set by eager calls and the capture only, not by later calls."""

import torch
from torch import nn

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        torch.set_grad_enabled(False)
        return loss.detach()

    def calls():
        for number in range(4):
            yield (torch.randn(5, 4, generator=torch.Generator().manual_seed(number)),)

    def state():
        seen.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)
        return [*seen, *(p.detach().clone() for p in model.parameters())]

    return step, calls(), state
