"""What was copied into an input was read there by a view that counts from the start of memory, not of the input."""

import torch


def program(x):
    part = x.as_strided((2,), (1,), 2)
    part.copy_(part)
    return part.neg()


def inputs():
    return (torch.arange(12.0).view(6, 2)[1:5],)
