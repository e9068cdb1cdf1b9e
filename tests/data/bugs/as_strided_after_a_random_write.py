"""The new contents of a written input lie at the start of their storage; `as_strided`, which counts from there, was made
again as if they lay where the input lies."""

import torch


def program(x):
    x.normal_()
    return x.as_strided((3,), (1,), 7).relu()


def inputs():
    return (torch.randn(2, 2, 3)[1],)
