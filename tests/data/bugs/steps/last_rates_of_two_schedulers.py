"""Of two schedulers of one optimizer the first was said to have left the rate that the second one left."""

import torch
from torch import nn

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x):
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        warm.step()
        decay.step()
        return loss.detach(), warm.get_last_lr(), decay.get_last_lr(), optimizer.param_groups[0]["lr"]

    calls = ((torch.randn(3, 4, generator=torch.Generator().manual_seed(number)),) for number in range(4))
    return step, calls, lambda: [p.detach().clone() for p in layer.parameters()]
