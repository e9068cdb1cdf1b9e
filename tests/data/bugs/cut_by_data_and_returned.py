"""A view of an argument whose size data decide was no result that a program could hand out."""

import torch

DYNAMO = False


def program(x, count):
    n = count.item()
    return x[:n], x[n:].view(-1), x[:, : n - 2] * 2


def inputs():
    return torch.arange(12.0).view(6, 2).requires_grad_(), torch.tensor(4)
