"""The first call, in eager mode, failed: the mode that looks at it took no operators over subgraphs."""

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

PROGRAMS = 1


def make():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        chosen = torch.cond(x.sum() > 0, lambda h: h.sin(), lambda h: h.cos(), (model(x),))
        _, sums = scan(lambda c, h: (c + h, (c * h).clone()), torch.zeros(4), chosen, dim=0)
        with torch.no_grad():
            start = (torch.tensor(0), chosen.detach())
            _, scale = while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * 1.1), start)
        loss = (sums * scale).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def calls():
        for number in range(4):
            yield (torch.randn(5, 4, generator=torch.Generator().manual_seed(number)),)

    return step, calls(), lambda: [p.detach().clone() for p in model.parameters()]
