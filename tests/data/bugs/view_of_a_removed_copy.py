"""A copy that changes nothing (or the later of two equal values) was removed, and a view of it kept the number of the removed
storage: the buffer that the view really lies on was then written in place while the view still read it."""

import torch


def program(x, y):
    z = x * 2
    kept = z.clone().permute(1, 0)
    w = z.remainder(2.0)
    a = y * 3
    twin = (y * 3).permute(1, 0)
    b = a.remainder(2.0)
    return w, kept + 1, b, twin + 1


def inputs():
    return torch.randn(2, 3), torch.randn(2, 3)
