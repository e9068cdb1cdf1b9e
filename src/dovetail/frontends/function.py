"""`dovetail.compile(function_or_module)`: compile without Dynamo, by recording one call.

The function is run once on fake tensors for each kind of call: structure of the arguments, their shapes, strides,
dtypes and devices, which tensor is passed twice, which ones require gradients, plain arguments, and every Python value
that the function reads (see `capture.python_state`). Each kind is a *variant*; variants are kept up to a limit, beyond
which calls run in eager mode, with a warning.
"""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from dovetail.capture.exclusive import RECORDING, is_recording
from dovetail.capture.python_state import ambient_modes
from dovetail.capture.recording import Recording
from dovetail.errors import (
    DataDependentControlFlow,
    DovetailError,
    DovetailWarning,
)
from dovetail.execute.graph import CompiledGraph
from dovetail.frontends.call_kind import Call, SameKind
from dovetail.frontends.donation import Donation
from dovetail.frontends.inputs import size_hints, with_parts
from dovetail.frontends.patience import Patience
from dovetail.frontends.reach import Reach, Reaches
from dovetail.frontends.recorded_call import CallRecorder, all_dims
from dovetail.frontends.size_guard import SizeGuard
from dovetail.frontends.statistics import Counts, Stats, VariantStats
from dovetail.frontends.structure import Structure, flatten_call, unflatten
from dovetail.frontends.targets import as_callable, default_options
from dovetail.ir.text import identifier
from dovetail.pipeline.doors import COMPILE
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import Options, decompositions, resolve_options
from dovetail.pipeline.variants import GraphVariants
from dovetail.reach.guard import ReadGuards
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.dynamo import not_traced
from dovetail.torch_compat.modes import function_mode_is_active
from dovetail.torch_compat.subclasses import is_wrapper
from dovetail.torch_compat.version import ensure_supported_torch

logger = logging.getLogger("dovetail")


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
        compiled.prepare(*example_inputs)
    return compiled


@dataclass(slots=True, eq=False)
class _Variant:
    graphs: GraphVariants
    sources: tuple[int, ...]
    has_wrappers: bool
    output_spec: Structure
    guard: SizeGuard | None
    reads: ReadGuards
    reason: str = ""
    calls: int = 0


_OWN_ATTRIBUTES = frozenset(
    {
        *("_target", "_options", "_name", "_reaches", "_variants", "_last", "_warned", "_donation"),
        *("_counts", "_patience"),
    }
)


