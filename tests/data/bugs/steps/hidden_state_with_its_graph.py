"""A hidden state that comes with the graph of the call before was refused, though the step detaches it first."""

import torch
from torch import nn

PROGRAMS = 2


def make():
    torch.manual_seed(0)
    layer = nn.GRU(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    hidden = [torch.zeros(1, 2, 4)]

    def step(x, state):
        state = state.detach()
        made, state = layer(x, state)
        loss = made.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hidden[0] = state
        return loss.detach()

    def calls():
        held = torch.zeros(1, 2, 4, requires_grad=True)
        for number in range(4):
            state = held * 2 if number == 0 else hidden[0]
            yield torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(number)), state

    return step, calls(), lambda: [hidden[0].detach().clone(), *(p.detach().clone() for p in layer.parameters())]
