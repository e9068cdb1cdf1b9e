"""Checks of `torch_compat.modules`."""

from __future__ import annotations

import sys

import torch
from torch.nn.modules import module as _module
from torch.nn.modules import module as registering
from torch.optim.optimizer import register_optimizer_step_pre_hook

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


def _silent(*_: object) -> None: ...


def check_global_hooks() -> str | None:
    """Hooks of all modules and all optimizers are found, and none of those that notice calls."""
    before = list(modules.global_hooks())
    handles = [
        registering.register_module_forward_hook(print),
        register_optimizer_step_pre_hook(repr),  # type: ignore[arg-type]
    ]
    with modules.module_calls_noticed(_silent, _silent):
        found = modules.global_hooks()
    for handle in handles:
        handle.remove()
    new = [hook for hook in found if not any(hook is known for known in before)]
    return first_difference(("hooks", new, [print, repr]), ("left", len(modules.global_hooks()), len(before)))


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


def check_forward_pre_hooks() -> str | None:
    """Hooks come in order, each as it was given."""
    net = torch.nn.Identity()
    hooks = [lambda *_: None, lambda *_: None]
    for hook in hooks:
        net.register_forward_pre_hook(hook)
    found = modules.forward_pre_hooks(net)
    return first_difference(("the hooks of a module", found == hooks, True))


def check_calls_only_forward() -> str | None:
    """A plain module only calls forward; one with hooks of its own, of all modules, or compiled does more."""
    registrations = (
        "register_forward_pre_hook",
        "register_forward_hook",
        "register_full_backward_pre_hook",
        "register_full_backward_hook",
    )
    wrong = [] if modules.calls_only_forward(torch.nn.Identity()) else ["a plain module"]
    for name in registrations:
        net = torch.nn.Identity()
        getattr(net, name)(lambda *_: None)
        wrong += [name] if modules.calls_only_forward(net) else []
        everywhere = getattr(_module, name.replace("register_", "register_module_"))(lambda *_: None)
        wrong += [f"{name} of all modules"] if modules.calls_only_forward(torch.nn.Identity()) else []
        everywhere.remove()
    net = torch.nn.Identity()
    net.__dict__["forward"] = net.forward
    wrong += ["a forward of the object"] if modules.calls_only_forward(net) else []
    net = torch.nn.Identity()
    net._compiled_call_impl = lambda x: x
    wrong += ["Module.compile"] if modules.calls_only_forward(net) else []
    return first_difference(("modules that are told wrong", wrong, []))


def check_module_calls_noticed() -> str | None:
    """Hooks are called around each module, and torch counts them not among hooks of all modules."""
    calls: list[str] = []
    counted: list[bool] = []
    with modules.module_calls_noticed(lambda *_: calls.append("enter"), lambda *_: calls.append("leave")):
        torch.nn.Identity()(torch.ones(1))
        counted.append(bool(_module._has_any_global_hook()))
        other = registering.register_module_forward_hook(lambda *_: None)
        counted.append(bool(_module._has_any_global_hook()))
        other.remove()
    counted.append(bool(_module._has_any_global_hook()))
    torch.nn.Identity()(torch.ones(1))
    return first_difference(("calls", calls, ["enter", "leave"]), ("hooks counted", counted, [False, True, False]))


def check_is_sharded() -> str | None:
    """Modules of FSDP are known by their classes, which are imported by who uses them."""
    net = torch.nn.Identity()
    plain = modules.is_sharded(net)
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = [] if fsdp is None else [type(fsdp.FSDPModule), type(fsdp.FullyShardedDataParallel)]
    return first_difference(
        ("plain", plain, False), ("classes", [issubclass(kind, type) for kind in kinds], [True] * len(kinds))
    )


CHECKS = (
    check_is_sharded,
    check_module_calls_noticed,
    check_global_hook_tables,
    check_global_hooks,
    check_forward_pre_hooks,
    check_noticed_conversions,
    check_calls_only_forward,
)
