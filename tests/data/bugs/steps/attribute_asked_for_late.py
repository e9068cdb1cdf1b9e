"""An object that no call had read before counted as compared wholly: an attribute that came to be was not noticed."""

import torch
from torch import nn

PROGRAMS = 3


class Options:
    """Gets an attribute between two calls."""


def make():
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options = Options()
    asks = [False]

    def step(x):
        optimizer.zero_grad()
        loss = net(x).sum()
        if asks[0]:
            loss = loss * getattr(options, "factor", 2.0)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def calls():
        for number in range(8):
            asks[0] = number > 2
            if number == 5:
                options.factor = 5.0
            yield (torch.ones(1, 2) * number,)

    return step, calls(), lambda: [net.weight.detach().clone()]
