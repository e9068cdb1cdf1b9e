"""A number, or a text, of a class of the user's under `int` or `str` was taken for another one of that class."""

import datetime

import torch
from torch import nn

PROGRAMS = 6


class Scale(int):
    pass


class Name(str):
    pass


class Day(datetime.date):
    pass


def make():
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    held = {"scale": Scale(1), "name": Name("sum"), "day": Day(2026, 1, 1)}

    def step(x):
        optimizer.zero_grad()
        loss = (net(x).sum() if held["name"] == "sum" else net(x).square().mean()) * held["scale"] + held["day"].month
        loss.backward()
        optimizer.step()
        return loss.detach()

    def calls():
        names = ["sum", "sum", "mean", "sum", "sum", "sum", "sum"]
        for number in range(7):
            held["scale"] = Scale(2 if number == 1 else 1)
            held["name"] = Name(names[number])
            if number > 3:
                held["day"] = Day(2026, number, 1)
            yield (torch.ones(1, 2) * number,)

    def state():
        return [net.weight.detach().clone(), net.bias.detach().clone()]

    return step, calls(), state
