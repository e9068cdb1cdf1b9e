"""Attention with dropout runs some operators below autocast. Run again by the program, they were cast once more."""

import torch
import torch.nn.functional as F


def program(q):
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)


def inputs():
    return (torch.randn(2, 2, 5, 8, requires_grad=True),)


def around():
    return torch.autocast("cpu", dtype=torch.bfloat16)
