"""Modules of `fully_shard` (FSDP2) in a step: their own hooks run on fakes, and what they do is recorded.

    forward     gather_into_(whole, cat(shards), "0"); weight = empty; weight.copy_(part of whole)
    backward    gather_into_(...), weight.copy_(...) again;  scatter_from_(shard, gradients, "AVG", "0"); w.grad = shard

Which parameters are gathered together, when, and again for backward, and how gradients are reduced, is decided by
torch's own code, with the order and the numbers of eager mode. A weight is written a second time where eager mode gives
its memory free in between, so that the program does not keep it either. Afterwards the states of the modules are what
they were: a run of the program does not touch them, and expects to find nothing gathered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from dovetail.capture.collectives import Collectives
from dovetail.capture.origins import OriginTracker
from dovetail.errors import DovetailError, ModuleToPrepare, UnsupportedDistributed
from dovetail.torch_compat.dtensors import local_of
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.fully_sharded import (
    asks_settings,
    changed_since,
    is_prepared,
    on_fakes,
    process_groups_of,
    settings_of,
    sharded_parameters_of,
    states_of,
    unsupported,
)

Found: TypeAlias = "Sequence[tuple[Any, Any]]"
"""States of modules, each with what it is set to; None for one that a program cannot begin with."""


def found_among(modules: Iterable[torch.nn.Module]) -> Found:
    """The states of modules, and of modules in them, before anything is exchanged."""
    return [(state, settings_of(state)) for state in states_of(x for root in modules for x in root.modules())]


class FullySharded:
    """The modules of `fully_shard` that a step reaches, and which of them it calls."""

    def __init__(self, collectives: Collectives, origins: OriginTracker, refusals: list[DovetailError]) -> None:
        self._collectives, self._origins, self._refusals = collectives, origins, refusals
        self._settings: dict[int, Any] = {}
        self._states: list[Any] = []
        self._met: set[int] = set()

    @contextlib.contextmanager
    def recorded(self, found: Found) -> Iterator[None]:
        """While active, calls of modules that were found are recorded. Raises: UnsupportedDistributed for what they
        leave.
        """
        self._states = [state for state, _ in found]
        self._settings = {id(state): settings for state, settings in found if settings is not None}
        for state in self._states:
            if id(state) in self._settings:
                self._collectives.guard(asks_settings(state))
        try:
            with on_fakes(self._states, self._use):
                yield
                self._check()
        finally:
            self._states, self._settings = [], {}

    def call(self, module: torch.nn.Module) -> None:
        """A module is about to be called. Raises: UnsupportedDistributed, ModuleToPrepare."""
        states = states_of([module])
        if not states:
            self._refuse(
                f"calls a module whose weights are sharded by FullyShardedDataParallel ({type(module).__name__})",
                "its hooks change what weights are while they run",
                "use fully_shard, or DistributedDataParallel",
            )
        for state in states:
            self._use(state, type(module).__name__)

    def _use(self, state: Any, name: str) -> None:
        """The step is about to use a state, by whatever way: a call of a module, a method of one. Raises: as `call`."""
        if id(state) not in self._met:
            self._met.add(id(state))
            self._meet(state, name)

    def _meet(self, state: Any, name: str) -> None:
        if all(known is not state for known in self._states):
            self._refuse(
                f"uses a module of fully_shard that nothing shows it to reach ({name})",
                "programs read the shards of known modules",
                "keep it in a variable, or an attribute, that the step reads",
            )
        if not is_prepared(state):
            why = "`fully_shard` looks at its modules in their first call"
            raise ModuleToPrepare(name=f"fully_shard({name})", why=why, origin=self._origins.here())
        if id(state) not in self._settings:
            why = "its parameters stay gathered between calls, or it holds gradients that are not reduced yet"
            raise ModuleToPrepare(name=f"fully_shard({name})", why=why, origin=self._origins.here())
        asked = unsupported(state)
        if asked is not None:
            self._refuse(f"uses a module of fully_shard with {asked[0]}", "programs do not do that", asked[1])
        if not all(is_fake(local_of(parameter)) for parameter in sharded_parameters_of(state)):
            self._refuse(
                f"uses a module of fully_shard whose parameters are others by now ({name})",
                "a program reads the shards that the module holds",
                "call fully_shard after the parameters were replaced",
            )
        for group in process_groups_of(state):
            self._collectives.meet(group)

    def _check(self) -> None:
        """The step has ended."""
        for state in self._states:
            if id(state) in self._met and changed_since(state, self._settings[id(state)]):
                self._refuse(
                    "leaves modules of fully_shard gathered, set otherwise, or with gradients that are not reduced",
                    "they would stay so for later calls, and programs begin with shards",
                    "end with backward, or reshard() of what is gathered; and set modules before the step",
                )

    def _refuse(self, what: str, why: str, hint: str) -> None:
        error = UnsupportedDistributed(what=f"the step {what}", why=why, hint=hint, origin=self._origins.here())
        self._refusals.append(error)
        raise error


def runs_apart(
    recorder: contextlib.AbstractContextManager[Any], run: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Record what an operator of `fully_shard` does, in operators of torch."""
    with recorder:
        return run(*args, **kwargs)
