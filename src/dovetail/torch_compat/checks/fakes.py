"""Checks of `torch_compat.fakes`."""

from __future__ import annotations

import torch
from torch._guards import TracingContext, tracing

from dovetail.torch_compat import dispatch, fakes
from dovetail.torch_compat.checks.difference import first_difference


def check_new_fake_mode() -> str | None:
    """A fake mode gives shapes, strides and dtypes of results, and takes real tensors as fakes."""
    with fakes.new_fake_mode():
        result = torch.ones(2, 3).t() @ torch.ones(2, 4, dtype=torch.float32)
    real = torch.ones(3, 3)
    with fakes.new_fake_mode():
        mixed = real.t().double()
    return first_difference(
        ("the shape of a product", tuple(result.shape), (3, 4)),
        ("a real tensor's double", (fakes.is_fake(mixed), mixed.dtype), (True, torch.float64)),
    )


def check_is_fake() -> str | None:
    """Fake and real tensors are told apart, through Parameter as well."""
    mode = fakes.new_fake_mode()
    real = torch.nn.Parameter(torch.ones(2))
    found = (fakes.is_fake(real), fakes.is_fake(fakes.fake_of(mode, real)))
    return first_difference(("a real and a fake parameter", found, (False, True)))


def check_fake_of() -> str | None:
    """The twin has equal sizes, strides, offset and requires_grad; twins share storage where the originals do."""
    mode = fakes.new_fake_mode()
    x = torch.zeros(4, 6)
    view = x.t()[1:]
    twin, view_twin = fakes.fake_of(mode, x), fakes.fake_of(mode, view)
    leaf = fakes.fake_of(mode, torch.zeros(2, requires_grad=True))
    return first_difference(
        ("the layout", (view_twin.stride(), view_twin.storage_offset()), (view.stride(), view.storage_offset())),
        ("the sizes", tuple(map(type, view_twin.shape)), (int, int)),
        ("shared storage", dispatch.storage_key(twin) == dispatch.storage_key(view_twin), True),
        ("requires_grad", leaf.requires_grad, True),
    )


def check_data_dependent_errors() -> str | None:
    """Asking a fake for its numbers raises one of the known errors."""
    with fakes.new_fake_mode():
        try:
            torch.ones(1).item()
        except fakes.DATA_DEPENDENT_ERRORS:
            return None
    return "item() of a fake tensor gave a number"


def check_allow_real_inputs() -> str | None:
    """Real tensors can be allowed for a while."""
    mode = fakes.new_fake_mode()
    mode.allow_non_fake_inputs = False
    real = torch.ones(2)
    with fakes.allow_real_inputs(mode), mode:
        allowed = fakes.is_fake(real + 1)
    return first_difference(
        ("the sum of a real tensor", allowed, True),
        ("the setting afterwards", mode.allow_non_fake_inputs, False),
    )


def check_tracing_fake_mode() -> str | None:
    """The fake mode of a tracing context is found inside of it; outside there is none."""
    mode = fakes.new_fake_mode()
    with tracing(TracingContext(mode)):
        inside = fakes.tracing_fake_mode()
    return first_difference(
        ("the claim that the mode is found", inside is mode, True),
        ("the mode outside", fakes.tracing_fake_mode(), None),
    )


CHECKS = (
    check_new_fake_mode,
    check_is_fake,
    check_fake_of,
    check_data_dependent_errors,
    check_allow_real_inputs,
    check_tracing_fake_mode,
)
