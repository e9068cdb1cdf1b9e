"""A view made under no_grad of a leaf passes for a leaf itself: no gradient goes from it to the leaf, also where the memory of
both is written through a third tensor."""

import torch


def program(x, v, z):
    z.mul_(2)
    return (x * v).sum()


def inputs():
    leaf = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        view = leaf[1:3]
    return leaf[:2], view, leaf.data[:2]
