"""Checks of `torch_compat.optimizers`."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from torch._subclasses import FakeTensorMode
from torch.optim import optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _foreach_utils

from dovetail.torch_compat import optimizers
from dovetail.torch_compat.checks.difference import first_difference


def check_lists_of_fakes() -> str | None:
    """Torch's own questions are answered for fakes on a GPU as for what they stand for, and for no longer."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(2, device="meta")]
        fakes[0].fake_device = torch.device("cuda", 0)

        def ask() -> tuple[bool, bool]:
            return optimizer._default_to_fused_or_foreach(fakes, False)[1], _foreach_utils._has_foreach_support(
                fakes, torch.device("cuda", 0)
            )

        with optimizers.lists_of_fakes():
            inside = ask()
        outside = ask()
    return first_difference(("inside", inside, (True, True)), ("outside", outside, (False, False)))


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


def _scheduled() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def check_has_stepped() -> str | None:
    """An optimizer with a scheduler tells whether it has been stepped."""
    optimizer, _ = _scheduled()
    before = optimizers.has_stepped(optimizer)
    optimizer.step()
    return first_difference(
        ("what it says before", before, False), ("and after", optimizers.has_stepped(optimizer), True)
    )


def check_without_warning_of_order() -> str | None:
    """A scheduler that is stepped first warns, but for here."""
    counts = []
    for context in (nullcontext, optimizers.without_warning_of_order):
        _, scheduler = _scheduled()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with context(scheduler):
                scheduler.step()
            with optimizers.without_warning_of_order(scheduler):
                scheduler.step()
        counts.append(len(caught))
    return first_difference(("the number of warnings", counts, [1, 0]))


CHECKS = (
    check_lists_of_fakes,
    check_step_hook_tables,
    check_global_step_hook_tables,
    check_has_stepped,
    check_without_warning_of_order,
)
