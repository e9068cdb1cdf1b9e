"""Eval batch norm lays its result out by a memory format, and its fake by the input: a view of the result failed."""

import torch


def program(x, mean, variance):
    y = torch.nn.functional.batch_norm(x.transpose(1, 2), mean, variance)
    return y, y.reshape(-1), y.transpose(1, 2).flatten(1)


def inputs():
    return torch.rand(2, 5, 4), torch.rand(4), torch.rand(4)
