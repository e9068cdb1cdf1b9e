"""The first item of a list was placed in the input's memory, then the whole node was put off because of the second one;
it ran as it was, and the input never got its new contents."""

import torch


def program(flat, gradient):
    torch._foreach_add_([flat[:12].view(3, 4), flat[12:].view(3, 4)], [gradient, gradient * 2])


def inputs():
    return torch.randn(24), torch.randn(3, 4)
