"""An attribute was taken away in some calls and set in others: the step was refused, where an entry was not."""

import torch

PROGRAMS = 2


class Holder:
    pass


def make():
    holder, weight = Holder(), torch.zeros(2)

    def step(x):
        weight.add_(x)
        if hasattr(holder, "held"):
            held = holder.held
            del holder.held
            return held.sum()
        holder.held = x * 2
        return weight.sum()

    return step, ((torch.ones(2) * number,) for number in range(6)), lambda: [weight.clone(), sorted(vars(holder))]
