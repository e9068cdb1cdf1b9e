"""What modules hold under private names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as _module

from dovetail.torch_compat.optimizers import global_step_hook_tables

_HAS_HOOK_OF_ALL = _module._has_any_global_hook
_OWN: set[int] = set()


@contextlib.contextmanager
def module_calls_noticed(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """While active, hooks of all modules are called before a module runs, and after it, also where it raises.

    Torch does not count them among such hooks, of which it warns where a module is one that `torch.compile` made.
    """
    before = _module.register_module_forward_pre_hook(enter)
    after = _module.register_module_forward_hook(leave, always_call=True)
    own = {before.id, after.id}
    _OWN.update(own)
    asked: Any = _module
    asked._has_any_global_hook = _has_others
    try:
        yield
    finally:
        _OWN.difference_update(own)
        if not _OWN:
            asked._has_any_global_hook = _HAS_HOOK_OF_ALL
        before.remove()
        after.remove()


def _has_others() -> bool:
    tables = (table for name, table in global_hook_tables().items() if "registration" not in name)
    return any(key not in _OWN for table in tables for key in list(table))


def global_hook_tables() -> dict[str, dict[int, Any]]:
    """The tables of hooks that run for every module, by their names: forward, backward, registration."""
    return {
        name.removeprefix("_global_"): table
        for name, table in vars(_module).items()
        if name.startswith("_global_") and isinstance(table, dict)
    }


def global_hooks() -> list[Any]:
    """The hooks of users that run for every module, and for every optimizer."""
    tables = (*global_hook_tables().values(), *global_step_hook_tables())
    return [hook for table in tables for key, hook in list(table.items()) if key not in _OWN]


def forward_pre_hooks(module: torch.nn.Module) -> list[Any]:
    """The hooks that run before the forward of a module, in order."""
    return list(module._forward_pre_hooks.values())


@contextlib.contextmanager
def noticed_conversions(notice: Callable[[torch.nn.Module], None]) -> Iterator[None]:
    """While active, `notice` is called before a module is moved to another type or device (`net.to(...)`).

    It is called by whatever thread moves one, and not where every tensor has what is asked for.
    """
    before = torch.nn.Module._apply

    def apply(self: Any, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        held = [tensor for tensor in (*self.parameters(recurse), *self.buffers(recurse)) if tensor is not None]
        with torch.no_grad():
            if all(fn(tensor) is tensor for tensor in held):
                return self
        notice(self)
        return before(self, fn, recurse)

    put: Any = torch.nn.Module
    put._apply = apply
    try:
        yield
    finally:
        put._apply = before


def calls_only_forward(module: torch.nn.Module) -> bool:
    """Whether calling a module only calls the `forward` of its class: no hooks, no `Module.compile`."""
    own = module.__dict__
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return False
    return not ("forward" in own or own.get("_compiled_call_impl") or _HAS_HOOK_OF_ALL())


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether hooks or a wrapper put a module's weights together from several processes; FSDP, of both kinds."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, (fsdp.FSDPModule, fsdp.FullyShardedDataParallel))
