"""A parameter that requires no gradient was seen as a plain tensor: code that asks for its class went another way."""

import torch
from torch import nn


def program(x, weight):
    return x * (2 if isinstance(weight, nn.Parameter) else 3) + weight


def inputs():
    return torch.randn(3, requires_grad=True), nn.Parameter(torch.ones(3), requires_grad=False)
