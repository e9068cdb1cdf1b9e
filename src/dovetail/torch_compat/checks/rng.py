"""Checks of `torch_compat.rng`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import rng
from dovetail.torch_compat.checks.difference import first_difference


def check_replaced_default_generator() -> str | None:
    """torch's functions on the generator state talk to a substitute while it stands in, and not after."""
    substitute = torch.Generator()
    substitute.manual_seed(7)
    before = torch.get_rng_state()
    with rng.replaced_default_generator(substitute):
        same_state = torch.equal(torch.get_rng_state(), substitute.get_state())
    return first_difference(
        ("the claim that the substitute's state is read", same_state, True),
        ("the claim that the default state is as before", torch.equal(torch.get_rng_state(), before), True),
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


CHECKS = (check_replaced_default_generator, check_default_generator, check_refused_generators)
