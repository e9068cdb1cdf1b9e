"""What `DistributedDataParallel` knows under private names, and its call."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as _module_of_torch

from dovetail.torch_compat.graph_leaves import nodes_below

_distributed: Any = _module_of_torch


@contextmanager
def forward_replaced(run: Callable[..., Any]) -> Iterator[None]:
    """While active, `run(module, args, kwargs)` is what a module of data parallel training does when it is called.

    args: None where somebody else (`replicate`) lets it do what comes before a forward, and calls its inner module.
    """
    if not dist.is_available():
        yield
        return
    kind: Any = DistributedDataParallel
    before, before_forward = kind.forward, kind._pre_forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self, args, kwargs)

    def apart(self: Any, *_: Any, **kwargs: Any) -> Any:
        return run(self, None, kwargs)

    kind.forward, kind._pre_forward = forward, apart
    try:
        yield
    finally:
        kind.forward, kind._pre_forward = before, before_forward


@contextmanager
def joins_noticed(notice: Callable[[], None]) -> Iterator[None]:
    """While active, `notice` is called before a module in `join()` exchanges anything: ranks without batches answer
    what modules exchange, and nothing else.
    """
    if not dist.is_available():
        yield
        return
    kind: Any = _distributed.Join
    before, thread = kind.__dict__["notify_join_context"], threading.get_ident()

    def notify(joinable: Any) -> Any:
        if threading.get_ident() == thread and joinable._join_config.enable:
            notice()
        return before.__func__(joinable)

    kind.notify_join_context = staticmethod(notify)
    try:
        yield
    finally:
        kind.notify_join_context = before


def parameters_of(module: Any) -> list[torch.nn.Parameter]:
    """The parameters whose gradients a module reduces, in the order in which its reducer counts them."""
    found: dict[int, torch.nn.Parameter] = {}
    for path, part in module.module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.requires_grad and f"{path}.{name}" not in module.parameters_to_ignore:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def buffers_to_sync(module: Any) -> list[torch.Tensor]:
    """The buffers that the next call gets from rank 0 before it runs."""
    if not (module.require_forward_param_sync and module.broadcast_buffers):
        return []
    return [buffer for name, buffer in module.module.named_buffers() if name not in module.parameters_to_ignore]


def sync_buffers(module: Any, buffers: list[torch.Tensor]) -> None:
    """What a call does with them."""
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(buffers)):
        module._distributed_broadcast_coalesced(buffers, module.broadcast_bucket_size, 0)


def run_inside(module: Any, args: Any, kwargs: Any) -> Any:
    """Call the module within."""
    return module._run_ddp_forward(*args, **kwargs)


def gradient_node(parameter: torch.Tensor) -> Any:
    """The node of autograd that leaves a parameter's gradient; its hooks run after that."""
    return torch.autograd.graph.get_gradient_edge(parameter).node


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call something once the backward pass that runs has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def finds_unused(module: Any) -> bool:
    """Whether ranks tell each other in each call which parameters have gradients."""
    return bool(module.find_unused_parameters) and not module.static_graph


def unused_by(module: Any, output: Any) -> list[int]:
    """The parameters, by number, that do not lead to an output of the module."""
    seen = set(nodes_below(_distributed._find_tensors(output)))
    return [number for number, parameter in enumerate(parameters_of(module)) if gradient_node(parameter) not in seen]


def through_sink(module: Any, output: Any) -> Any:
    """The output that a module hands out which looks for unused parameters: gradients of it may be undefined."""
    tensors, spec, is_remote = _distributed._tree_flatten_with_rref(output)
    led = [torch.is_tensor(tensor) and tensor.grad_fn is not None for tensor in tensors]
    if not any(led):
        return output
    passed = _distributed._DDPSink.apply(weakref.ref(module), *tensors)
    chosen = [new if is_led else old for new, old, is_led in zip(passed, tensors, led, strict=True)]
    return _distributed._tree_unflatten_with_rref(chosen, spec, is_remote)


