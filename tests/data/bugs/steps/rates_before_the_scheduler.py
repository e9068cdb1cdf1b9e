"""A step read the rate that its scheduler holds before it stepped it, as loggers do: it was refused."""

import torch

PROGRAMS = 1


def make():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x):
        rate = scheduler.get_last_lr()[0]
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return rate

    return step, ((torch.ones(2) * number,) for number in range(4)), lambda: [weight.detach().clone(), scheduler.last_epoch]
