"""Runs calls of operators while the allocator's events are recorded: what each takes besides operands and results.

One recording serves all calls that are asked for together. What cannot be run is told apart. Modes of the caller's do
not notice, and no warning is shown. While a profiler of the caller's is active the calls run on a thread of their own.

Source: the allocator events of `torch.profiler` (`torch_compat.profiler`).
Cost:   about 30 ms, and one run of each call.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from dovetail.analysis.liveness import Need
from dovetail.execute.operator_calls import Described, OperatorCall
from dovetail.torch_compat.dispatch import storage_key, without_modes
from dovetail.torch_compat.modes import autocast_off
from dovetail.torch_compat.profiler import (
    AllocatorEvent,
    profiler_is_active,
    record_allocator_events,
    record_allocator_events_apart,
)
from dovetail.torch_compat.rng import default_generator

_Found = TypeVar("_Found")
_Found_co = TypeVar("_Found_co", covariant=True)
_BEGIN, _END = 1_000_003, 1_000_033  # bytes of blocks that are taken before and after each call, as marks


class Trial(Protocol[_Found_co]):
    """A call that is made while the allocator's events are recorded.

    prepare, judge: what is done before and after it, whose events do not count.
    """

    def prepare(self) -> Any:
        """What the call is made with."""

    def run(self, prepared: Any) -> object:
        """The call itself. It may raise."""

    def judge(self, prepared: Any, results: object) -> _Found_co | None:
        """What is to be known of the results, which are gone afterwards."""


@contextmanager
def by_themselves() -> Iterator[None]:
    """While active, operators run without the modes, gradients and casts of the caller, and no warning is shown."""
    with ExitStack() as around:
        around.enter_context(without_modes())
        around.enter_context(warnings.catch_warnings())
        around.enter_context(torch.inference_mode(False))
        around.enter_context(torch.no_grad())
        around.enter_context(autocast_off())
        warnings.simplefilter("ignore")
        yield


def run_trials(trials: Sequence[Trial[_Found]]) -> list[tuple[_Found, int] | None]:
    """For each, what was found, and the bytes that it took from the allocator beyond what stayed. None where it could
    not be made, or nothing was found. The default generators stay where they are.
    """
    found: list[_Found | None] = []

    def run_all() -> None:
        with by_themselves():
            for trial in trials:
                found.append(_run_between_marks(trial))

    record = record_allocator_events_apart if profiler_is_active() else record_allocator_events
    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    generators = [default_generator(), *map(default_generator, range(gpus))]
    states = [generator.get_state() for generator in generators]
    try:
        _, events = record(run_all, ("cpu", "cuda") if gpus else ("cpu",))
    except (AttributeError, RuntimeError):  # the profiler of another torch: programs run without it
        return [None] * len(trials)
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
    scratch = [_scratch(window) for window in _windows(events)]
    if len(scratch) != len(trials):
        return [None] * len(trials)
    return [None if what is None else (what, more) for what, more in zip(found, scratch, strict=True)]


def run_calls(calls: Sequence[OperatorCall]) -> list[Need | None]:
    """For each call, what it needs; None where it cannot be run."""
    found = run_trials([_Measured(call) for call in calls])
    return [one and Need(one[0].scratch_bytes + one[1], one[0].kept_bytes) for one in found]


@dataclass(frozen=True, slots=True)
class _Measured:
    """A call of which it is to be known what it needs."""

    call: OperatorCall

    def prepare(self) -> tuple[list[Any], dict[str, Any]]:
        return self.call.operands()

    def run(self, prepared: tuple[list[Any], dict[str, Any]]) -> object:
        return self.call.node.target(*prepared[0], **prepared[1])

    def judge(self, prepared: tuple[list[Any], dict[str, Any]], results: object) -> Need:
        return _beyond_described(self.call, prepared, results)


def _run_between_marks(trial: Trial[_Found]) -> _Found | None:
    """What was found; None where it cannot be run. A block is taken before and after the call, whatever happens, so
    that each is found among the events.
    """
    try:
        prepared, is_run = trial.prepare(), True
    except Exception:
        prepared, is_run = None, False
    torch.empty(_BEGIN, dtype=torch.uint8, device="cpu")
    try:
        results = trial.run(prepared) if is_run else None
    except Exception:  # zeros are not among its operands' values, say
        results, is_run = None, False
    torch.empty(_END, dtype=torch.uint8, device="cpu")
    try:
        return trial.judge(prepared, results) if is_run else None
    except Exception:  # the node itself takes no such operands
        return None


def _beyond_described(call: OperatorCall, operands: object, results: object) -> Need:
    """How much more memory results have than they are described with; results that have no name live while it runs,
    but for operands that are handed back.
    """
    given = set(_memory_in(operands))
    found = results if call.node.unpack and isinstance(results, tuple | list) else (results,)
    outputs = list(zip(found, call.node.outputs, call.results, strict=False))
    kept = [0 if made is None else max(0, _allocated(x) - _described(call, made, x)) for x, _, made in outputs]
    unnamed = [_allocated(x) for x, name, _ in outputs if name is None and given.isdisjoint(_memory_in(x))]
    return Need(sum(unnamed), tuple(kept) if any(kept) else ())


def _described(call: OperatorCall, made: Described, result: object) -> int:
    """Bytes that a result seems to have. Sizes that depend on others are not known where those are not the node's."""
    if call.is_scaled and isinstance(result, torch.Tensor):
        made = Described(tuple(result.shape), result.stride(), result.dtype, result.device)
    return made.size_bytes


def _memory_in(operand: object) -> Iterator[int]:
    """The storages of tensors."""
    if isinstance(operand, torch.Tensor) and operand.layout is torch.strided:
        yield storage_key(operand)
    elif isinstance(operand, list | tuple | dict):
        for item in operand.values() if isinstance(operand, dict) else operand:
            yield from _memory_in(item)


def _allocated(result: object) -> int:
    is_strided = isinstance(result, torch.Tensor) and result.layout is torch.strided
    return result.untyped_storage().nbytes() if is_strided else 0  # type: ignore[attr-defined]


def _windows(events: Iterable[AllocatorEvent]) -> Iterator[list[AllocatorEvent]]:
    """The events of each call."""
    window: list[AllocatorEvent] | None = None
    for event in events:
        if event.size_bytes == _BEGIN:
            window = []
        elif event.size_bytes == _END:
            if window is not None:
                yield window
            window = None
        elif window is not None and event.size_bytes != -_BEGIN:
            window.append(event)


def _scratch(events: Iterable[AllocatorEvent]) -> int:
    """The most that was live at once beyond what stayed."""
    live = peak = 0
    taken: dict[int, int] = {}
    for event in events:
        if event.size_bytes > 0:
            taken[event.address] = event.size_bytes
            live += event.size_bytes
        else:
            live -= taken.pop(event.address, 0)
        peak = max(peak, live)
    return peak - live
