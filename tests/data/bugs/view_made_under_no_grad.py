"""A view made under no_grad of a tensor that requires gradients says that it requires them, but has no graph: backward
was recorded for it and failed."""

import torch


def program(x):
    y = x.abs()
    with torch.no_grad():
        view = y[..., ::2]
    return y * 2, y.sum() + view.permute(0).sum(), view.detach()


def inputs():
    return (torch.randn(5, requires_grad=True),)
