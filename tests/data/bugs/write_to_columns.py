"""Writes to parts with gaps were computed into memory of their own and copied."""

import torch


def program(x):
    made = x * 2
    made[:, :-1].add_(1)
    made.t()[2:, ::2].tanh_()
    made.diagonal().mul_(0.5)
    made.view(4, -1, 4)[:, 1:, ::2].sub_(0.25)
    return made


def inputs():
    return (torch.randn(8, 8),)
