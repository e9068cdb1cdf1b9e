"""The size of a view that the wrapper makes was looked for among the results, where backward's numbers lie."""

import torch


def program(x):
    return x[: x.shape[0] // 2], x.mean(0)


def inputs():
    return (torch.rand(4, 3, requires_grad=True),)
