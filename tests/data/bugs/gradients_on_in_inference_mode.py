"""Inference mode turns gradients off for good: a graph that turns them on inside gave a result that required one there."""

import torch


def program(x):
    with torch.enable_grad():
        y = x * 3
    return y, x.sin()


def inputs():
    return (torch.randn(3, requires_grad=True),)


def around():
    return torch.inference_mode()
