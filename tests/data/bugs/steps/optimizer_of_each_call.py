"""An optimizer that is made anew for each call, as adaptation to one task at a time does: the fifth call was refused."""

import torch

PROGRAMS = 6


def make():
    weight, made = torch.ones(3, requires_grad=True), {}

    def step(x):
        loss = (x * weight).square().sum()
        loss.backward()
        made["optimizer"].step()
        made["optimizer"].zero_grad()
        return loss.detach()

    def calls():
        for number in range(6):
            made["optimizer"] = torch.optim.Adam([weight])
            yield (torch.full((3,), float(number)),)

    return step, calls(), lambda: [weight.detach().clone(), made["optimizer"].state[weight]["exp_avg"].clone()]
