"""Attributes that a step sets on tensors among its arguments: no program does that, so eager mode has to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.frontends.step.attempts import StateToMake
from dovetail.frontends.step.left_behind import refused_change
from dovetail.reach.contents import MISSING
from dovetail.reach.values import attributes_of


@contextmanager
def kept_attributes(leaves: Sequence[Any]) -> Iterator[None]:
    """Afterwards, tensors have the attributes that they had.

    Raises: StateToMake where the step has changed some. Later calls find those that eager mode sets.
    """
    held = [(number, x, dict(attributes_of(x))) for number, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    changed = list[str]()
    try:
        yield
    finally:
        for number, tensor, before in held:
            now = attributes_of(tensor)
            names = [x for x in {**before, **now} if before.get(x, MISSING) is not now.get(x, MISSING)]
            if names:
                changed += (f"the attribute {name!r} of argument {number}" for name in names)
                now.clear()
                now.update(before)
    if changed:
        raise StateToMake(refused_change(changed[0]))
