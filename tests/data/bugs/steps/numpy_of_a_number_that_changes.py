"""A number of the user's that changed became an input, and the step that gives it to NumPy, or writes it as text, raised
from the third call on."""

import json

import numpy as np
import torch

PROGRAMS = 6


def make():
    weight = torch.nn.Parameter(torch.ones(3))
    settings = {"scale": 1.0, "name": 0.5}

    def step(x):
        with torch.no_grad():
            weight.mul_(float(np.cos(settings["scale"])))
            weight.add_(float(f"{settings['name']}") + json.loads(json.dumps(settings))["scale"])
        return x * weight.detach()

    def calls():
        for number in range(6):
            settings.update(scale=number / 7, name=number / 3)
            yield (torch.ones(3),)

    return step, calls(), lambda: [weight.detach().clone()]
