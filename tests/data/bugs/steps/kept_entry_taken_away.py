"""A tensor that a step keeps in a dictionary, and that somebody takes away between calls: the next call raised KeyError."""

import torch

PROGRAMS = 4


def make():
    weight = torch.ones(3, requires_grad=True)
    kept = {"mask": torch.ones(3)}

    def step(x):
        kept["weight"] = weight * kept["mask"]
        loss = (x * kept["weight"]).sum()
        loss.backward()
        return loss

    def calls():
        for n in range(8):
            if n == 4:
                del kept["weight"]
            if n == 6:
                kept["weight"] = "gone"
            yield (torch.full((3,), float(n)),)

    return step, calls(), lambda: [kept["weight"].detach().clone(), weight.grad.clone()]
