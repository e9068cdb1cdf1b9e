"""A write to one row of an expanded input whose memory another input shares: the row is written, the whole cannot be."""

import torch


def program(x, y):
    x[0].add_(1)
    return x.transpose(0, 1), y * 2


def inputs():
    base = torch.arange(7.0)
    return base.as_strided((3, 3), (0, 1), 4), base[4:7]
