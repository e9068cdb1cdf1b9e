"""Runs calls of operators while the allocator's events are recorded: what each takes besides operands and results.

One recording serves all calls that are asked for together. What cannot be run is told apart. Modes of the caller's do
not notice, and no warning is shown. While a profiler of the caller's is active nothing is measured, as there can be
only one.

Source: the allocator events of `torch.profiler` (`torch_compat.profiler`).
Cost:   about 30 ms, and one run of each call.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import torch

from dovetail.analysis.liveness import Need
from dovetail.execute.operator_calls import Described, OperatorCall
from dovetail.torch_compat.dispatch import without_modes
from dovetail.torch_compat.modes import autocast_off
from dovetail.torch_compat.profiler import AllocatorEvent, record_allocator_events
from dovetail.torch_compat.rng import default_generator

_BEGIN, _END = 1_000_003, 1_000_033  # bytes of blocks that are taken before and after each call, as marks


def run_calls(calls: Sequence[OperatorCall]) -> list[Need | None]:
    """For each call, what it needs; None where it cannot be run. The default generator stays where it is."""
    found: list[Need | None] = []

    def run_all() -> None:
        for call in calls:
            found.append(_run_between_marks(call))

    generator = default_generator()
    state = generator.get_state()
    try:
        with ExitStack() as around:
            around.enter_context(without_modes())
            around.enter_context(warnings.catch_warnings())
            around.enter_context(torch.inference_mode(False))
            around.enter_context(torch.no_grad())
            around.enter_context(autocast_off())
            warnings.simplefilter("ignore")
            _, events = record_allocator_events(run_all)
    except (AttributeError, RuntimeError):  # the profiler of another torch: programs run without it
        return [None] * len(calls)
    finally:
        generator.set_state(state)
    scratch = [_scratch(window) for window in _windows(events)]
    if len(scratch) != len(calls):
        return [None] * len(calls)
    return [n and Need(n.scratch_bytes + more, n.kept_bytes) for n, more in zip(found, scratch, strict=True)]


def _run_between_marks(call: OperatorCall) -> Need | None:
    """What its results hold beyond their descriptions; None where it cannot be run. A block is taken before and after
    the operator, whatever happens, so that each call is found among the events.
    """
    try:
        operands = call.operands()
    except Exception:
        operands = None
    torch.empty(_BEGIN, dtype=torch.uint8, device="cpu")
    try:
        results = None if operands is None else call.node.target(*operands[0], **operands[1])
        is_run = operands is not None
    except Exception:  # zeros are not among its operands' values, say
        results, is_run = None, False
    torch.empty(_END, dtype=torch.uint8, device="cpu")
    return _beyond_described(call, results) if is_run else None


def _beyond_described(call: OperatorCall, results: object) -> Need:
    """How much more memory results have than they are described with; results that have no name live while it runs."""
    found = results if call.node.unpack and isinstance(results, tuple | list) else (results,)
    outputs = list(zip(found, call.node.outputs, call.results, strict=False))
    kept = [0 if made is None else max(0, _allocated(x) - _described(call, made, x)) for x, _, made in outputs]
    unnamed = [_allocated(x) for x, name, _ in outputs if name is None]
    return Need(sum(unnamed), tuple(kept) if any(kept) else ())


def _described(call: OperatorCall, made: Described, result: object) -> int:
    """Bytes that a result seems to have. Sizes that depend on others are not known where those are not the node's."""
    if call.is_scaled and isinstance(result, torch.Tensor):
        made = Described(tuple(result.shape), result.stride(), result.dtype)
    return made.size_bytes


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
