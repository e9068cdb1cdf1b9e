"""Two views of one tensor without gradient: one is written under no_grad, the other then gets a gradient. The first one's write
was carried out as if autograd had followed it, and torch took it for a leaf."""

import torch


def program(x, y, z):
    with torch.no_grad():
        z.copy_(x.clone())
    y.copy_(x + 1)
    return y


def inputs():
    memory = torch.arange(14.0)
    x = memory[0:9].view(3, 3).detach().requires_grad_()
    return x, memory.as_strided((3, 3), (3, 1), 3), memory[5:14].view(3, 3)
