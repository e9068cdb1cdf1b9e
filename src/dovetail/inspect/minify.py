"""Make a failing program small: a few nodes, on the tensors that really reached them, that fail in the same way.

    small = minify(program, inputs, Agrees())           # a check of minify_oracles, or your own function
    small = minify_module(gm, inputs, fails)            # fails(gm, inputs) raises where it fails

The program may write its inputs, return views of them, take inputs that share memory, and have symbolic sizes: all of
that stays. The result fails in the same way as the whole, or an error says that the failure is intermittent.

Cheap steps come first: the shortest failing beginning and the shortest failing end, by bisection; fewer outputs; then
delta debugging over the nodes that are left, and, one by one, those that an operand can replace. Steps repeat until
none of them removes anything, so the result is minimal. See `minify_oracles` for what counts as the same failure. The
inputs are not changed.

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), for `shortened`. Cost: for a
fault of one operator about 2 log2(nodes) checks; O(nodes^2) at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import fx

from dovetail.errors import DoesNotFail, FlakyFailure
from dovetail.inspect.minify_candidate import Builder, Built, Candidate
from dovetail.inspect.minify_files import Verdicts, program_digest
from dovetail.inspect.minify_oracles import Failure, SameFailure, raised
from dovetail.inspect.minify_recording import Recording, repeatable
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.fx_attributes import attribute_of
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower_part
from dovetail.ir.program import Program, Value
from dovetail.ir.signature import Constant

_Item = TypeVar("_Item")


class LimitReached(Exception):
    """No more checks are to be made."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. nodes, outputs: how many are left after it; checks: how many were made until then."""

    name: str
    nodes: int
    outputs: int
    checks: int


class Search:
    """A search. best: the smallest candidate known to fail. step: what is being tried.

    fails: whether a candidate fails as the whole does.
    """

    def __init__(self, builder: Builder, fails: Callable[[Candidate], bool]) -> None:
        self.best = builder.whole()
        self.step = ""
        self._builder = builder
        self._asks = fails

    def run(self, after_step: Callable[[], None]) -> None:
        """Make `best` small; called after each step that did. Raises: what `fails` raises; `best` stays good."""
        steps: list[tuple[str, Callable[[], object]]] = [
            ("unused inputs", self._without_spare_inputs),
            ("beginning", self._shorten_to_a_beginning),
            ("outputs", self._with_fewer_outputs),
            ("end", self._shorten_to_an_end),
            ("nodes", self._with_fewer_nodes),
            ("stand-ins", self._with_stand_ins),
        ]
        while True:
            before = self.best
            for self.step, step in steps:
                was = self.best
                step()
                if self.best != was:
                    after_step()
            if self.best == before:
                break
        if not self.best.outputs and self.best.kept:  # a program that gives something reads better
            self.step = "an output"
            unread = self._builder.unread(self.best)
            any(self._take(self._builder.returning(self.best, [output], prune=False)) for output in unread)

    def _take(self, candidate: Candidate) -> bool:
        """Make a candidate the best one if it fails."""
        if candidate == self.best or not self._asks(candidate):
            return False
        self.best = candidate
        return True

    def _without_spare_inputs(self) -> None:
        if self.best.spare and not self._take(replace(self.best, spare=frozenset())):
            spare = sorted(self.best.spare, key=lambda value: value.name)
            shortened(spare, lambda kept: self._take(replace(self.best, spare=frozenset(kept))))

    def _shorten_to_a_beginning(self) -> None:
        start, nodes = self.best, self.best.kept
        fine, failing = 0, len(nodes)
        while failing - fine > 1:
            middle = (fine + failing) // 2
            if self._take(self._builder.without(start, nodes[middle:], cut=True)):
                failing = middle
            else:
                fine = middle

    def _shorten_to_an_end(self) -> None:
        start, nodes = self.best, self.best.kept
        failing, fine = 0, len(nodes)
        while fine - failing > 1:
            middle = (fine + failing) // 2
            if self._take(self._builder.without(start, nodes[:middle])):
                failing = middle
            else:
                fine = middle

    def _with_fewer_outputs(self) -> None:
        start = self.best
        if not start.outputs:
            return
        make = self._builder.returning
        last = self._builder.last_results(start)
        if len(last) < len(start.outputs) and self._take(make(start, last)):
            start = self.best
        shortened(start.outputs, lambda kept: self._take(make(start, kept)))
        if self.best == start:  # what fails is read by no output
            shortened(start.outputs, lambda kept: self._take(make(start, kept, prune=False)))

    def _with_fewer_nodes(self) -> None:
        start = self.best

        def keep(kept: Sequence[int]) -> bool:
            return self._take(self._builder.without(start, set(start.kept) - set(kept)))

        shortened(start.kept, keep)

    def _with_stand_ins(self) -> None:
        for index in reversed(self.best.kept):
            any(self._take(candidate) for candidate in self._builder.swapped(self.best, index))


