"""Under a default device, asking torch for it made a tensor, which the recording took for one of the program's."""

import torch


def program(x):
    return x + torch.tensor([1.0, 2.0, 3.0])


def inputs():
    return (torch.randn(3, requires_grad=True),)


def around():
    return torch.device("cpu")
