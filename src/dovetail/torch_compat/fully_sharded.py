"""What `fully_shard` (FSDP2) knows under private names: its states, and how it runs on fakes."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch

from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.fakes import is_fake

_SETTINGS: dict[Any, Any] = {}
_QUESTIONS: WeakKeyDictionary[Any, Callable[[], Any]] = WeakKeyDictionary()
_OWN = "torch.distributed.fsdp._fully_shard"


def states_of(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """The states of the modules among these whose weights `fully_shard` has sharded, each once."""
    own = sys.modules.get(f"{_OWN}._fsdp_state")
    if own is None:
        return []
    found: dict[int, Any] = {}
    for module in modules:
        state = own._get_module_fsdp_state(module)
        if state is not None:
            found.setdefault(id(state), state)
    return list(found.values())


def is_prepared(state: Any) -> bool:
    """Whether a module of it was called before."""
    return state._is_root is not None


def groups_of(state: Any) -> list[Any]:
    """The groups of parameters that are gathered together. Each has `fsdp_params`."""
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.11 has one at most
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def process_groups_of(state: Any) -> list[Any]:
    """The process groups in which it gathers parameters and reduces gradients."""
    found = []
    for group in groups_of(state):
        found += [group._all_gather_process_group, group._reduce_scatter_process_group]
        if group._is_hsdp:
            found.append(group._all_reduce_process_group)
    return found


def sharded_parameters_of(state: Any) -> list[torch.Tensor]:
    """The parameters of a state, sharded."""
    return [parameter.sharded_param for group in groups_of(state) for parameter in group.fsdp_params]


def unsupported(state: Any) -> tuple[str, str] | None:
    """What a state asks for that programs do not do, and what to do instead; None if there is no such thing."""
    own = sys.modules[f"{_OWN}._fsdp_param_group"]
    for group in groups_of(state):
        if type(group.mesh_info).__name__ not in ("FSDPMeshInfo", "HSDPMeshInfo"):
            return "a mesh that shards nothing", "a mesh in which weights are sharded"
        asked = (
            ("an offload policy", type(group.offload_policy).__name__ != "OffloadPolicy", "leave it out"),
            ("an all-reduce hook", group._all_reduce_hook is not None, "leave it out"),
            ("own collectives", type(group._all_gather_comm) is not own.DefaultAllGather, "leave them out"),
            ("own collectives", type(group._reduce_scatter_comm) is not own.DefaultReduceScatter, "leave them out"),
            ("asynchronous gathering (unshard_async_op)", group.unshard_async_op, "leave it out"),
            ("resharding to a smaller mesh", group._use_post_forward_mesh, "reshard_after_forward=True or False"),
            ("a device other than the CPU", group.device.type != "cpu", "only modules on the CPU were tested"),
            (
                "parameters with own ways to be gathered",
                any(hasattr(p.sharded_param._local_tensor, "fsdp_pre_all_gather") for p in group.fsdp_params),
                "plain tensors",
            ),
        )
        for what, is_asked, instead in asked:
            if is_asked:
                return what, instead
    return None


def asks_settings(state: Any) -> Callable[[], Any]:
    """A function that gives what a state is set to, equal settings as one object; None while it is in use."""
    if state not in _QUESTIONS:
        held = weakref.ref(state)
        _QUESTIONS[state] = lambda: _settings(held())
    return _QUESTIONS[state]


_OF_GROUP = (
    *("reduce_grads", "all_reduce_grads", "reshard_after_backward", "gradient_divide_factor"),
    *("reduce_scatter_unused_params", "force_sum_reduction_for_comms", "unshard_async_op", "unshard_in_backward"),
    *("_orig_dtype", "_reduce_dtype", "reduce_scatter_max_input_buffers", "_reshard_after_forward"),
)


def _settings(state: Any) -> Any:
    return None if state is None or in_use(state) else _key_of(state)


def _key_of(state: Any) -> Any:
    prefetches = tuple(
        tuple(map(id, names)) for names in (state._states_to_forward_prefetch, state._states_to_backward_prefetch)
    )
    found: list[Any] = [prefetches, state._mp_policy, state._is_root, state._state_ctx.is_last_backward]
    for group in groups_of(state):
        found += [getattr(group, name, None) for name in _OF_GROUP]
        found += [group._all_reduce_hook is None, type(group._all_gather_comm), type(group._reduce_scatter_comm)]
    key = tuple(found)
    return _SETTINGS.setdefault(key, key)


def in_use(state: Any) -> bool:
    """Whether parameters are gathered, or something waits for a later call: gradients that are not reduced yet."""
    return _waits(state) or has_forward_before([state]) or any(map(_is_gathered, groups_of(state)))


def has_forward_before(states: Iterable[Any]) -> bool:
    """Whether a forward has run that no backward has followed, so that what it gathered may be there."""
    return any(state._comm_ctx.post_forward_order for state in states if is_prepared(state))


def reshard(states: Iterable[Any]) -> bool:
    """Free what forwards without a backward have left gathered, in all that belongs to these states.

    Nothing is done where something else waits, or where what is gathered is not what the shards hold: the next forward
    would read it. Returns whether anything was done.
    """
    done = False
    for context in {id(state._state_ctx): state._state_ctx for state in states if is_prepared(state)}.values():
        everything = list(context.all_states)
        if not has_forward_before(everything) or any(map(_waits, everything)):
            continue
        groups = [group for state in everything for group in groups_of(state)]
        if all(map(_is_as_sharded, groups)):
            for group in groups:
                group._to_sharded()
                group._post_forward_indices.clear()
            for state in everything:
                state._comm_ctx.post_forward_order.clear()
            done = True
    return done


def _waits(state: Any) -> bool:
    if state._training_state.name != "IDLE" or state._modules_to_run_forward:
        return True
    context = state._comm_ctx
    reduced = getattr(context, "reduce_scatter_states", None) or getattr(context, "reduce_scatter_state", None)
    return context.all_gather_state is not None or bool(reduced) or any(map(_group_waits, groups_of(state)))


def _group_waits(group: Any) -> bool:
    if group._training_state.name != "IDLE" or group._all_gather_result is not None:
        return True
    if group._partial_reduce_output is not None:
        return True
    for parameter in group.fsdp_params:
        unsharded = parameter.__dict__.get("_unsharded_param")
        if (unsharded is not None and unsharded.grad is not None) or parameter.unsharded_accumulated_grad is not None:
            return True
        local = parameter.sharded_param._local_tensor
        if not is_fake(local) and storage_key(local) != storage_key(parameter._sharded_param_data):
            return True  # its weights are somewhere else than what it gathers
    return False


def _is_gathered(group: Any) -> bool:
    return not group.is_sharded or bool(group._post_forward_indices)


def _is_as_sharded(group: Any) -> bool:
    """Whether what was gathered is still what this rank's shards hold, and nobody has written to it."""
    if group.is_sharded:
        return True
    for parameter in group.fsdp_params:
        whole, own = parameter.all_gather_outputs, _shard_of(parameter)
        if len(whole) != 1 or parameter._unsharded_param._version or whole[0].dtype != own.dtype:
            return False
        part = whole[0].view(-1)[own.numel() * parameter.mesh_info.shard_mesh_rank :][: own.numel()]
        if not torch.equal(part.view(torch.uint8), own.view(torch.uint8)):
            return False
    return True


