"""Moments that the first call lays on one memory, beside a number of the data, were unknown before the second call."""

import torch
from torch import nn

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    weights = list(layer.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        with torch.no_grad():
            if "m" not in optimizer.state[weights[0]]:
                flat = torch.zeros(20)
                for weight, part in zip(weights, flat.split([16, 4])):
                    optimizer.state[weight]["m"] = part.view_as(weight)
            for weight in weights:
                state = optimizer.state[weight]
                state["size"] = weight.norm().item()
                weight.sub_(state["m"].mul_(0.9).add_(weight.grad), alpha=0.1)
        return loss.detach()

    def calls():
        for number in range(4):
            yield (torch.randn(3, 4, generator=torch.Generator().manual_seed(number)),)

    def state():
        held = [optimizer.state[weight] for weight in weights]
        return [*(p.detach().clone() for p in weights), *((h["m"].clone(), h["size"]) for h in held)]

    return step, calls(), state
