"""A conjugate input held plain bytes once it was written, where views of it were recorded for conjugate ones."""

import torch


def program(x):
    x.mul_(2)
    x.real.add_(1)
    return x.imag, x.conj()


def inputs():
    return (torch.randn(4, dtype=torch.complex64).conj(),)


DYNAMO = False
