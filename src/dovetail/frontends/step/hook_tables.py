"""Hooks of gradients: tables that a tensor keeps for autograd, where no container of Python's leads to them.

Not seen are hooks of autograd's own nodes, those that add to `.grad` (`AccumulateGrad`) among them: torch does
not expose them. Compiled steps do not call them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from operator import is_
from typing import Any

import torch

from dovetail.frontends.step.containers import Container
from dovetail.torch_compat.modules import global_hook_tables
from dovetail.torch_compat.optimizers import global_step_hook_tables
from dovetail.torch_compat.swapping import hook_tables, hooks_registered

_KINDS = ("hooks", "hooks after accumulation")


class HookTable(Container):
    """The hooks of one kind, by the number of their registration; an empty table is as good as none.

    In paths a hook is called by its place in the table, so that one that is removed and registered again is the same.
    """

    __slots__ = ()

    def __init__(self, table: dict[int, Any], parent: Container, kind: str, owner: str = "") -> None:
        """kind: of hooks. owner: what a user calls what has them; they are everybody's without it."""
        super().__init__(table, parent, kind)
        self.names = {id(key): (n, str(key)) for n, key in enumerate(self.keys)}
        path: tuple[Hashable, ...] = (*parent.path, kind) if owner else (kind,)
        self.call_it(path, f"{kind} of {owner}" if owner else kind)


def tables_of(tensor: torch.Tensor, parent: Container, title: str) -> list[HookTable]:
    """The tables that a tensor has."""
    found = zip(_KINDS, hook_tables(tensor), strict=True)
    return [HookTable(table, parent, kind, title) for kind, table in found if table is not None]


def global_tables(parent: Container) -> list[HookTable]:
    """The hooks of all modules and of all optimizers."""
    before, after = global_step_hook_tables()
    tables = {f"{name.replace('_', ' ')} of all modules": table for name, table in global_hook_tables().items()}
    tables |= {"hooks before the steps of all optimizers": before, "hooks after the steps of all optimizers": after}
    return [HookTable(table, parent, name) for name, table in tables.items()]


class HookGuard:
    """Whether tensors have the tables that they had.

    Tables come to be when hooks are registered, of which torch counts how many there were. Until the next one, only
    the tensors that have tables are looked at. Cost: 0.3 us for each of these; for all when something was registered.
    """

    def __init__(self, tensors: Collection[torch.Tensor], registered: int) -> None:
        """Expect the tables that these have now. registered: what `hooks_registered` was before they were read."""
        held = [(tensor, hook_tables(tensor)) for tensor in tensors]
        self._registered = registered
        self._bare = [tensor for tensor, tables in held if tables == (None, None)]
        self._hooked = [tensor for tensor, tables in held if tables != (None, None)]
        self._tables = [tables for _, tables in held if tables != (None, None)]

    def holds(self) -> bool:
        """Whether no table has come to be, gone, or become another one. What is in the tables is not looked at."""
        registered = hooks_registered()
        if registered != self._registered:
            if any(hook_tables(tensor) != (None, None) for tensor in self._bare):
                return False
            self._registered = registered
        now = map(hook_tables, self._hooked)
        return not self._hooked or all(all(map(is_, a, b)) for a, b in zip(now, self._tables, strict=True))
