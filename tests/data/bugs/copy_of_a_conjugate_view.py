"""A copy of a conjugate view was removed as a copy that changes nothing; `view_as_real` then met the conjugate view itself."""

import torch


def program(x, y):
    z = (x - x).conj()
    z.add_(y)
    return torch.cat([x, z], 1)


def inputs():
    return torch.randn(3, 1, dtype=torch.complex64, requires_grad=True), torch.randn(3, 1, requires_grad=True)
