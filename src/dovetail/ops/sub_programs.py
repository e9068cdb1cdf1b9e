"""Operators over subgraphs (`cond`, `map`, `scan`, `while_loop`) as primitives of a program.

Their subgraphs stay what torch made of them, graphs of operators, and run as eager runs them: below autograd, which
has been recorded already as another such operator with subgraphs of its own. What each does is noted as a program when
it runs on fakes; a primitive that is made of such programs alone (`over_programs`) interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Program, Value
from dovetail.ir.sizes import SizeExpr
from dovetail.ir.sub_programs import SubProgram, WithSubPrograms
from dovetail.ops.facts import facts_of
from dovetail.ops.interpret import Interpreted
from dovetail.ops.sub_recording import CannotBeTold, SubRecording
from dovetail.torch_compat.control_flow import let_sizes_be_unknown, unknown_integer
from dovetail.torch_compat.dispatch import DispatchMode, HigherOrder, Overload, is_question, storage_key
from dovetail.torch_compat.pytree import flatten, unflatten

_LOOPS = frozenset({"while_loop", "while_loop_stack_output"})
# Of these torch promises that they only run their subgraphs; others write, or look into them.
_SUPPORTED = frozenset({"cond", "map_impl", "scan", "while_loop", "while_loop_stack_output"})


def run_with_sub_programs(
    operator: HigherOrder, args: Sequence[Any], kwargs: Mapping[str, Any], is_operand: Callable[[object], bool]
) -> tuple[Prim, list[Any], object] | None:
    """The primitive for this application, its operands, and the result of running it once, on fakes.

    None when the operator is not supported, or when what a subgraph does to its operands is not only to read them.
    """
    leaves, _ = flatten((tuple(args), dict(kwargs)))
    held: list[Any] = [leaf for leaf in leaves if callable(leaf) and not is_operand(leaf)]
    if operator.name() not in _SUPPORTED or not all(isinstance(leaf, torch.fx.GraphModule) for leaf in held):
        return None
    if any(True for graph in held for _ in (*graph.parameters(), *graph.buffers())):
        return None  # tensors that are not operands
    let_sizes_be_unknown()
    watch = _Watch([leaf for leaf in leaves if is_operand(leaf)], is_operand)
    result, run, operands = watch.run(operator, args, kwargs)
    return None if watch.writes else (watch.primitive(run, result), operands, result)


def over_programs(operator: HigherOrder, args: Sequence[Any]) -> tuple[Prim, list[Any]]:
    """The primitive for this application of subgraphs that are programs, and its operands.

    args: of the operator; the subgraphs are the `SubProgram`s among them, in order. Values and sizes are operands.
    """
    leaves, spec = flatten((tuple(args), {}))
    places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Value | SizeExpr))
    told = tuple(leaf for leaf in leaves if isinstance(leaf, SubProgram))
    fixed: list[Any] = [None if place in places else leaf for place, leaf in enumerate(leaves)]
    fixed = [Interpreted(leaf.program, leaf.is_bare) if isinstance(leaf, SubProgram) else leaf for leaf in fixed]
    run = WithSubPrograms(operator, tuple(fixed), places, spec, told)
    name = operator.name()
    facts = [facts_of(node.target) for sub in told for node in sub.program.nodes]
    prim = Prim(
        name,
        run,
        f"torch.ops.higher_order.{name}",
        draws=any(fact.draws or fact.reads_generator for fact in facts),
        effect=any(fact.effect for fact in facts),
        gives_tuple=True,
    )
    return prim, [leaves[place] for place in places]


def with_other_programs(prim: Prim, change: Callable[[Program], Program]) -> Prim:
    """The primitive over other subgraphs, which are interpreted; itself where it has none that are told."""
    run = prim.run
    if not isinstance(run, WithSubPrograms) or not run.told:
        return prim
    told = tuple(replace(sub, program=change(sub.program)) for sub in run.told)
    leaves = list(run.leaves)
    for place, sub in zip(run.subgraph_places(), told, strict=True):
        leaves[place] = Interpreted(sub.program, sub.is_bare)
    return replace(prim, run=replace(run, leaves=tuple(leaves), told=told))


class _Watch(DispatchMode):
    """Notes what subgraphs do: whether one writes an operand, draws, or has effects; and what each does, in order."""

    supports_higher_order_operators = True

    def __init__(self, operands: Sequence[object], is_operand: Callable[[object], bool]) -> None:
        super().__init__()
        self.writes = self.draws = self.effect = False
        self._outside = _storages_of(operands)
        self._is_operand = is_operand
        self._recordings: list[SubRecording | None] = []  # of the subgraphs that are running, the innermost last

    def run(
        self, operator: HigherOrder, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, WithSubPrograms, list[Any]]:
        """Run the operator with each of its subgraphs watched: its result, what runs it again, and its operands."""
        leaves, spec = flatten((tuple(args), dict(kwargs)))
        carried = len(args[2]) if operator.name() in _LOOPS else 0
        watched = [
            _Watched(self, operator.name(), leaf, carried) if isinstance(leaf, torch.fx.GraphModule) else leaf
            for leaf in leaves
        ]
        subs = [sub for sub in watched if isinstance(sub, _Watched)]
        watched_args, watched_kwargs = unflatten(watched, spec)
        result = operator(*watched_args, **watched_kwargs)
        self._run_the_rest(subs)
        places = tuple(place for place, leaf in enumerate(leaves) if self._is_operand(leaf))
        fixed = tuple(None if place in places else leaf for place, leaf in enumerate(leaves))
        run = WithSubPrograms(operator, fixed, places, spec)
        told = tuple(sub.told for sub in subs if isinstance(sub.told, SubProgram))
        reason = next((sub.told for sub in subs if isinstance(sub.told, str)), "")
        run = replace(run, told=None if reason else told, reason=reason)
        return result, run, [leaves[place] for place in places]

    def _run_the_rest(self, watched: Sequence[_Watched]) -> None:
        """Run the subgraphs that torch runs only on tensors, the conditions of loops; they are handed what bodies are.

        Numbers that a loop carries are others in each turn, so that its subgraphs are noted for unknown ones.
        """
        handed = next((sub.handed for sub in watched if sub.handed is not None), ())
        for sub in watched:
            if sub.handed is None and handed:
                sub(*handed)
            if sub.waits:
                sub.note(sub.handed or ())

    def primitive(self, run: WithSubPrograms, result: object) -> Prim:
        """The primitive that runs it again."""
        name = run.operator.name()
        python, is_tuple = f"torch.ops.higher_order.{name}", isinstance(result, tuple)
        return Prim(name, run, python, draws=self.draws, effect=self.effect, gives_tuple=is_tuple)

    @contextmanager
    def running(self, args: Sequence[object], recording: SubRecording | None) -> Iterator[None]:
        """While active, what runs is a subgraph. recording: where it is noted; None when it was noted before."""
        before = self._outside
        self._outside = before | _storages_of(args)  # on fakes, rows and carries are copies of the operands
        self._recordings.append(recording)
        try:
            with self:
                yield
        finally:
            self._recordings.pop()
            self._outside = before

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrder):
            self.writes |= func.name() not in _SUPPORTED  # as far as anyone knows
            result, run, operands = self.run(func, args, kwargs or {})
            self._note(self.primitive(run, result), operands, {}, result)
            return result
        facts = facts_of(func)
        self.draws |= facts.draws or facts.reads_generator
        self.effect |= facts.effect
        for position in facts.writes:
            written = args[position] if position < len(args) else None
            self.writes |= not isinstance(written, torch.Tensor) or storage_key(written) in self._outside
        result = func(*args, **(kwargs or {}))
        if not is_question(func):
            self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, target: Overload | Prim, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
        recording = self._recordings[-1]
        if recording is not None:
            recording.note(target, args, kwargs, result)


class _Watched:
    """A subgraph that is watched, and noted in its first turn: each turn of a loop does the same.

    carried: how many operands a loop carries on. handed: what it was called with. told: what it does, or why that is
    not known. waits: it was called with numbers that the loop carries, which are others in the next turn.
    """

    def __init__(self, watch: _Watch, name: str, graph: torch.fx.GraphModule, carried: int) -> None:
        self._watch = watch
        self._name = name
        self._graph = graph
        self._carried = carried
        self.handed: tuple[object, ...] | None = None
        self.told: SubProgram | str | None = "it did not run on fakes"
        self.waits = False

    def __call__(self, *args: object) -> object:
        is_first = self.handed is None
        self.handed = args
        self.waits = not all(isinstance(item, torch.Tensor) for item in args[: self._carried])
        return self._run(args, noted=is_first and not self.waits)

    def note(self, args: Sequence[object]) -> None:
        """Run it on unknown numbers in place of those that the loop carries."""
        unknown = [item if isinstance(item, torch.Tensor) else unknown_integer() for item in args[: self._carried]]
        if not all(isinstance(item, torch.Tensor | int | torch.SymInt) for item in args[: self._carried]):
            self.told = "a loop carries a number that is no integer"
            return
        try:
            self._run([*unknown, *args[self._carried :]], noted=True)
        except Exception as error:  # what an operator asks of a number that is not known
            self.told = f"it asks a number that its loop carries: {type(error).__name__}"

    def _run(self, args: Sequence[object], *, noted: bool) -> object:
        recording = SubRecording(self._name, self._graph, args) if noted else None
        with self._watch.running(args, recording):
            result: object = self._graph(*args)
        if recording is not None:
            try:
                self.told = recording.told(result)
            except CannotBeTold as error:
                self.told = str(error)
        return result


def _storages_of(values: Sequence[object]) -> frozenset[int]:
    return frozenset(storage_key(value) for value in values if isinstance(value, torch.Tensor))
