"""A number that had become an input, and is text in a later call: the text was taken for an input, too."""

import torch

PROGRAMS = 5


class Settings:
    scale = 1.0


def make():
    settings = Settings()
    weight = torch.ones(3)

    def step(x):
        weight.add_(len(settings.scale) if isinstance(settings.scale, str) else settings.scale)
        return x * weight

    def calls():
        for settings.scale in (1.0, 2.0, 3.0, 4.0, "none", "no", 5.0, 7, 8):
            yield (torch.ones(3),)

    return step, calls(), lambda: [weight.clone()]
