"""An attribute that the class has came after those that the object got later, where it was read before it was set."""

import torch

PROGRAMS = 1


class Holder:
    calls = 0


def make():
    holder, weight = Holder(), torch.zeros(2)

    def step(x):
        weight.add_(x)
        holder.first = x.sum()
        holder.calls += 1
        holder.last = x * 2
        return weight.sum()

    return step, ((torch.ones(2) * number,) for number in range(4)), lambda: [weight.clone(), list(vars(holder))]
