"""A loss was averaged into the memory of a dead number, which torch resized to hold every element: it warned at each
call, and took more memory than eager."""

import torch
import torch.nn.functional as F

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        h = linear(x)
        loss = F.huber_loss(h, y).sum() + F.mse_loss(h, y)
        loss.backward()
        optimizer.step()
        return loss

    calls = ((torch.ones(5, 4) * number, torch.ones(5, 3)) for number in range(3))
    return step, calls, lambda: [p.detach().clone() for p in linear.parameters()]
