"""Code that asks for the class of a tensor took another way than in eager mode: what is recorded is of another class."""

import torch
from torch import nn

DYNAMO = not torch.__version__.startswith("2.11.")  # whose Dynamo takes another way itself, with any backend
weight = nn.Parameter(torch.ones(3))
KINDS = {torch.Tensor: 2.0, nn.Parameter: 3.0}


def program(x):
    made = x * 2 if type(x) is torch.Tensor else x * 3
    made = made + KINDS[type(weight)] * KINDS[type(made)]
    if x.__class__ is torch.Tensor and weight.__class__ is nn.Parameter:
        made = made * 5
    if type(weight).__name__ == "Parameter" and isinstance(type(x), type) and issubclass(type(x), torch.Tensor):
        made = made - 1
    if type(x.shape[0]) is int:
        made = made * 7
    return made


def inputs():
    return (torch.randn(3),)
