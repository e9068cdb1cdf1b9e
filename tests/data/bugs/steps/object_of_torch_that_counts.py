"""Schedules of torch's own, which are neither optimizers' nor modules, were asked once, and never went on."""

import warnings

import torch
from torch import nn
from torch.ao.pruning import LambdaSL, WeightNormSparsifier

PROGRAMS = 2


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4))
    sparsifier = WeightNormSparsifier(sparsity_level=0.5)
    sparsifier.prepare(net, [{"tensor_fqn": "0.weight"}])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = LambdaSL(sparsifier, lambda epoch: 0.5 ** (epoch + 1))

    sparsifier.step()

    def step(x):
        schedule.step()
        return net(x).sum().detach()

    calls = ((torch.arange(8.0).view(2, 4) * number,) for number in range(4))
    return step, calls, lambda: [schedule.last_epoch, sparsifier.groups[0]["sparsity_level"]]
