"""Checks of `torch_compat.rng`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import rng
from dovetail.torch_compat.checks.difference import first_difference


def check_replaced_default_generators() -> str | None:
    """torch's functions on the states of generators talk to substitutes while these stand in, and not after."""
    substitutes = {gpu: torch.Generator() for gpu in (None, *range(len(torch.cuda.default_generators)))}
    for substitute in substitutes.values():
        substitute.manual_seed(7)
    before = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    with rng.replaced_default_generators(substitutes.__getitem__):
        inside = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    after = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    read = all(map(torch.equal, inside, (generator.get_state() for generator in substitutes.values())))
    return first_difference(
        ("the claim that the substitutes' states are read", read, True),
        ("the claim that the default states are as before", all(map(torch.equal, before, after)), True),
    )


def check_default_generator() -> str | None:
    """The generator of CPU draws is the one whose state torch gives out."""
    generator = rng.default_generator()
    return first_difference(
        ("the device", generator.device.type, "cpu"),
        ("the claim that the states agree", torch.equal(generator.get_state(), torch.get_rng_state()), True),
    )


def check_refused_generators() -> str | None:
    """Making a generator is noticed while it is refused; generators made before stay generators."""
    made = torch.Generator()
    calls: list[int] = []
    with rng.refused_generators(lambda: calls.append(1)):
        known = isinstance(made, torch.Generator)
        torch.Generator()
    torch.Generator()
    return first_difference(
        ("the claim that it stays a generator", known, True), ("the number of calls", len(calls), 1)
    )


CHECKS = (check_replaced_default_generators, check_default_generator, check_refused_generators)
