"""Checks of `torch_compat.fully_sharded`, with a module of a process group of this process alone.

Nothing is looked at unless somebody has imported what makes such modules: that takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dovetail.torch_compat import fully_sharded
from dovetail.torch_compat.checks.collectives import group_of_one
from dovetail.torch_compat.checks.difference import first_difference


@contextmanager
def _module(*, is_called: bool = True) -> Iterator[Any]:
    """A module that was called; None where none can be made."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    with group_of_one() as group:
        if fsdp is None or group is None:
            yield None
            return
        with torch.random.fork_rng(devices=()), torch.enable_grad():
            mesh = sys.modules["torch.distributed.device_mesh"].DeviceMesh("cpu", [0])
            module = fsdp.fully_shard(nn.Linear(3, 2), mesh=mesh)
            if is_called:  # as far as it does not load Dynamo
                _state(module)._lazy_init()
                module.unshard()
                module.reshard()
        yield module


def _state(module: Any) -> Any:
    return fully_sharded.states_of([module])[0]


def check_states_of() -> str | None:
    """A module of it has a state, each once; a plain module has none."""
    with _module() as module:
        found = 1 if module is None else len(fully_sharded.states_of([module, nn.Identity(), module]))
    return first_difference(("states", found, 1), ("plain", fully_sharded.states_of([nn.Identity()]), []))


def check_is_prepared() -> str | None:
    """A module is prepared in its first call."""
    found = []
    for is_called in (False, True):
        with _module(is_called=is_called) as module:
            found.append(is_called if module is None else fully_sharded.is_prepared(_state(module)))
    return first_difference(("prepared", found, [False, True]))


def check_groups_of() -> str | None:
    """A module is one group, with its parameters and process groups."""
    with _module() as module:
        if module is None:
            return None
        state = _state(module)
        counts = [len(f(state)) for f in (fully_sharded.groups_of, fully_sharded.process_groups_of)]
        parameters = fully_sharded.sharded_parameters_of(state)
        are_those = list(map(id, parameters)) == list(map(id, module.parameters()))
    return first_difference(("groups", counts, [1, 2]), ("parameters", are_those, True))


def check_sharded_parameters_of() -> str | None:
    """They are the parameters of the module, and each has a part."""
    with _module() as module:
        found = [] if module is None else fully_sharded.sharded_parameters_of(_state(module))
        are_spread = all(hasattr(parameter, "_local_tensor") for parameter in found)
    return first_difference(("spread", are_spread, True))


def check_process_groups_of() -> str | None:
    """Both are the group of the mesh."""
    with _module() as module:
        if module is None:
            return None
        sizes = [group.size() for group in fully_sharded.process_groups_of(_state(module))]
    return first_difference(("sizes", sizes, [1, 1]))


def check_unsupported() -> str | None:
    """Nothing of a plain module is named, and gathering that is not waited for is."""
    found = []
    with _module() as module:
        for is_asked in (False, True) if module is not None else ():
            module._set_unshard_async_op(is_asked)
            found.append(fully_sharded.unsupported(_state(module)) is not None)
    return first_difference(("named", found, [False, True][: len(found)]))


def check_asks_settings() -> str | None:
    """Equal settings are one object, others another one, and there are none while it is in use."""
    return _as_it_changes(
        lambda state, before: fully_sharded.asks_settings(state)() is before, [True, False, False, True]
    )


def check_settings_of() -> str | None:
    """They are what is asked for, and there are none before the first call."""
    found = []
    for is_called in (False, True):
        with _module(is_called=is_called) as module:
            if module is not None:
                state = _state(module)
                settings = fully_sharded.settings_of(state)
                found.append(settings is None if not is_called else settings is fully_sharded.asks_settings(state)())
    return first_difference(("settings", all(found), True))


def check_changed_since() -> str | None:
    """A state has changed while it is set otherwise, or in use."""
    return _as_it_changes(fully_sharded.changed_since, [False, True, True, False])


