"""What was written at a place of the storage came to lie before it, by where the input begins in its storage."""

import torch


def program(x):
    x.as_strided((2, 2), (1, 2), 5).mul_(2)
    return x * 1


def inputs():
    return (torch.arange(20.0)[2:11].view(3, 3),)
