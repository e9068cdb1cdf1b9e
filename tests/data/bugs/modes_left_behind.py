"""Modes that a function sets and leaves so were lost: `torch.set_grad_enabled(False)` held only until it returned."""

import contextlib

import torch


def program(x):
    made = x * x
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    return made


def inputs():
    return (torch.randn(3, requires_grad=True),)


@contextlib.contextmanager
def around():
    yield
    try:
        assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() is torch.float64
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
