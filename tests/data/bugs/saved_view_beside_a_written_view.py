"""A view of an input is saved for backward, and another view of the same tensor is written without gradient: autograd refused
the saved view, as one that was made with gradients off."""

import torch


def program(x, y, z):
    part = x[1:]
    z.detach().add_(1)
    return y * part


def inputs():
    base = torch.arange(24.0).requires_grad_() * 1
    return base[0:8].view(2, 4), base[16:24].view(2, 4), base[8:16].view(2, 4)
