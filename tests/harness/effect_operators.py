"""Operators of a library that is not torch's, for random programs: they write several arguments, and are seen outside.

checks.note(x)                a line in a log
checks.demand(x)              a check, which fails when it is told to
checks.swap_(x, y)            writes both
checks.push_(xs, by)          writes a list, gives a tensor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("dovetail_testing", "FRAGMENT")
_LIBRARY.define("note(Tensor x) -> ()")
_LIBRARY.define("demand(Tensor x) -> ()")
_LIBRARY.define("swap_(Tensor(a!) x, Tensor(b!) y) -> ()")
_LIBRARY.define("push_(Tensor(a!)[] xs, Tensor by) -> Tensor")

OPERATORS = torch.ops.dovetail_testing


class DemandFailed(RuntimeError):
    """A check that was told to fail."""


@dataclass(slots=True)
class EffectLog:
    """What these operators were called with. fail_at: which call of `demand`, from 0, is to fail."""

    seen: list[Tensor] = field(default_factory=list)
    demands: int = 0
    fail_at: int | None = None

    def clear(self, fail_at: int | None = None) -> None:
        """Forget everything."""
        self.seen, self.demands, self.fail_at = [], 0, fail_at


LOG = EffectLog()


def _note(x: Tensor) -> None:
    LOG.seen.append(x.clone())


def _demand(x: Tensor) -> None:
    LOG.seen.append(x.clone())
    LOG.demands += 1
    if LOG.fail_at == LOG.demands - 1:
        raise DemandFailed("it was told to")


def _swap(x: Tensor, y: Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before).add_(1)
    LOG.seen.append(before)


def _push(xs: Sequence[Tensor], by: Tensor) -> Tensor:
    total = by.sum()
    for x in xs:
        total = total + x.sum()
        x.add_(by)
    LOG.seen.append(total.clone())
    return total


for _name, _kernel in (("note", _note), ("demand", _demand), ("swap_", _swap), ("push_", _push)):
    _LIBRARY.impl(_name, _kernel, "CPU")
