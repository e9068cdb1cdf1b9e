"""Two columns of one buffer, of which the step writes one and reads the other, were refused as overlapping: their ranges
of addresses meet, though they share no byte."""

import torch

PROGRAMS = 1


def make():
    buffer = torch.zeros(8, 2)
    written, read = buffer[:, 0], buffer[:, 1]
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (weight * x + read + written).sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            written.add_(weight)
        return loss.detach()

    def calls():
        for number in range(5):
            read.fill_(number)
            yield (torch.arange(8.0) + number,)

    return step, calls(), lambda: [buffer.clone(), weight.detach().clone()]
