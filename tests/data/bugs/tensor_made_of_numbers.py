"""What `torch.tensor(...)` makes was one constant for all calls: a running sum began where the last call had ended."""

import torch


def program(x):
    total = torch.tensor(0.0)
    total += x.sum()
    weights = x.new_tensor([1.0, 2.0])
    weights.add_(1)
    return total, weights, x * weights


def inputs():
    return (torch.randn(3, 2, requires_grad=True),)
