"""An object among the arguments has an attribute that the code does not read: backward, which is recorded by itself, was
taken for code that may have read it, and raised an error of dovetail's own inside."""

from dataclasses import dataclass

import torch


@dataclass
class Batch:
    x: torch.Tensor
    name: str


def program(x, batch):
    return (batch.x * x).sin().sum()


def inputs():
    x = torch.randn(4, 3, requires_grad=True)
    return x, Batch(x, "first")
