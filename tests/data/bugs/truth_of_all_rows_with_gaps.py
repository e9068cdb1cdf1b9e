"""One truth value chose among rows with gaps between them: a loop over such rows has no columns, and none was made."""

import torch


def program(x, flag):
    left = x[:, :5] * 2
    return torch.where(flag, left, x[:, 4:]).exp(), torch.where(flag, x[:, 1:] + 1, 3.0)


def inputs():
    return torch.randn(9, 9, requires_grad=True), torch.tensor(True)
