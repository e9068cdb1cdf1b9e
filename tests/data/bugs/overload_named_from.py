"""The text of a program named the overload `random_.from` as an attribute, which is no Python: `from` is a keyword."""

import torch

DYNAMO = False


def program(x):
    return x.random_(0, 5).clone(), torch.rand(2)


def inputs():
    return (torch.randn(3, 2),)
