"""Forward mode over reverse mode: a view of a tangent that is zero was made above fakes, and was on no device of theirs."""

import torch

DYNAMO = False


def program(w, x):
    return torch.func.vmap(torch.func.hessian(lambda t: (t @ w).sin().sum()))(x)


def inputs():
    torch.manual_seed(0)
    return torch.randn(2, 3, requires_grad=True), torch.randn(5, 2, requires_grad=True)