def settings_of(state: Any) -> Any:
    """What `asks_settings` asks for, before a recording puts fakes in the places of parameters."""
    return _settings(state) if is_prepared(state) else None


def changed_since(state: Any, settings: Any) -> bool:
    """Whether a state is set otherwise than before, or in use.

    What remembers the order of forwards does not count where all they gathered is given up: `reshard` forgets it.
    """
    if _waits(state) or not all(group.is_sharded for group in groups_of(state)):
        return True
    return _key_of(state) is not settings


@contextlib.contextmanager
def on_fakes(states: Iterable[Any], before_use: Callable[[Any, str], None]) -> Iterator[None]:
    """While active, modules of these states gather fakes; afterwards, whatever happened, the states are as before.

    before_use: gets a state, and the name of a module's class, before a method of the module reads or changes it
    (`unshard`, `set_requires_gradient_sync`, a method that was registered as a forward), whether it is one of these or
    not.
    """
    if f"{_OWN}._fully_shard" not in sys.modules:
        yield
        return
    objects: dict[int, Any] = {}
    for state in states:
        for item in (state, state._state_ctx, state._comm_ctx):
            objects.setdefault(id(item), item)
        for group in groups_of(state):
            objects.setdefault(id(group), group)
            objects.update((id(parameter), parameter) for parameter in group.fsdp_params)
    held = [(item, dict(vars(item)), _contents_of(item)) for item in objects.values()]
    for item in objects.values():
        if hasattr(item, "all_gather_outputs"):
            item.all_gather_outputs = []
            vars(item).pop("_unsharded_param", None)
    try:
        with _memory_kept(before_use):
            yield
    finally:
        for item, attributes, contents in held:
            vars(item).clear()
            vars(item).update(attributes)
            for container, items in contents:
                container.clear()
                container.extend(items) if isinstance(container, list) else container.update(items)


