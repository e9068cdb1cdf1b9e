"""Checks of `torch_compat.optimizers`."""

from __future__ import annotations

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

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


def check_global_step_hook_tables() -> str | None:
    """Hooks that are registered for all optimizers are in the tables while they are."""
    tables = optimizers.global_step_hook_tables()
    handles = (
        register_optimizer_step_pre_hook(lambda *_: None),
        register_optimizer_step_post_hook(lambda *_: None),
    )
    found = [handle.id in table for handle, table in zip(handles, tables, strict=True)]
    for handle in handles:
        handle.remove()
    left = [handle.id in table for handle, table in zip(handles, tables, strict=True)]
    return first_difference(
        ("whether hooks are in the tables", found, [True, True]),
        ("whether they are after they were removed", left, [False, False]),
    )


CHECKS = (check_step_hook_tables, check_global_step_hook_tables)
