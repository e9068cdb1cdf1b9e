"""Bytes that operators take from the allocator besides their results: copies, buffers, reordered weights.

No description of an operator says what its kernel takes, so it is measured: each kind of call runs once, on tensors of
the same shapes, strides and dtypes, while the allocator's events are recorded. One recording serves all calls that are
asked for together. What was found is kept for the process. Views take nothing and are not run.

Kernels trust positions, pivots and the memory of libraries, so tensors of whole numbers are zeros, and only operators
that are known to take these get them; an operator that reads what its partner left gets it from this one
(`ops.whole_numbers`). What cannot be run is named. Modes of the caller's do not notice, and no warning is shown. While
a profiler of the caller's is active nothing is measured, as there can be only one.

Source: the allocator events of `torch.profiler` (`torch_compat.profiler`).
Cost:   about 30 ms, and one run of each kind of call that was not met before.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.analysis.liveness import NOTHING, Need, bytes_of
from dovetail.ir.program import Node, Operand, Program, ScalarMeta, Value, map_operands
from dovetail.ir.sizes import Number, OrOne, Scalar, evaluate, with_numbers
from dovetail.ops.facts import facts_of
from dovetail.ops.whole_numbers import operator_of, reads_of_partner, takes_zeros
from dovetail.torch_compat.dispatch import schema_of, without_modes
from dovetail.torch_compat.modes import autocast_off
from dovetail.torch_compat.profiler import AllocatorEvent, profiler_is_active, record_allocator_events
from dovetail.torch_compat.rng import default_generator

_BEGIN, _END = 1_000_003, 1_000_033  # bytes of blocks that are taken before and after each call, as marks
_FOUND: dict[Hashable, Need | None] = {}


@dataclass(frozen=True, slots=True)
class Needs:
    """What the nodes of programs need besides operands and results.

    hints: a number for each size symbol. unknown: nodes whose operators could not be run; they count as nothing.
    """

    hints: Mapping[str, Number]
    unknown: list[Node] = field(default_factory=list)
    _needs: dict[Node, Need] = field(default_factory=dict)

    def measure(self, nodes: Iterable[Node]) -> None:
        """Look at the nodes of a program, so that `need_of` knows them."""
        all_nodes = list(nodes)
        new = [node for node in dict.fromkeys(all_nodes) if node not in self._needs]
        maker = _Maker(OrOne(self.hints), {value: node for node in all_nodes for value in node.results()})
        calls = {node: call for node in new if (call := maker.call_of(node)) is not None}
        missing = {call.key: call for call in calls.values() if call.key not in _FOUND}
        if missing and not profiler_is_active():
            safe = {key: call for key, call in missing.items() if call.is_safe}
            found = dict(zip(safe, _measured(list(safe.values())), strict=True))
            _FOUND.update(dict.fromkeys(missing) | found)
        for node in new:
            need = _FOUND.get(calls[node].key) if node in calls else NOTHING
            self._needs[node] = need or NOTHING
            if need is None:
                self.unknown.append(node)

    def need_of(self, node: Node) -> Need:
        """What a node needs."""
        if node not in self._needs:
            self.measure([node])
        return self._needs[node]


def bytes_before_run(program: Program) -> int:
    """Bytes that the run of a step takes for a moment before its first node: the state of a generator, to put back."""
    draws = any(facts_of(node.target).draws for node in program.nodes)
    return default_generator().get_state().numel() if draws else 0


@dataclass(frozen=True, slots=True)
class _Call:
    """A node as it can be run. result_bytes: of each output that lies in new memory; None for others. is_safe: no
    kernel is given whole numbers that it may not expect.
    """

    node: Node
    args: Sequence[Operand]
    kwargs: Mapping[str, Operand]
    result_bytes: tuple[int | None, ...]
    is_safe: bool
    key: Hashable

    def operands(self) -> tuple[list[Any], dict[str, Any]]:
        """New tensors to apply the operator to. Raises: what the operators raise that make some of them."""
        return [_with_tensors(x) for x in self.args], {name: _with_tensors(x) for name, x in self.kwargs.items()}

    def run(self) -> object:
        """Apply the operator to new tensors."""
        args, kwargs = self.operands()
        return self.node.target(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Described:
    """A tensor to be made. made_by: what makes it, and which of its results it is; else it is filled with a number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_made: bool = False
    made_by: tuple[_Call, int] | None = field(default=None, compare=False)

    def tensor(self) -> torch.Tensor:
        """A new one."""
        if self.made_by is not None:
            call, place = self.made_by
            results = call.run()
            found = results[place] if isinstance(results, tuple | list) else results
            assert isinstance(found, torch.Tensor), "a described value is a tensor"
            return found
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="cpu")
        return made.fill_(0.5 if _is_fractional(self.dtype) else 0)


