"""Operators of dovetail's own that torch's dispatcher knows: they reach dispatch modes as any operator does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("dovetail", "DEF")


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """The operator `dovetail::name`. run: its kernel for every device. fake: the same on fakes."""
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dovetail::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.dovetail, name).default
