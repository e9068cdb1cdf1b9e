"""Equal empty tensors were merged, so that all but the last of those that are filled took a copy, and more memory."""

import torch


def program(x, y):
    found = []
    for factor in (1.0, 2.0, 3.0):
        out, zeros = torch.empty(4, 4), torch.zeros(4, 4)
        torch.mm(x * factor, y, out=out)
        torch.add(x, y, alpha=factor, out=zeros)
        found.append(out.sin() + zeros)
    return found


def inputs():
    return torch.rand(4, 4), torch.rand(4, 4)