def buckets_of(module: Any) -> list[list[int]] | None:
    """The parameters in each bucket of gradients, by number; None before the reducer has sorted them for good."""
    if finds_unused(module):  # it does not sort them
        return _buckets_at_first(module)
    if not module._has_rebuilt_buckets:
        return None
    told = _told_by(module)
    if told is None:  # it notes them at a call now and then
        module.reducer._set_ddp_runtime_logging_sample_rate(1)
        module.logger.set_runtime_stats_and_log()
        told = _told_by(module)
    return told


def _told_by(module: Any) -> list[list[int]] | None:
    text = module._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")
    return None if not text else [[int(number) for number in bucket.split()] for bucket in text.split(",")]


def _buckets_at_first(module: Any) -> list[list[int]]:
    config = getattr(module, "_bucket_config", None)
    if config is not None:
        limits, _ = config.compute_bucket_size_limits(static_graph=False, find_unused_parameters=True)
    else:
        limits = [module.bucket_bytes_cap]
        if module.bucket_bytes_cap_default:
            limits.insert(0, dist._DEFAULT_FIRST_BUCKET_BYTES)
    parameters: list[torch.Tensor] = list(parameters_of(module))
    buckets, _ = dist._compute_bucket_assignment_by_size(parameters, limits, [False] * len(parameters))
    return [list(bucket) for bucket in reversed(buckets)]


def sizes_told(module: Any) -> list[int]:
    """The bytes of each bucket."""
    name = "bucket_sizes" if finds_unused(module) else "rebuilt_bucket_sizes"
    text = module._get_ddp_logging_data().get(name, "")
    return [int(size) for size in text.split(",") if size.strip()]


_ASKED: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("batched_grad_copy=True", lambda m: getattr(m, "batched_grad_copy", False), "leave it out"),
    (
        "skip_all_reduce_unused_params=True",
        lambda m: getattr(m, "skip_all_reduce_unused_params", False),
        "leave it out",
    ),
    ("a mixed precision policy", lambda m: m.mixed_precision is not None, "use torch.autocast"),
    ("a communication hook", lambda m: m._comm_hooks or "comm_hook" in m._get_ddp_logging_data(), "leave it out"),
    ("a hook for buffers", lambda m: hasattr(m, "buffer_hook"), "leave it out"),
    ("gradients that are reduced later", lambda m: m._delay_all_reduce_params, "leave them out"),
    ("the reducer in Python", lambda m: m._use_python_reducer, "torch._dynamo.config.optimize_ddp = True"),
    ("device_ids", lambda m: m.device_ids, "only modules on the CPU were tested"),
    ("a device other than the CPU", lambda m: m.device_type != "cpu", "only modules on the CPU were tested"),
    ("join()", lambda m: m._join_config.enable, "let every rank have as many batches, and leave it out"),
)


def unsupported(module: Any) -> tuple[str, str] | None:
    """What a module asks for that programs do not do, and what to do instead; None if there is no such thing."""
    return next(((what, instead) for what, asks, instead in _ASKED if asks(module)), None)


_SETTINGS: dict[Any, Any] = {}
_QUESTIONS: WeakKeyDictionary[Any, Callable[[], Any]] = WeakKeyDictionary()


def asks_settings(module: Any) -> Callable[[], Any]:
    """A function that gives what a module is set to, equal settings as one object."""
    if module not in _QUESTIONS:
        held = weakref.ref(module)
        _QUESTIONS[module] = lambda: _settings(held())
    return _QUESTIONS[module]


def _settings(module: Any) -> Any:
    if module is None:
        return None
    names = ("broadcast_buffers", "find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    plain = tuple(bool(getattr(module, name)) for name in names)
    hooks = (len(module._comm_hooks), hasattr(module, "buffer_hook"), module.mixed_precision is None)
    found = (*plain, *hooks, module._join_config.enable, module._has_rebuilt_buckets)
    return _SETTINGS.setdefault(found, found)
