"""A checkpoint region that writes a buffer was refused: the buffer became an argument of the region, and checkpoint
does not recompute when an argument was written."""

import torch
from torch.utils.checkpoint import checkpoint


def program(x, count):
    def region(x):
        count.add_(1)
        return (x * count).sin()

    return checkpoint(region, x, use_reentrant=False)


def inputs():
    return torch.randn(3, requires_grad=True), torch.zeros(3)