def check_in_use() -> str | None:
    """A state is in use while its parameters are gathered."""
    return _as_it_changes(lambda state, _: fully_sharded.in_use(state), [False, False, True, False])


def check_has_forward_before() -> str | None:
    """It is so from the end of a forward on."""
    found = []
    for is_left in (False, True):
        with _module() as module:
            if module is not None:
                _leave(module, is_left)
                found.append(fully_sharded.has_forward_before([_state(module)]))
    return first_difference(("answers", found, [False, True][: len(found)]))


def check_reshard() -> str | None:
    """What a forward has left is given up, unless its weights, or shards, were written meanwhile."""
    found = []
    for change in (_unchanged, lambda parameter: parameter._unsharded_param, lambda parameter: parameter.sharded_param):
        with _module() as module:
            if module is not None:
                _leave(module, True)
                written = change(fully_sharded.groups_of(_state(module))[0].fsdp_params[0])
                with torch.no_grad():
                    _ = written if written is None else getattr(written, "_local_tensor", written).add_(1.0)
                found.append(fully_sharded.reshard([_state(module)]))
                found.append(fully_sharded.in_use(_state(module)))
    return first_difference(("done, in use", found, [True, False, False, True, False, True][: len(found)]))


def _unchanged(_: Any) -> None:
    return None


def _leave(module: Any, is_left: bool) -> None:
    """What the end of a forward leaves."""
    if is_left:
        module.unshard()
        for group in fully_sharded.groups_of(_state(module)):
            group._record_post_forward()


def _as_it_changes(ask: Callable[[Any, Any], bool], expected: list[bool]) -> str | None:
    """Compare answers: at first, while gradients are not exchanged, while parameters are gathered, and again."""
    with _module() as module:
        if module is None:
            return None
        state = _state(module)
        before = fully_sharded.asks_settings(state)()
        found = [ask(state, before)]
        module.set_requires_gradient_sync(False)
        found.append(ask(state, before))
        module.set_requires_gradient_sync(True)
        module.unshard()
        found.append(ask(state, before))
        module.reshard()
        found.append(ask(state, before))
    return first_difference(("answers", found, expected))


def check_on_fakes() -> str | None:
    """Whatever is done to a state, and to what it holds, is undone."""
    with _module() as module:
        if module is None:
            return None
        state = _state(module)
        parameter = fully_sharded.groups_of(state)[0].fsdp_params[0]
        before, outputs = parameter._unsharded_param, parameter.all_gather_outputs
        used: list[Any] = []
        with fully_sharded.on_fakes([state], lambda item, _: used.append(item)):
            is_without = not hasattr(parameter, "_unsharded_param") and not parameter.all_gather_outputs
            state._comm_ctx.post_forward_order.append(None)
            module.set_requires_gradient_sync(False)
            module.reshard()
        found = [
            is_without,
            [item is state for item in used] == [True] * 2,
            parameter._unsharded_param is before,
            parameter.all_gather_outputs is outputs,
        ]
        found.append(not state._comm_ctx.post_forward_order)
    return first_difference(("undone", found, [True] * 5))


def check_taken_apart() -> str | None:
    """Its operators are known, and those that make chunks fill up with zeros."""
    names = ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")
    run = fully_sharded.taken_apart("chunk_cat")
    out = torch.full((2, 3), -1.0)
    if run is not None:
        run([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0])], 0, 2, out=out)
    return first_difference(
        ("known", [fully_sharded.taken_apart(name) is not None for name in names], [True] * 3),
        ("chunks", out.tolist(), [[1.0, 2.0, 4.0], [3.0, 0.0, 5.0]]),
    )


CHECKS = (
    check_states_of,
    check_is_prepared,
    check_groups_of,
    check_sharded_parameters_of,
    check_process_groups_of,
    check_unsupported,
    check_asks_settings,
    check_settings_of,
    check_changed_since,
    check_in_use,
    check_has_forward_before,
    check_reshard,
    check_on_fakes,
    check_taken_apart,
)
