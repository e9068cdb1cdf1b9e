"""Fakes lay out `logaddexp`, `heaviside`, `logical_and` and `ldexp` by their operands in another order than the kernels: what was
computed of such a result by native code had other strides than in eager mode."""

import torch


def program(x, row):
    low, step, both = torch.logaddexp(row, x), torch.heaviside(row, x), torch.logical_and(row, x)
    power = torch.ldexp(row, x)
    wide = torch.ldexp(row.double(), x.double())
    return low, low.relu(), low > 0, step, step.neg(), both, both & both, power, power.relu(), wide, wide.relu()


def inputs():
    return torch.randn(16, 3, 2).permute(2, 1, 0), torch.randn(3, 1)
