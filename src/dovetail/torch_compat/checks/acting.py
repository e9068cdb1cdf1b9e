"""Checks of `torch_compat.acting`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import acting, fakes
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.dispatch import Overload

_aten = torch.ops.aten


def _known(op: Overload) -> list[list[bool]]:
    """Whether numbers are known, within and after: of what an operator writes, of a view of it, of what it reads."""
    mode = fakes.new_fake_mode()
    with mode:
        written, read = torch.tensor([1.0]), torch.tensor([3.0])
        view = written[:1]
        with acting.numbers_unknown(op, (written, read)):
            found = [list(map(fakes.holds_numbers, (written, view, read)))]
        found.append(list(map(fakes.holds_numbers, (written, view, read))))
    return found


def check_numbers_unknown() -> str | None:
    """Of an operator that does not act, all are known throughout."""
    acts = _aten.copy_.default
    was_known = acts in acting._ACTING
    acting.let_act([acts])
    try:
        found = _known(acts)
    finally:
        if not was_known:
            acting._ACTING.discard(acts)
    return first_difference(
        ("acts", found, [[False] * 3, [False, False, True]]),
        ("others", _known(_aten.add_.Tensor), [[True] * 3, [True] * 3]),
    )


def check_let_act() -> str | None:
    """An operator is noted once."""
    op = _aten.copy_.default
    was_known = op in acting._ACTING
    acting.let_act([op])
    is_known = op in acting._ACTING
    if not was_known:
        acting._ACTING.discard(op)
    return first_difference(("noted", is_known, True))


CHECKS = (check_let_act, check_numbers_unknown)
