"""`BatchNorm(momentum=None)`, whose momentum is one by the count of batches, led to a program for each call."""

import torch
from torch import nn

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3))
    image, plain = nn.BatchNorm2d(3, momentum=None, affine=False), nn.BatchNorm1d(3, momentum=None)
    optimizer = torch.optim.SGD([*net.parameters(), *plain.parameters()], lr=0.1)
    mean, count = torch.zeros(3), torch.zeros(())

    def step(x):
        optimizer.zero_grad()
        y = net(x)
        count.add_(1)
        own = nn.functional.batch_norm(y, mean, torch.ones(3), training=True, momentum=1 / count.item())
        loss = (plain(y) * own).square().mean() + image(y.detach().view(4, 3, 1, 1).expand(4, 3, 2, 2)).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    numbers = torch.Generator().manual_seed(1)
    calls = ((torch.randn(4, 6, generator=numbers),) for _ in range(12))
    kept = [*net.state_dict().values(), *image.state_dict().values(), *plain.state_dict().values(), mean]
    return step, calls, lambda: [x.clone() for x in kept]
