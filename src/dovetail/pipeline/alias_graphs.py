"""One function, one program for each way in which its written inputs share memory.

The first recording takes every input to be apart. It shows what the function writes; from then on each call is asked
how its written inputs lie (`execute.alias_guard`), and a way not met before is recorded anew, with inputs that lie like
that (`analysis.alias_pattern`). What nobody writes may be shared freely and costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from dovetail.analysis.alias_pattern import APART, Accesses, AliasPattern, alias_pattern_of
from dovetail.analysis.region import extent_bytes
from dovetail.capture.exclusive import RECORDING
from dovetail.capture.inputs import with_parts
from dovetail.capture.recording import Recording
from dovetail.errors import PassChangedMeaning
from dovetail.execute.alias_guard import AliasGuard, size_of
from dovetail.execute.donation import Donated, refuse_sharing
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.second_order import Recomputation
from dovetail.ir.program import Value
from dovetail.ir.sizes import Number, Scalar
from dovetail.pipeline.compile import compile_recording
from dovetail.pipeline.options import Options
from dovetail.pipeline.verify_wrapper import verify_visible_effects
from dovetail.torch_compat.traced_numbers import is_traced

logger = logging.getLogger("dovetail")

_REMEMBERED_CALLS = 1024


class RecordAgain(Protocol):
    """Records the same function for other inputs. Every size is taken as it is."""

    def __call__(
        self, inputs: Sequence[Any], alias_pattern: AliasPattern, constants: Sequence[torch.Tensor], /
    ) -> Recording: ...


class AliasGraphs:
    """The compiled graphs of one function; `select` gives the one for a call.

    only: what `select` gives in every call, as far as that is known; the graph then takes the inputs as they are.
    """

    def __init__(
        self,
        recording: Recording,
        again: RecordAgain,
        name: str,
        options: Options,
        hints: Mapping[str, Number],
        source: Recomputation | None = None,
        donated: Mapping[int, str] | None = None,
    ) -> None:
        """Start from a recording.

        source: the function itself, in eager mode, as `execute.second_order` calls it. donated: inputs that each call
        gives away, and what to call them.
        """
        self._donated = donated or {}
        self._closed_over: dict[str, torch.Tensor] = {}
        self._source = source if options.double_backward else None
        self._recording = recording
        self._again = again
        self._name = name
        self._options = options
        self._hints = hints
        self._constants = [tensor for _, tensor in recording.forward_constants]
        arguments = [s for s in recording.stand_ins if s.rule is None]
        self._names = [s.declared.name for s in arguments]
        self._sizes = [0 if s.is_wrapper else _size_bytes(s.declared) for s in arguments]
        self._has_wrappers = any(s.is_wrapper for s in arguments)
        self._has_numbers = any(not (s.declared.is_tensor or is_traced(s.seen)) for s in arguments)
        self._graphs: dict[AliasPattern, CompiledGraph] = {}
        self._known: dict[Hashable, CompiledGraph] = {}
        self._accesses = Accesses()
        self._guard: AliasGuard | None = None
        self.only: CompiledGraph | None = None
        self._learn(recording)

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """Every graph compiled so far, oldest first."""
        return tuple(self._graphs.values())

    @property
    def size_conditions(self) -> list[Scalar]:
        """What the first recording relies on, over its size symbols; its backward, recorded last, may add to that."""
        return self._recording.size_conditions

    def compile_apart(self) -> CompiledGraph:
        """The graph for inputs that share nothing that is written."""
        return self._compile(self._recording, APART)

    def select(self, inputs: Sequence[Any]) -> tuple[CompiledGraph, Sequence[Any]] | None:
        """The graph for these inputs, compiled when it is new, and what it takes: parts of wrappers as well.

        None when the number of graphs has reached its limit. Raises: UnusableDonation for inputs that cannot be given
        away.
        """
        taken = with_parts(inputs) if self._has_wrappers else inputs
        graph = self._select_donating(taken) if self._donated else self._select(taken)
        return None if graph is None else (graph, taken)

    def _select_donating(self, inputs: Sequence[Any]) -> CompiledGraph | None:
        self._refuse_donations(inputs)
        known = len(self._closed_over)
        graph = self._select(inputs)
        if len(self._closed_over) > known:
            self._refuse_donations(inputs)
        return graph

    def count_donations(self, inputs: Sequence[Any]) -> None:
        """Move the version counters of what a call gives away, where no compiled graph does."""
        Donated(tuple(self._donated)).count(inputs)

    def _refuse_donations(self, inputs: Sequence[Any]) -> None:
        tensors = [*inputs, *self._closed_over.values()]
        refuse_sharing(self._donated, tensors, [*self._names[: len(inputs)], *self._closed_over])

    def _select(self, inputs: Sequence[Any]) -> CompiledGraph | None:
        if self._guard is None and (graph := self._graphs.get(APART)) is not None:
            return graph
        arguments = [*inputs, *self._constants]
        known = self._known.get(self._guard.fingerprint(arguments)) if self._guard is not None else None
        if known is not None and self._options.verify:
            self._verify_known(known, arguments)
        if known is None:
            with RECORDING:
                known = self._select_anew(arguments)
        return known

    def _verify_known(self, known: CompiledGraph, arguments: list[Any]) -> None:
        """The guard's answer is a shortcut for the whole analysis; hold them against each other."""
        alias_pattern = self._alias_pattern(arguments)
        if self._graphs.get(alias_pattern) is not known:
            raise PassChangedMeaning(
                name="alias_guard", program=self._name, detail=f"a call was taken for another, and is: {alias_pattern}"
            )

    def _select_anew(self, arguments: list[Any]) -> CompiledGraph | None:
        graph = None
        while graph is None:
            alias_pattern = self._alias_pattern(arguments)
            if alias_pattern not in self._graphs and len(self._graphs) >= self._options.max_variants:
                return None
            graph = self._graph(alias_pattern, arguments)
            if alias_pattern != self._alias_pattern(arguments):  # it was shown an access that was not known
                graph = None
        if len(self._known) >= _REMEMBERED_CALLS:
            self._known.clear()
        if self._guard is not None:
            self._known[self._guard.fingerprint(arguments)] = graph
        return graph

    def _alias_pattern(self, arguments: list[Any]) -> AliasPattern:
        found = alias_pattern_of(arguments, self._accesses, self._names, wants_gradient=self._recording.can_train)
        if not found.is_apart and (self._has_numbers or any(size is None for size in self._sizes)):
            return replace(found, sizes=tuple(map(size_of, arguments)))
        return found

    def record_for(self, inputs: Sequence[Any]) -> Recording:
        """A recording in which the inputs share memory as these do."""
        arguments = [*with_parts(inputs), *self._constants]
        found = None
        while found is None:
            found = self._record(self._alias_pattern(arguments), arguments)
        return found

    def _graph(self, alias_pattern: AliasPattern, arguments: list[Any]) -> CompiledGraph | None:
        """The graph for an alias pattern; None when recording shows that the arguments alias in another way."""
        if alias_pattern in self._graphs:
            return self._graphs[alias_pattern]
        recording = self._record(alias_pattern, arguments)
        return None if recording is None else self._compile(recording, alias_pattern)

    def _record(self, alias_pattern: AliasPattern, arguments: list[Any]) -> Recording | None:
        if alias_pattern.is_apart and not (alias_pattern.offsets and self._graphs):
            return self._recording
        inputs = arguments[: len(arguments) - len(self._constants)]
        logger.info("%s: graph variant %d, because %s", self._name, len(self._graphs), alias_pattern)
        recording = self._again(inputs, alias_pattern, self._constants)
        self._learn(recording)
        return recording if alias_pattern == self._alias_pattern(arguments) else None

    def _compile(self, recording: Recording, alias_pattern: AliasPattern) -> CompiledGraph:
        name = self._name if not self._graphs else f"{self._name}_{len(self._graphs)}"
        graph = self._graphs[alias_pattern] = compile_recording(
            recording, name, self._options, self._hints, self._donated
        )
        graph.source = None if alias_pattern.groups else self._source
        self._learn(recording)
        if self._options.verify and self._options.compilers is None:  # others' code need not run on fakes
            verify_visible_effects(recording, graph)
        return graph

    def _learn(self, recording: Recording) -> None:
        """Add what a recording does to what is known of the function."""
        self._closed_over.update(recording.constants)
        merged = self._accesses.merge(recording.accesses())
        if merged != self._accesses:
            self._accesses = merged
            self._guard = None
            if merged.written or merged.asked:
                numbers, gradient = self._has_numbers, self._recording.can_train
                self._guard = AliasGuard(merged, self._sizes, has_numbers=numbers, wants_gradient=gradient)
            self._known.clear()
        is_one = self._guard is None and not self._has_wrappers and not self._donated
        self.only = self._graphs.get(APART) if is_one else None


def _size_bytes(value: Value) -> int | None:
    if not value.is_tensor:
        return 0
    extent = extent_bytes(value.tensor)
    return None if extent is None else extent[1] - extent[0]
