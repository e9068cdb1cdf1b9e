"""`dovetail.compile(function_or_module)`: compile without Dynamo, by recording one call.

The function is run once on fake tensors for each kind of call: structure of the arguments, their shapes, strides,
dtypes and devices, which tensor is passed twice, which ones require gradients, plain arguments, and every Python value
that the function reads (see `dovetail.reach`). Each kind is a *variant*; variants are kept up to a limit, beyond which
calls run in eager mode, with a warning.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch

from dovetail.capture.exclusive import RUNNING, is_part_of_a_step
from dovetail.capture.recording import Recording
from dovetail.execute.graph import CompiledGraph
from dovetail.frontends.copies import reduced
from dovetail.frontends.donation import Donation
from dovetail.frontends.function_captures import FunctionCaptures
from dovetail.frontends.function_variants import FunctionVariant
from dovetail.frontends.statistics import Stats
from dovetail.frontends.structure import unflatten
from dovetail.frontends.targets import arguments_of_call, as_callable, default_options
from dovetail.frontends.variant_cache import VariantCache
from dovetail.ir.text import identifier
from dovetail.pipeline.doors import COMPILE
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import Options, resolve_options
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.dynamo import not_traced
from dovetail.torch_compat.modes import function_mode_is_active
from dovetail.torch_compat.version import ensure_supported_torch


def compile(
    target: Callable[..., Any] | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] | None = None,
    **options: Any,
) -> CompiledFunction:
    """Compile a function or module without Dynamo.

    Args:
        target: a function of tensors, a module (including `fx.GraphModule`), or an exported program, whose dynamic
            sizes are kept. It is unchanged and remains usable.
        example_inputs: arguments to compile for at once. By default, the first call compiles.
        options: see `dovetail.pipeline.options`.

    Returns:
        A callable with the target's arguments. Attributes of a module are available on it.

    Raises:
        DovetailError: an option is unknown, or the target cannot be recorded.
    """
    ensure_supported_torch()
    resolved = resolve_options({**default_options(target), **options}, PASS_NAMES, COMPILE)
    compiled = CompiledFunction(as_callable(target), resolved)
    if example_inputs is not None:
        compiled.prepare(*arguments_of_call("example_inputs", example_inputs))
    return compiled


def target_of(compiled: CompiledFunction) -> Callable[..., Any]:
    """What was compiled. No attribute says so, as attributes are the module's."""
    target: Callable[..., Any] = vars(compiled)["_target"]
    return target


_OWN_ATTRIBUTES = frozenset(("_target", "_options", "_donation", "_cache", "_captures"))


class CompiledFunction:
    """A compiled function or module; see `compile`."""

    _dovetail_compiled_from = "_target"

    def __init__(self, target: Callable[..., Any], options: Options) -> None:
        self._target = target
        self._options = options
        self._donation = Donation.of(target, options.donate)
        name = identifier(getattr(target, "__name__", type(target).__name__))
        self._cache = VariantCache[FunctionVariant](name, options.max_variants)
        self._captures = FunctionCaptures(target, self._cache, options, self._donation)
        vars(self)["__doc__"] = target.__doc__

    @not_traced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target."""
        if is_part_of_a_step():  # or of an outer function, whose program holds what the target does
            return self._target(*args, **kwargs)
        counts = self._cache.counts
        counts.calls += 1
        if transform_is_active() or function_mode_is_active():  # the program would not see what they do to tensors
            counts.eager_calls += 1
            return self._target(*args, **kwargs)
        with RUNNING:
            ready = self._captures.ready(args, kwargs)
            if ready is not None:
                graph, inputs, results = ready
                return unflatten(list(graph(*inputs)), results)
        counts.eager_calls += 1
        for tensor, _ in self._donation.tensors(args, kwargs):
            torch.autograd.graph.increment_version(tensor)
        results = self._target(*args, **kwargs)
        self._captures.ran_in_eager_mode()
        return results

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A function that is written as a method takes its object as the first argument; a module is no method."""
        is_method = instance is not None and isinstance(self._target, FunctionType)
        return MethodType(self, instance) if is_method else self

    @property
    def options(self) -> Options:
        """The options that it is compiled with."""
        return self._options

    def with_options(self, **changes: Any) -> CompiledFunction:
        """The same target, nothing compiled yet. changes: fields of `Options` with other values."""
        COMPILE.refuse_unread(changes)
        return CompiledFunction(self._target, replace(self._options, **changes))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments without running."""
        self._captures.prepare(args, kwargs)

    def record(self, *args: Any, **kwargs: Any) -> tuple[Recording, tuple[int, ...]]:
        """Record for these arguments, without compiling; and how often each of its inputs was passed."""
        return self._captures.recorded(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if "_target" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        target = self.__dict__["_target"]
        if name == "__signature__":  # `inspect.signature` would take a method for its function
            return _signature(target)
        return getattr(target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_ATTRIBUTES:
            super().__setattr__(name, value)
        else:
            setattr(self._target, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return CompiledFunction(copy.deepcopy(self._target, memo), self._options)

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        options = replace(self._options, compile_trace=None)
        return reduced(self, self._target, CompiledFunction, self._target, options)

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """The compiled graph of each variant, oldest first."""
        return tuple(graph for variant in self._cache.variants for graph in variant.runner.graphs.graphs)

    @property
    def stats(self) -> Stats:
        """What happened so far."""
        return self._cache.stats


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(target)
    except ValueError as error:  # of a function of C
        raise AttributeError("__signature__") from error
