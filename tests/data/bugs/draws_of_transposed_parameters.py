"""Draws of a gamma and a Poisson distribution lie in order; the program had them as their parameters lie, and native code read others."""

import torch
from torch.distributions import Gamma


def program(x, y):
    rate = y.exp()
    return Gamma(x.exp(), x.exp() + 1).rsample(), torch.poisson(rate).div(rate).clamp_(min=0.5), torch.normal(2.0, rate).mul_(rate)


def inputs():
    return torch.randn(4, 5).t().requires_grad_(), torch.randn(4, 5).t()