def _contents_of(item: Any) -> list[tuple[Any, Any]]:
    """The containers that an object holds, with what they hold."""
    return [(x, x.copy()) for x in vars(item).values() if type(x) in (list, dict, set)]


@contextlib.contextmanager
def _memory_kept(before_use: Callable[[Any, str], None]) -> Iterator[None]:
    """While active, memory of gathered parameters is neither freed nor allocated again, and shards are the local parts
    of parameters."""
    param, group, collectives, methods = (
        sys.modules[f"{_OWN}.{name}"]
        for name in ("_fsdp_param", "_fsdp_param_group", "_fsdp_collectives", "_fully_shard")
    )
    state_of = methods.FSDPModule._get_fsdp_state

    def used(module: Any) -> Any:
        state = state_of(module)
        before_use(state, type(module).__name__)
        return state

    places: list[tuple[Any, str, Any]] = [
        (param, "alloc_storage", _nothing),
        (param, "free_storage", _nothing),
        (group, "alloc_storage", _nothing),
        (collectives, "_get_param_all_gather_inputs", lambda parameters: [[_shard_of(x)] for x in parameters]),
        (param.FSDPParam, "all_gather_inputs", lambda parameter: [_shard_of(parameter)]),
        (methods.FSDPModule, "_get_fsdp_state", used),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    thread = threading.get_ident()

    def of_thread(own: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return (own if threading.get_ident() == thread else usual)(*args)

        return call

    for (owner, name, other), (_, _, usual) in zip(places, before, strict=True):
        is_property = isinstance(usual, property)
        setattr(owner, name, property(of_thread(other, usual.fget)) if is_property else of_thread(other, usual))
    try:
        yield
    finally:
        for owner, name, other in before:
            setattr(owner, name, other)


def _nothing(_: Any) -> None:
    return None


def _shard_of(parameter: Any) -> torch.Tensor:
    """What a parameter gives to be gathered: its local part, flat, with zeros up to the length of all ranks' parts."""
    local = parameter.sharded_param._local_tensor
    flat: torch.Tensor = local.view(-1)
    missing = parameter.padded_sharded_param_size.numel() - flat.numel()
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    return flat if parameter.param_dtype is None else flat.to(parameter.param_dtype)


# --- its operators ------------------------------------------------------------------------------------------------


def taken_apart(name: str) -> Callable[..., Any] | None:
    """What one of its operators does, in operators of torch; None for an unknown one."""
    return _OPERATORS.get(name)


def _copy_in(inputs: Any, output: torch.Tensor, sizes: list[int], length: int, rank: int) -> Any:
    part = output.narrow(0, length * rank, length)
    for place, tensor in zip(part.split(sizes), inputs, strict=True):
        place.copy_(tensor)
    return part, output


def _copy_out(gathered: torch.Tensor, sizes: list[int], dim: int = 0, *, out: Any) -> None:
    for place, part in zip(out, gathered.split(sizes, dim), strict=True):
        place.copy_(part)


def _chunks_in(tensors: Any, dim: int, count: int, *, out: torch.Tensor) -> None:
    """Each tensor is cut into as many pieces as there are rows, of equal length, with zeros behind the last."""
    assert dim == 0, "it is the dimension of shards"
    first = 0
    for tensor in tensors:
        rows = -(-tensor.shape[0] // count) * count
        length = rows // count * math.prod(tensor.shape[1:])
        place = out[:, first : first + length]
        first += length
        if rows != tensor.shape[0]:
            padded = tensor.new_zeros((rows, *tensor.shape[1:]))
            padded[: tensor.shape[0]].copy_(tensor)
            tensor = padded
        place.copy_(tensor.reshape(count, -1))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "all_gather_copy_in": _copy_in,
    "split_with_sizes_copy": _copy_out,
    "chunk_cat": _chunks_in,
    "copy_": lambda tensor, data: tensor.copy_(data),
}
