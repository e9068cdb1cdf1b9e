"""Dynamo says of a truth value off a tensor that it is a whole number from 0 to 1; what says so was not understood."""

import torch


def program(x, is_wanted, is_last):
    return x * is_wanted.item(), x.sin() * is_last.item()


def inputs():
    return torch.randn(3, requires_grad=True), torch.tensor(True), torch.tensor(False)


def around():
    return torch._dynamo.config.patch(capture_scalar_outputs=True)
