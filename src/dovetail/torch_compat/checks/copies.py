"""Checks of `torch_compat.copies`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import copies, fakes
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.dispatch import storage_key


def check_copied_fake() -> str | None:
    """A copy has the mode of the fake, not a copy of it, and attributes, gradients and shared memory like it.

    That of a parameter has no more than its numbers.
    """
    mode = fakes.new_fake_mode()
    with mode:
        weight = torch.empty(4, 3, device="cpu", requires_grad=True)
        parameter = torch.nn.Parameter(torch.empty(4, 3, device="cpu"))
        for each in (weight, parameter):
            each.grad = torch.empty(4, 3, device="cpu")
            setattr(each, "note", ["of the user"])  # noqa: B010
        tied, gaps = weight.detach()[1:], torch.empty(6, 4, device="cpu")[:, :2]
        memo: dict[object, object] = {}
        made, again = copies.copied_fake(weight, memo), copies.copied_fake(tied, memo)
        wide, other = copies.copied_fake(gaps, {}), copies.copied_fake(parameter, {})
    return first_difference(
        ("the modes", [fakes.mode_of(x) is mode for x in (made, again, wide, other)], [True] * 4),
        ("whether it is a parameter", [isinstance(x, torch.nn.Parameter) for x in (made, other)], [False, True]),
        (
            "what a parameter has besides",
            (other.grad, hasattr(other, "note"), other.requires_grad),
            (None, False, True),
        ),
        ("an attribute", getattr(made, "note", None), ["of the user"]),
        ("the claim that there is a gradient of its own", made.grad is None or made.grad is weight.grad, False),
        ("the claim that memory is shared", again._base is None, False),
        ("strides with gaps", wide.stride(), (4, 1)),
    )


def check_shared_fake() -> str | None:
    """It lies in the memory of the fake, and takes gradients of its own."""
    with fakes.new_fake_mode():
        weight = torch.nn.Parameter(torch.empty(4, 3, device="cpu"))
        made = copies.shared_fake(weight)
    return first_difference(
        ("whether it is a parameter", isinstance(made, torch.nn.Parameter), True),
        ("whether it takes gradients, as a leaf", (made.requires_grad, made.is_leaf), (True, True)),
        ("whether memory is shared", storage_key(made) == storage_key(weight), True),
    )


CHECKS = (check_copied_fake, check_shared_fake)
