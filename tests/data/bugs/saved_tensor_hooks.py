"""Hooks on saved tensors, set by the user around a compiled call, ran on the fakes of the recording: a hook that looks
at numbers failed, and one that copies was recorded as part of the program."""

import torch


def pack(tensor):
    assert tensor.abs().max().item() < 100
    return tensor.half()


def around():
    return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.float())


def program(x):
    return x.sin() * 2


def inputs():
    return (torch.randn(5, requires_grad=True),)
