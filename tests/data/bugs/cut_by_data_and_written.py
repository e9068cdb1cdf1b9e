"""Working in place dropped the part that data cut off, which nothing read in the end, and with it the name of its size."""

import torch

DYNAMO = False


def program(x, count):
    y = x.clone()
    y[: count.item()].add_(1)
    return y * 2


def inputs():
    return torch.arange(12.0).view(6, 2).requires_grad_(), torch.tensor(4)
