"""The few facts about a running autograd engine that have no public name."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import forward_ad


def backward_keeps_graph() -> bool:
    """Whether the backward that is running was called with retain_graph=True (or create_graph=True)."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def apply_without_transforms(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its `apply`, for calls around which no transform of `torch.func` runs: without the look at its levels.

    Saves 6 us where there are eight arguments.
    """
    above: Any = super(torch.autograd.Function, function)
    applied: Callable[..., Any] = above.apply
    return applied


def call_node(function: type[torch.autograd.Function], name: str) -> None:
    """Let the nodes that an autograd function leaves in graphs be called so, when a tensor is printed, for example."""
    kind: Any = function
    kind._backward_cls.__name__ = name


_ADDRESS_OR_VERSION: Any = (getattr(torch.Tensor._version, "__get__"), torch.Tensor.data_ptr)  # noqa: B009


def drop_saved_tensors(ctx: Any) -> None:
    """Release the tensors saved on an autograd.Function context, unless the graph is kept."""
    ctx.maybe_clear_saved_tensors()


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """While active, the hooks that the user set with `saved_tensors_hooks` are not called in this thread."""
    engine = torch._C._autograd
    hooks = []
    while (top := engine._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        engine._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            engine._push_saved_tensors_default_hooks(pack, unpack)


def next_sequence_number() -> int:
    """The number that autograd gives to the next node that this thread creates."""
    return torch.autograd._get_sequence_nr()


def running_sequence_number() -> int | None:
    """The number of the autograd node that runs right now in this thread; None outside a backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def running_node_name() -> str | None:
    """The name of the autograd node that runs right now in this thread; None outside a backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else str(node.name())


def engine_adds_after(node: object) -> bool:
    """Asked by a dispatch mode: whether autograd adds what this node has just given to what was there before.

    node: the context of a `torch.autograd.Function`. No node has run since, and no Python code has called the operator.
    """
    if torch._C._current_autograd_node() is not node:
        return False
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_DISPATCHING):
        if frame.f_code is _RUN_BACKWARD:
            return True
        frame = frame.f_back
    return False


_DISPATCHING = (
    "dovetail.",
    "torch.utils._python_dispatch",
    "torch._ops",
    "torch._compile",
    "torch._dynamo",
    "torch.autograd.graph",
)
_RUN_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


def version_of(tensor: torch.Tensor) -> int:
    """How often the data of the tensor was written in a way that autograd knows of; 0 where nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


_VERSION_IN_GRAPHS = "prims::_tensor_version"  # of Dynamo's


def asks_where_or_how_often(function: object) -> bool:
    """Whether a function that a function mode is told of asks for a tensor's address, or how often it was written."""
    return function in _ADDRESS_OR_VERSION or getattr(function, "_name", "") == _VERSION_IN_GRAPHS


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Make the version counter of a tensor (and of everything that counts with it) say `version`."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def version_counter_classes(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number for each tensor, equal for those whose version counters move together. Leaves no trace.

    Each counter is given a number of its own for a moment: linear, where asking about pairs is not.
    """
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    before = tuple(tensor._version for tensor in counted)
    torch._C._autograd._unsafe_set_version_counter(counted, tuple(range(len(counted))))
    marks = iter([tensor._version for tensor in counted])
    torch._C._autograd._unsafe_set_version_counter(counted, before)
    return [-1 - k if tensor.is_inference() else next(marks) for k, tensor in enumerate(tensors)]


def viewed_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd tracks this one as a view of; itself when it is not a view."""
    base = tensor._base
    return tensor if base is None else base


_interpreter = torch._C._functorch.peek_interpreter_stack


def transform_is_active() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp, ...) or a forward-mode level is being run around this."""
    return _interpreter() is not None or forward_ad._current_level >= 0


def carry_tangents(values: Iterable[object]) -> bool:
    """Whether one of these is a tensor with a tangent, at the level of forward mode that is entered."""
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in values)


def frees_arriving_gradients() -> bool:
    """Whether gradients that arrive at a `torch.autograd.Function` can die before its backward ends."""
    return hasattr(torch.autograd.Function, "boxed_grads_call")


_profiler_enabled = torch.autograd._profiler_enabled


def profiler_is_running() -> bool:
    """Whether torch.profiler or torch.autograd.profiler records right now."""
    return _profiler_enabled()


def below_autograd() -> AbstractContextManager[None]:
    """While active, operators go straight to the device's kernels: autograd does not see them, whatever the mode."""
    guard: AbstractContextManager[None] = torch._C._AutoDispatchBelowAutograd()
    return guard


@contextlib.contextmanager
def backward_within(make: Callable[[Sequence[Any], bool], AbstractContextManager[Any]]) -> Iterator[None]:
    """While active, each backward in this thread runs inside a context of its own, which `make` gives for its roots and
    whether it adds to the gradients of all leaves below them.

    A function mode that sees `Tensor.backward` is not active while that runs, nor is it in the hooks that are called.
    """
    before, thread = torch.autograd._engine_run_backward, threading.get_ident()

    @functools.wraps(before)
    def run(*args: Any, **kwargs: Any) -> Any:
        roots, inputs = args[0], args[4]
        adds = bool(kwargs.get("accumulate_grad")) and not inputs
        with make(roots, adds) if threading.get_ident() == thread else contextlib.nullcontext():
            return before(*args, **kwargs)

    torch.autograd._engine_run_backward = run
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = before


@contextlib.contextmanager
def refused_backward(refuse: Callable[[], None]) -> Iterator[None]:
    """While active, `torch.autograd.backward` and `Tensor.backward` in this thread call `refuse`, which raises."""
    before, thread = torch.autograd.backward, threading.get_ident()

    @functools.wraps(before)
    def backward(*args: Any, **kwargs: Any) -> None:
        if threading.get_ident() == thread:
            refuse()
        before(*args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = before


def refuse_inference_tensor() -> None:
    """What torch's C++ says, word by word, when an inference tensor is written; nothing in inference mode."""
    if not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone to get a "
            "normal tensor before doing inplace update.See https://github.com/pytorch/rfcs/pull/17 for more details."
        )
