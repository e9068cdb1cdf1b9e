"""The gradient of a batch norm over rows was taken to lie in columns, like what arrives, and was read so."""

import torch


def program(x, weight):
    made = torch.nn.functional.batch_norm(x @ weight, None, None, training=True)
    return made.t().contiguous().exp().sum()


def inputs():
    return torch.rand(8, 4), torch.rand(4, 4, requires_grad=True)