class _Maker:
    """Describes nodes as calls. known: a number for each size symbol. producers: of values."""

    def __init__(self, known: Mapping[str, Number], producers: Mapping[Value, Node]) -> None:
        self.known = known
        self.producers = producers

    def call_of(self, node: Node) -> _Call | None:
        """What is to be run for a node; None where nothing is taken, or nothing can be run."""
        if not _is_on_cpu(node):
            return None
        operands = {value.tensor.storage for value in node.operands() if value.is_tensor}
        if operands and all(v.is_tensor and v.tensor.storage in operands for v in node.results()) and not _writes(node):
            return None  # a view
        return self._call(node)

    def _call(self, node: Node) -> _Call:
        args = [self._operand(operand, node) for operand in node.args]
        kwargs = {name: self._operand(operand, node) for name, operand in node.kwargs}
        key = (node.target, _frozen(args), _frozen(sorted(kwargs.items())), _settings())
        old = {value.tensor.storage for value in node.operands() if value.is_tensor}
        made = tuple(
            None if v is None or not v.is_tensor or v.tensor.storage in old else bytes_of(v.tensor, self.known)
            for v in node.outputs
        )
        return _Call(node, args, kwargs, made, self._is_safe(node), key)

    def _is_safe(self, node: Node) -> bool:
        """Whether no kernel gets whole numbers that it may not expect: zeros are no positions where nothing is."""
        tensors = [self._tensor(value, node) for value in node.operands() if value.is_tensor]
        zeros = [x for x in tensors if not _is_fractional(x.dtype) and x.dtype is not torch.bool and not x.is_made]
        if not zeros:
            return True
        shapes = [_numbers(value.tensor.shape, self.known) for value in node.results() if value.is_tensor]
        is_empty = any(0 in shape for shape in (*shapes, *(x.shape for x in tensors)))
        return takes_zeros(node) and not (is_empty and any(0 not in x.shape for x in zeros))

    def _operand(self, operand: Operand, reader: Node) -> Operand:
        """An operand with descriptions for tensors, and numbers for sizes."""

        def describe(value: Value) -> Operand:
            return self._tensor(value, reader) if value.is_tensor else evaluate(_expr(value), self.known)

        return with_numbers(map_operands(operand, describe), self.known)

    def _tensor(self, value: Value, reader: Node) -> _Described:
        """What stands for a value where a node reads it."""
        meta = value.tensor
        shape, stride = _numbers(meta.shape, self.known), _numbers(meta.stride, self.known)
        node = self.producers.get(value)
        if _is_fractional(meta.dtype) or meta.dtype is torch.bool or node is None or not reads_of_partner(reader, node):
            return _Described(shape, stride, meta.dtype)
        call = self._call(node)
        if not call.is_safe:
            return _Described(shape, stride, meta.dtype)
        return _Described(shape, stride, meta.dtype, True, (call, node.outputs.index(value)))


def _settings() -> Hashable:
    """What of the process decides which kernels run."""
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        bool(torch.backends.mkldnn.enabled),
    )


def _is_on_cpu(node: Node) -> bool:
    """Whether it is an operator of torch over tensors on the CPU."""
    metas = [value.tensor for value in (*node.operands(), *node.results()) if value.is_tensor]
    op = operator_of(node)
    is_aten = op is not None and schema_of(op).namespace == "aten"
    return is_aten and bool(metas) and all(meta.device.type == "cpu" for meta in metas)


def _is_fractional(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _expr(value: Value) -> Scalar:
    assert isinstance(value.meta, ScalarMeta), "it is a number"
    return value.meta.expr


def _writes(node: Node) -> bool:
    return bool(facts_of(node.target).writes)


def _numbers(sizes: Collection[object], known: Mapping[str, Number]) -> tuple[int, ...]:
    return tuple(int(evaluate(size, known)) for size in sizes)  # type: ignore[arg-type]


def _with_tensors(operand: Operand) -> Operand:
    """An operand with a new tensor for each description, and new generators."""
    if isinstance(operand, _Described):
        return operand.tensor()
    if isinstance(operand, list | tuple):
        return [_with_tensors(item) for item in operand]
    return torch.Generator() if isinstance(operand, torch.Generator) else operand


def _frozen(operand: object) -> Hashable:
    if isinstance(operand, list | tuple):
        return tuple(map(_frozen, operand))
    if isinstance(operand, float):
        return ("float", repr(operand))
    if isinstance(operand, torch.Generator):
        return torch.Generator  # each run has its own
    return (type(operand), operand) if isinstance(operand, Hashable) else (type(operand), id(operand))


# --- measuring --------------------------------------------------------------------------------------------------------


def _measured(calls: Sequence[_Call]) -> list[Need | None]:
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


def _run_between_marks(call: _Call) -> Need | None:
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


def _beyond_described(call: _Call, results: object) -> Need:
    """How much more memory results have than they are described with; results that have no name live while it runs."""
    found = results if call.node.unpack and isinstance(results, tuple | list) else (results,)
    outputs = list(zip(found, call.node.outputs, call.result_bytes, strict=False))
    kept = [0 if size is None else max(0, _allocated(result) - size) for result, _, size in outputs]
    unnamed = [_allocated(x) for x, name, _ in outputs if name is None]
    return Need(sum(unnamed), tuple(kept) if any(kept) else ())


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
