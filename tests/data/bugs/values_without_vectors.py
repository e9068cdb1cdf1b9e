"""Without a gradient, torch computes singular values and eigenvalues alone, and LAPACK takes another way for that."""

import torch


def inputs():
    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    return (x, x @ x.mT)


def program(x, spd):
    return (
        torch.linalg.svdvals(x),
        torch.linalg.eigvalsh(spd),
        torch.linalg.matrix_norm(x, "nuc"),
        torch.linalg.norm(x, 2, dim=(1, 2)),
        torch.linalg.cond(spd),
        torch.svd(x, compute_uv=False)[1],
    )
