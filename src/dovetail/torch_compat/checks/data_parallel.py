"""Checks of `torch_compat.data_parallel`, with a module of a process group of this process alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dovetail.torch_compat import data_parallel
from dovetail.torch_compat.checks.collectives import group_of_one
from dovetail.torch_compat.checks.difference import first_difference


@contextmanager
def _module(calls: int = 0, **options: Any) -> Iterator[Any]:
    """A module that was trained for some calls; None where none can be made."""
    with group_of_one(computes=calls > 0) as group:
        if group is None:
            yield None
            return
        with torch.random.fork_rng(devices=()):
            net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        module = DistributedDataParallel(net, bucket_cap_mb=0.00001, **options)
        with torch.enable_grad():
            for _ in range(calls):
                module(torch.ones(2, 2)).sum().backward()
        yield module


def check_forward_replaced() -> str | None:
    """A call of a module arrives, with its arguments; later calls are as before."""
    before = DistributedDataParallel.forward
    module: Any = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(module)
    with data_parallel.forward_replaced(lambda *called: called):
        found = module.forward(1, two=2)
        apart = module._pre_forward(1, two=2)
    return first_difference(
        ("call", found == (module, (1,), {"two": 2}), True),
        ("apart", apart == (module, None, {"two": 2}), True),
        ("forward", DistributedDataParallel.forward is before, True),
    )


def check_joins_noticed() -> str | None:
    """It is told of modules in `join()` alone."""
    told: list[bool] = []
    with _module() as module:
        if module is None:
            return None
        with data_parallel.joins_noticed(lambda: told.append(module._join_config.enable)):
            data_parallel._distributed.Join.notify_join_context(module)
            with_join = module._join_config._replace(enable=True)
            module._join_config = with_join
            with contextlib.suppress(Exception):  # nothing has begun it
                data_parallel._distributed.Join.notify_join_context(module)
    return first_difference(("told", told, [True]))


def check_parameters_of() -> str | None:
    """They are those that require gradients, each once."""
    with _module() as module:
        if module is None:
            return None
        module.module[0].bias.requires_grad_(False)
        found, expected = data_parallel.parameters_of(module), [p for p in module.parameters() if p.requires_grad]
    return first_difference(("parameters", list(map(id, found)), list(map(id, expected))))


def check_buffers_to_sync() -> str | None:
    """They are those of the module, before a call that follows an exchange of gradients."""
    with _module() as module:
        if module is None:
            return None
        counts = [len(data_parallel.buffers_to_sync(module))]
        module.require_forward_param_sync = False
        counts.append(len(data_parallel.buffers_to_sync(module)))
    return first_difference(("buffers", counts, [3, 0]))


def check_sync_buffers() -> str | None:
    """It writes them, which autograd does not count."""
    with _module() as module:
        if module is None:
            return None
        buffers = list(module.buffers())
        versions = [buffer._version for buffer in buffers]
        data_parallel.sync_buffers(module, buffers)
        after = [buffer._version for buffer in buffers]
    return first_difference(("versions", after, versions))


def check_run_inside() -> str | None:
    """The module within runs, and no other part of the call."""
    with _module() as module:
        if module is None:
            return None
        module.eval()
        same = torch.equal(data_parallel.run_inside(module, (torch.ones(1, 2),), {}), module.module(torch.ones(1, 2)))
    return first_difference(("same", same, True))


def check_gradient_node() -> str | None:
    """Its hooks run once the gradient is there."""
    seen = []
    with torch.enable_grad():
        parameter = nn.Parameter(torch.ones(2))
        node = data_parallel.gradient_node(parameter)
        node.register_hook(lambda *_: seen.append(parameter.grad is not None))
        (parameter * 2).sum().backward()
    return first_difference(("seen", seen, [True]))


def check_at_end_of_backward() -> str | None:
    """What is given is called before backward returns, after the last gradient."""
    seen: list[str] = []
    with torch.enable_grad():
        weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        end = lambda: seen.append("end")  # noqa: E731
        weights[1].register_hook(lambda _: data_parallel.at_end_of_backward(end))
        weights[0].register_hook(lambda _: seen.append("gradient"))
        (weights[0] * weights[1]).sum().backward()
    return first_difference(("order", seen, ["gradient", "end"]))


def check_buckets_of() -> str | None:
    """They are known after two calls, and hold each parameter once."""
    with _module(calls=1) as module:
        early = None if module is None else data_parallel.buckets_of(module)
    with _module(calls=2) as module:
        found = [[0]] if module is None else data_parallel.buckets_of(module)
        count = 1 if module is None else 6
    with _module(find_unused_parameters=True) as module:
        first = [[0]] if module is None else data_parallel.buckets_of(module)
    numbers = [sorted(number for bucket in buckets or () for number in bucket) for buckets in (found, first)]
    return first_difference(("early", early, None), ("numbers", numbers, [list(range(count))] * 2))


def check_sizes_told() -> str | None:
    """They are those of the parameters in each bucket."""
    with _module(calls=2) as module:
        if module is None:
            return None
        buckets, parameters = data_parallel.buckets_of(module) or [], data_parallel.parameters_of(module)
        sizes = [sum(parameters[number].nbytes for number in bucket) for bucket in buckets]
        found = data_parallel.sizes_told(module)
    with _module(find_unused_parameters=True) as module:
        buckets, parameters = data_parallel.buckets_of(module) or [], data_parallel.parameters_of(module)
        sizes += [sum(parameters[number].nbytes for number in bucket) for bucket in buckets]
        found += data_parallel.sizes_told(module)
    return first_difference(("sizes", found, sizes))


def check_unsupported() -> str | None:
    """A plain module asks for nothing that programs do not do; another one does."""
    with _module() as module:
        plain = None if module is None else data_parallel.unsupported(module)
        if module is not None:
            module.device_ids = [0]
        other = ("device_ids", "") if module is None else data_parallel.unsupported(module)
    return first_difference(("plain", plain, None), ("other", other and other[0], "device_ids"))


def check_finds_unused() -> str | None:
    """A static graph needs no looking."""
    found = []
    for looks, is_static in ((False, False), (True, False), (True, True)):
        with _module(find_unused_parameters=looks) as module:
            if module is None:
                return None
            module.static_graph = is_static
            found.append(data_parallel.finds_unused(module))
    return first_difference(("found", found, [False, True, False]))


def check_unused_by() -> str | None:
    """They are those that do not lead to what is given."""
    with _module() as module, torch.enable_grad():
        if module is None:
            return None
        found = data_parallel.unused_by(module, {"out": [module.module[0](torch.ones(1, 2))]})
    return first_difference(("unused", found, [2, 3, 4, 5]))


def check_through_sink() -> str | None:
    """Each tensor of a graph becomes another one, whose gradient may be undefined; others stay."""
    with _module(find_unused_parameters=True) as module, torch.enable_grad():
        if module is None:
            return None
        weight, plain = torch.ones(2, requires_grad=True), torch.ones(2)
        output = {"a": weight * 2, "b": [weight * 3, plain], "c": 5}
        found = data_parallel.through_sink(module, output)
        found["a"].sum().backward()
        kept = data_parallel.through_sink(module, output["c"])
    same = (found["a"] is output["a"], found["b"][1] is plain, found["c"], kept)
    return first_difference(("same", same, (False, True, 5, 5)), ("gradient", str(weight.grad), "tensor([2., 2.])"))


def check_asks_settings() -> str | None:
    """Equal settings are one object, and others are another one."""
    with _module() as module:
        if module is None:
            return None
        ask = data_parallel.asks_settings(module)
        found = [ask(), ask()]
        module.broadcast_buffers = False
        found.append(ask())
    return first_difference(("same", (found[0] is found[1], found[1] is found[2]), (True, False)))


CHECKS = (
    check_asks_settings,
    check_finds_unused,
    check_joins_noticed,
    check_through_sink,
    check_unused_by,
    check_forward_replaced,
    check_parameters_of,
    check_buffers_to_sync,
    check_sync_buffers,
    check_run_inside,
    check_gradient_node,
    check_at_end_of_backward,
    check_buckets_of,
    check_sizes_told,
    check_unsupported,
)