def shortened(items: Sequence[_Item], fails: Callable[[Sequence[_Item]], bool]) -> Sequence[_Item]:
    """A part of the items that fails, of which no single item can be left out. The items themselves fail."""
    parts = 2
    while items:
        size = -(-len(items) // parts)
        place, is_shorter = 0, False
        while place < len(items):
            rest = [*items[:place], *items[place + size :]]
            if fails(rest):
                items, is_shorter = rest, True
            else:
                place += size
        if size == 1 and not is_shorter:
            break
        parts = min(len(items), max(2, parts if is_shorter else 2 * parts)) or 1
    return items


Oracle: TypeAlias = Callable[[Program, list[Any]], "Failure | None"]
Progress: TypeAlias = Callable[["Step"], None]

_AGAIN = " again"


@dataclass(frozen=True, slots=True)
class Minified:
    """A small program that fails, and how it was found.

    inputs: what it fails on. failure: how it fails; original: how the whole program does. steps: what each step left.
    asked: how often the check was run; answered: how often a file of verdicts knew. is_complete: whether nothing more
    can be left out alone; false when the limit of checks was reached before.
    """

    program: Program
    inputs: list[Any] = field(repr=False)
    failure: Failure
    original: Failure
    steps: tuple[Step, ...]
    asked: int
    answered: int
    is_complete: bool

    def __str__(self) -> str:
        was = self.steps[0].nodes
        left = f"{len(self.program.nodes)} of {was} nodes, {len(self.program.inputs)} inputs, {self.asked} checks"
        return f"{left}: {self.failure}" + ("" if self.is_complete else " (stopped at the limit)")


def minify(
    program: Program,
    inputs: Sequence[Any],
    oracle: Oracle,
    *,
    limit: int | None = None,
    state: str | Path | None = None,
    progress: Progress | None = None,
) -> Minified:
    """The smallest part that is found of a program that fails in the same way.

    Args:
        program: any program; it is not changed.
        inputs: one per program input. They are copied for each check, together, so that they share memory as these do.
        oracle: how a program fails on inputs, which it may write; None when it does not.
        limit: how many checks may be made before the best so far is given back.
        state: a file for the verdicts, which a later search for the same goes on from.
        progress: called after each check, with what is left by then.
    Raises: DoesNotFail; FlakyFailure when a second check of the program, or of the result, finds something else;
        OtherSearch for a state of another program; and what the oracle raises.
    """
    return _Minifier(program, inputs, oracle, limit, state, progress).run()


class _Minifier:
    def __init__(
        self,
        program: Program,
        inputs: Sequence[Any],
        oracle: Oracle,
        limit: int | None,
        state: str | Path | None,
        progress: Progress | None,
    ) -> None:
        check = getattr(oracle, "identity", None) or getattr(oracle, "__qualname__", type(oracle).__qualname__)
        self._oracle = oracle
        self._limit = limit
        self._progress = progress or (lambda step: None)
        self._verdicts = Verdicts(None if state is None else Path(state), program, inputs, str(check))
        reach: Callable[[Program, Sequence[Any]], int] | None = getattr(oracle, "reach", None)
        stop = None if reach is None else reach(program, inputs)
        self._program = program
        self._builder = Builder(Recording(program, inputs, stop))
        self._steps: list[Step] = []
        self._search: Search
        self._same: SameFailure

    def run(self) -> Minified:
        self._search = Search(self._builder, self._fails)
        whole = self._built(self._search.best)
        first = self._ask(whole)
        if first is None:
            raise DoesNotFail(program=self._program.name)
        names = [value.name for value in self._program.values()]
        self._same = SameFailure(first, names)
        self._confirm(whole, first)
        self._steps.append(self._step(self._search.best, "all"))
        is_complete = True
        try:
            self._search.run(lambda: self._steps.append(self._step(self._search.best)))
        except LimitReached:
            is_complete = False
        built = self._built(self._search.best)
        failure = self._confirm(built, first)
        return Minified(
            built.program,
            built.inputs,
            failure,
            first,
            tuple(self._steps),
            self._verdicts.asked,
            self._verdicts.answered,
            is_complete,
        )

    def _built(self, candidate: Candidate) -> Built:
        built = self._builder.build(candidate)
        assert built is not None, "what has been checked can be built"
        return built

    def _fails(self, candidate: Candidate) -> bool:
        built = self._builder.build(candidate)
        if built is None:
            return False
        is_same = self._same.holds(self._ask(built))
        self._progress(self._step(candidate if is_same else self._search.best))
        return is_same

    def _ask(self, built: Built, again: str = "", *, counts: bool = True) -> Failure | None:
        """The verdict on a program, from the file if it is there."""
        digest = program_digest(built.program) + again
        known = self._verdicts.get(digest)
        if known is not None:
            return known[0]
        if counts and self._limit is not None and self._verdicts.asked >= self._limit:
            raise LimitReached
        with repeatable(built.program):
            failure = self._oracle(built.program, clone_together(built.inputs))
        self._verdicts.put(digest, failure)
        return failure

    def _confirm(self, built: Built, first: Failure) -> Failure:
        """The failure of a program when it is checked a second time."""
        known = self._ask(built, counts=False)
        failure = self._ask(built, _AGAIN, counts=False)
        if known is None or failure is None or not self._same.holds(failure):
            raise FlakyFailure(program=self._program.name, first=first, second=failure or "no failure")
        return failure

    def _step(self, candidate: Candidate, name: str = "") -> Step:
        return Step(name or self._search.step, len(candidate.kept), len(candidate.outputs), self._verdicts.asked)


# --- graph modules ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MinifiedModule:
    """A small graph module that fails, its inputs, and how it was found."""

    module: fx.GraphModule
    inputs: list[Any] = field(repr=False)
    found: Minified

    def __str__(self) -> str:
        return str(self.found)


def minify_module(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    fails: Callable[[fx.GraphModule, list[Any]], object],
    *,
    limit: int | None = None,
    state: str | Path | None = None,
    progress: Progress | None = None,
) -> MinifiedModule:
    """The smallest part that is found of a graph module that fails in the same way; see `minify`.

    fails: called with a graph module and inputs of its own; what it raises is the failure, and nothing raised means
    that there is none. Tensors that the module holds stay attributes, and are copied for each check like the inputs.
    Raises: InvalidGraphModule, UnsupportedTensor when the module cannot be read; and as `minify`.
    """
    lifted = lift(gm, inputs)

    def oracle(program: Program, given: list[Any]) -> Failure | None:
        module, arguments = _lowered(lifted, program, given)
        try:
            fails(module, arguments)
        except Exception as error:
            return raised(error)
        return None

    oracle.identity = getattr(fails, "__qualname__", "check")  # type: ignore[attr-defined]
    flat = _values_given(lifted, inputs)
    found = minify(lifted.program, flat, oracle, limit=limit, state=state, progress=progress)
    module, arguments = _lowered(lifted, found.program, clone_together(found.inputs))
    return MinifiedModule(module, arguments, found)


def _values_given(lifted: Lifted, inputs: Sequence[Any]) -> list[Any]:
    """What each input of the program is: an argument of the call, or a tensor that the module holds."""
    graph = lifted.module.graph
    holders = graph.find_nodes(op="placeholder")
    flat = list(graph.process_inputs(*inputs))
    flat += [node.args[0] for node in holders[len(flat) :] if node.args]
    arguments = dict(zip(holders, flat, strict=True))

    def given(value: Value) -> Any:
        node = lifted.made_by[value]
        return arguments[node] if node in arguments else attribute_of(lifted.module, str(node.target))

    return [given(value) for value in lifted.program.inputs]


def _lowered(lifted: Lifted, program: Program, given: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """A part of the lifted program as a graph module that holds its constants, and the other inputs."""
    arguments: list[Any] = []
    held: dict[str, torch.Tensor] = {}
    for role, item in zip(program.signature.inputs, given, strict=True):
        if isinstance(role, Constant):
            held[role.name] = item
        else:
            arguments.append(item)
    return lower_part(lifted, program, held), arguments