class CompiledFunction:
    """A compiled function or module; see `compile`."""

    def __init__(self, target: Callable[..., Any], options: Options) -> None:
        self._target = target
        self._options = options
        self._donation = Donation.of(target, options.donate)
        self._name = identifier(getattr(target, "__name__", type(target).__name__))
        self._reaches = Reaches(target)
        self._variants: dict[tuple[object, ...], list[_Variant]] = {}
        self._last: tuple[SameKind, _Variant] | None = None
        self._warned = False
        self._counts = Counts()
        self._patience = Patience()

    @not_traced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target."""
        if is_recording():  # by an outer function, whose program holds what the target does
            return self._target(*args, **kwargs)
        self._counts.calls += 1
        if transform_is_active() or function_mode_is_active():  # the program would not see what they do to tensors
            self._counts.eager_calls += 1
            return self._target(*args, **kwargs)
        chosen = None
        if not self._patience.waits():
            with RECORDING:
                chosen = self._choose(args, kwargs)
        if chosen is None:
            for tensor, _ in self._donation.tensors(args, kwargs):
                torch.autograd.graph.increment_version(tensor)
            return self._call_eager(args, kwargs)
        graph, inputs, output_spec = chosen
        outputs = graph(*inputs)
        return unflatten(list(outputs), output_spec)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A function that is written as a method takes its object as the first argument; a module is no method."""
        is_method = instance is not None and isinstance(self._target, FunctionType)
        return MethodType(self, instance) if is_method else self

    def _choose(self, args: Any, kwargs: Any) -> tuple[CompiledGraph, list[Any], Structure] | None:
        """The graph for a call, compiled when it is new, and its inputs; None when the limit is reached."""
        chosen = self._chosen(self._describe(args, kwargs), args, kwargs)
        if chosen is None:
            self._patience.missed()
        else:
            self._patience.found()
        return chosen

    def _chosen(self, call: Call, args: Any, kwargs: Any) -> tuple[CompiledGraph, list[Any], Structure] | None:
        last = self._last
        if last is not None and last[0].holds(call.spec, call.everything, call.modes) and last[1].reads.holds():
            variant = last[1]
        else:
            found, call = self._variant_for(call, args, kwargs)
            if found is None:
                return None
            variant = found
        everything = call.everything
        inputs = [everything[i] for i in variant.sources]
        if variant.has_wrappers:
            inputs = with_parts(inputs)
        graph = variant.graphs.select(inputs)
        variant.calls += graph is not None
        return None if graph is None else (graph, inputs, variant.output_spec)

    def _variant_for(self, call: Call, args: Any, kwargs: Any) -> tuple[_Variant | None, Call]:
        """The variant for a call, recorded when it is new; and the call, described by what can be reached now."""
        key = call.key(self._options.dynamic)
        variant = self._find(key, call.everything)
        if variant is None and (reach := self._reaches.anew(call.leaves, call.reach)) is not call.reach:
            call = self._describe(args, kwargs, reach)
            key = call.key(self._options.dynamic)
            variant = self._find(key, call.everything)
        if variant is None:
            self._counts.misses += 1
            count = sum(map(len, self._variants.values()))
            if count >= self._options.max_variants:
                return None, call
            reason = self._what_changed(key)
            logger.info("%s: variant %d, because %s", self._name, count, reason)
            variant = self._compile(call, reason)
            self._variants.setdefault(key, []).append(variant)
        reads_gradients = call.reach.state.reads_gradients
        if not (self._options.dynamic or reads_gradients) and SameKind.can_tell(call.everything):
            self._last = SameKind(call.spec, call.everything, call.modes), variant
        return variant, call

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
        with RECORDING:
            self._prepare(args, kwargs)

    def _prepare(self, args: Any, kwargs: Any) -> None:
        call = self._describe(args, kwargs)
        call = self._describe(args, kwargs, self._reaches.anew(call.leaves, call.reach))
        key, everything = call.key(self._options.dynamic), call.everything
        if self._find(key, everything) is None:
            variant = self._compile(call, self._what_changed(key))
            self._variants.setdefault(key, []).append(variant)

    def record(self, *args: Any, **kwargs: Any) -> tuple[Recording, tuple[int, ...]]:
        """Record for these arguments, without compiling; and how often each of its inputs was passed."""
        with RECORDING:
            call = self._describe(args, kwargs)
            variant = self._capture(call, unknown_sizes=True)
            inputs = [call.everything[i] for i in variant.sources]
            counts = tuple(sum(other is tensor for other in call.everything) for tensor in inputs)
            return variant.graphs.record_for(with_parts(inputs)), counts

    def __getattr__(self, name: str) -> Any:
        if "_target" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.__dict__["_target"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_ATTRIBUTES:
            super().__setattr__(name, value)
        else:
            setattr(self._target, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return CompiledFunction(copy.deepcopy(self._target, memo), self._options)

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """The compiled graph of each variant, oldest first."""
        variants = [variant for variants in self._variants.values() for variant in variants]
        return tuple(graph for variant in variants for graph in variant.graphs.graphs)

    @property
    def stats(self) -> Stats:
        """What happened so far."""
        variants = [variant for variants in self._variants.values() for variant in variants]
        return self._counts.stats(VariantStats(variant.reason, variant.calls) for variant in variants)

    # --- describing a call ----------------------------------------------------------------------------------

    def _describe(self, args: Any, kwargs: Any, reach: Reach | None = None) -> Call:
        leaves, spec = flatten_call(args, kwargs)
        reach = reach or self._reaches.of(leaves)
        tensors = [slot.read() for slot in reach.slots]
        if any(not isinstance(tensor, torch.Tensor) for tensor in tensors):
            reach = self._reaches.anew(leaves, reach)
            tensors = [slot.read() for slot in reach.slots]
        return Call(reach, leaves, spec, tensors, [*tensors, *leaves], ambient_modes())

    def _find(self, key: tuple[object, ...], everything: list[Any]) -> _Variant | None:
        self._variants = {
            k: alive for k, found in self._variants.items() if (alive := [v for v in found if v.reads.is_alive])
        }
        for variant in self._variants.get(key, ()):
            if not variant.reads.holds():
                continue
            if variant.guard is None or variant.guard.holds([everything[i] for i in variant.sources]):
                return variant
        return None

    def _what_changed(self, key: tuple[object, ...]) -> str:
        """The reason for a new variant, compared with the newest one."""
        if not self._variants:
            return "it is the first call"
        newest = list(self._variants)[-1]
        if newest == key:
            return self._variants[key][-1].reads.why() or "no program fits these sizes"
        labels = (
            "the structure of the arguments",
            "a tensor or argument",
            "what the function reaches, or a mode of torch,",
            "which tensors have a gradient",
        )
        for label, old, new in zip(labels, newest, key, strict=True):
            if old != new:
                pairs = zip(old, new, strict=False) if isinstance(old, tuple) and isinstance(new, tuple) else ()
                return f"{label} changed: " + next((f"{a} -> {b}" for a, b in pairs if a != b), "see the call")
        return "no program fits these sizes"

    def _call_eager(self, args: Any, kwargs: Any) -> Any:
        self._counts.eager_calls += 1
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._name} was compiled for {self._options.max_variants} kinds of calls; further kinds run in "
                "eager mode. Raise max_variants, or call it with fewer shapes.",
                DovetailWarning,
                stacklevel=3,
            )
        return self._target(*args, **kwargs)

    # --- capturing ------------------------------------------------------------------------------------------

    def _compile(self, call: Call, reason: str) -> _Variant:
        """A variant with its graph for a call."""
        start = time.process_time()
        try:
            variant = self._capture_and_select(call)
        except DataDependentControlFlow as error:
            try:  # with symbols for sizes that depend on data, which costs more to record
                variant = self._capture_and_select(call, unknown_sizes=True)
            except DovetailError:
                raise error from None
        finally:
            self._counts.seconds += time.process_time() - start
        self._counts.captures += 1
        variant.reason = reason
        return variant

    def _capture_and_select(self, call: Call, *, unknown_sizes: bool = False) -> _Variant:
        variant = self._capture(call, unknown_sizes)
        variant.graphs.select(with_parts([call.everything[i] for i in variant.sources]))
        self._reaches.keep(call.leaves, call.reach)
        return variant

    def _capture(self, described: Call, unknown_sizes: bool) -> _Variant:
        args, kwargs = unflatten(described.leaves, described.spec)
        given = self._donation.places(args, kwargs, described.everything)
        recorder = CallRecorder(self._target, described, decompositions(self._options))
        inputs = [described.everything[i] for i in recorder.sources]
        dims = all_dims if self._options.dynamic else None
        recording = recorder.record(inputs, dims=dims, unknown_sizes=unknown_sizes)
        hints = size_hints(recording.specs)
        donated = {recorder.sources.index(place): name for place, name in given.items()}
        again = partial(recorder.record, unknown_sizes=unknown_sizes)
        graphs = GraphVariants(recording, again, self._name, self._options, hints, recorder.run, donated)
        declared = [stand_in.declared for stand_in in recording.stand_ins]
        guard = SizeGuard.of(declared, recording.size_conditions) if self._options.dynamic else None
        has_wrappers = any(map(is_wrapper, inputs))
        return _Variant(graphs, recorder.sources, has_wrappers, recorder.output_spec, guard, recorder.reads)
