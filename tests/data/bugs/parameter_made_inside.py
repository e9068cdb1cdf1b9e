"""A parameter that the function makes came back as a tensor of another class, and one without gradients as any tensor."""

import torch
from torch import nn

DYNAMO = False


def program(x):
    made = nn.Parameter(x.detach() * 2)
    frozen = nn.Parameter(x.detach(), requires_grad=False)
    return made, frozen, nn.Parameter(torch.arange(3), requires_grad=False), made.detach() + x


def inputs():
    return (torch.randn(3, requires_grad=True),)
