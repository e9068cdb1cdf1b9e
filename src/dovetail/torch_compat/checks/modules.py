"""Checks of `torch_compat.modules`."""

from __future__ import annotations

import torch
from torch.nn.modules import module as registering

from dovetail.torch_compat import modules
from dovetail.torch_compat.checks.difference import first_difference


def check_global_hook_tables() -> str | None:
    """Hooks that are registered for all modules are in one of the tables while they are."""
    tables = modules.global_hook_tables()
    handles = [
        registering.register_module_forward_pre_hook(lambda *_: None),
        registering.register_module_forward_hook(lambda *_: None),
        registering.register_module_full_backward_pre_hook(lambda *_: None),
        registering.register_module_full_backward_hook(lambda *_: None),
        registering.register_module_parameter_registration_hook(lambda *_: None),
    ]
    found = [sorted(name for name, table in tables.items() if handle.id in table) for handle in handles]
    for handle in handles:
        handle.remove()
    left = [name for name, table in tables.items() for handle in handles if handle.id in table]
    expected = [
        ["forward_pre_hooks"],
        ["forward_hooks"],
        ["backward_pre_hooks"],
        ["backward_hooks"],
        ["parameter_registration_hooks"],
    ]
    return first_difference(("tables with the hooks", found, expected), ("tables that keep them", left, []))


def check_noticed_conversions() -> str | None:
    """A module that is converted is noticed, one that stays as it is is not, and none is afterwards."""
    noticed: list[torch.nn.Module] = []
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    with modules.noticed_conversions(noticed.append):
        module.float().cpu()
        before = len(noticed)
        module.double()
        during = len(noticed)
    kind = module[0].weight.dtype
    module.float()
    return first_difference(
        ("conversions to what it is", before, 0),
        ("whether a conversion was noticed", during > 0, True),
        ("what the module became", kind, torch.float64),
        ("conversions that were noticed afterwards", len(noticed) - during, 0),
    )


CHECKS = (check_global_hook_tables, check_noticed_conversions)
