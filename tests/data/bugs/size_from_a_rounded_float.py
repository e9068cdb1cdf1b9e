"""A count of data that was multiplied or divided, and rounded, gave tensors of one and the same size in every call: while
the program was recorded, operators made a traced number of torch's symbol, and what stood for the count was its size."""

import math

import torch


def program(x):
    count, total = (x > 0).sum().item(), x.abs().sum().item()
    halves = torch.zeros(int(count / 2)) + x.sum()
    return halves, torch.ones(math.ceil(total * 1.5)) * x[0], x[: int(total)] * 2, torch.zeros(math.trunc(total), 2) + x[1]


def inputs():
    return (torch.tensor([2.5, 1.0, -0.3, 0.5, 0.1, 0.1, 0.2]),)


def around():
    return torch._dynamo.config.patch(capture_scalar_outputs=True)
