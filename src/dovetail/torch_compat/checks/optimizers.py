"""Checks of `torch_compat.optimizers`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import optimizers
from dovetail.torch_compat.checks.difference import first_difference


def check_step_hook_tables() -> str | None:
    """Hooks that are registered are in the tables, and what is in the tables runs."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    before, after = optimizers.step_hook_tables(optimizer)
    counts = (len(before), len(after))
    for number in after:
        after[number] = lambda *_: called.append("instead")
    optimizer.step()
    return first_difference(("hooks in the tables", counts, (1, 1)), ("hooks that ran", called, ["before", "instead"]))


CHECKS = (check_step_hook_tables,)
