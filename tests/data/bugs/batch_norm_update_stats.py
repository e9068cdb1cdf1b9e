"""`batch_norm_update_stats` writes the running statistics without saying so in its schema; the write was lost."""

import torch


def program(x, mean, var):
    x = x * 2
    mean = mean + 0
    torch.batch_norm_update_stats(x, mean, var, 0.1)
    return mean * 2


def inputs():
    return torch.randn(4, 3), torch.zeros(3), torch.ones(3)
