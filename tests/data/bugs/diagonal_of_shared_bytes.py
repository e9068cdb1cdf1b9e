"""`fill_diagonal_` addresses the storage, and the input is a view of bytes that another dtype shares: offsets are counted in
other units there."""

import torch


def program(x, y):
    x.sub_(1)
    x.fill_diagonal_(1)
    return y + 1


def inputs():
    base = torch.arange(13.0).view(torch.int32)
    x = base[5:13].view(2, 4)
    return x, x.detach().view(torch.float32)
