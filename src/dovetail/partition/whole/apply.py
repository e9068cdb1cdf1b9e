"""Write the program that a schedule describes.

    h = gelu(x); y = mm(h, w); g = grad(y)          h = gelu(x); y = mm(h, w); g = grad(y)
    d = mm(t(h), g)                           ->    h_again = gelu(x); d = mm(t(h_again), g)

What runs again makes values of its own in memory of its own. From then on they stand for the first ones, and views of
these are made again where they are read. Contents that come back from a file lie in memory of their own as well.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Operand, Phase, Program, Target, Value
from dovetail.ops.again import again_form
from dovetail.ops.facts import written_values
from dovetail.ops.prims import REACHED
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED, token_meta
from dovetail.partition.whole.problem import WholeProblem
from dovetail.partition.whole.schedule import Move, Schedule, Way


def apply_schedule(
    program: Program, problem: WholeProblem, schedule: Schedule, originals: dict[str, str] | None = None
) -> Program:
    """The program in which nodes run as the schedule says; itself where each runs once.

    originals: is given, for the name of each value that is made again, the name of the first one.
    """
    if len(schedule.runs) == len(program.nodes):
        return program
    return _Writer(program, {} if originals is None else originals).written(problem, schedule)


class _Writer:
    """places: where each storage that was made again lies now. homes: in which storage what stands for a value lies.
    phase: of the node for which something is made again. tokens: of contents that leave, or have left. coming: memory
    for contents that come back.
    """

    def __init__(self, program: Program, originals: dict[str, str]) -> None:
        self.program = program
        self.originals = originals
        self.draft = Draft(program)
        self.producers = program.producers()
        self.places: dict[int, int] = {}
        self.homes: dict[Value, int] = {}
        self.phase = Phase.FORWARD
        self.tokens: dict[int, Value] = {}
        self.coming: dict[int, Value] = {}

    def written(self, problem: WholeProblem, schedule: Schedule) -> Program:
        """The program."""
        nodes, done = self.program.nodes, 0  # nodes run for the first time in their order
        for run in schedule.runs:
            if isinstance(run, Move):
                self._move(run, problem)
                continue
            node = nodes[run.node] if run.node >= done else again_form(nodes[run.node])
            self.phase = nodes[min(done, len(nodes) - 1)].phase
            self._have(node)
            if run.node < done:
                self._copy(node, {problem.storages[number] for number in run.makes})
            else:
                done += 1
                self._take(node)
        self._check_before_writes()
        return self.draft.finish()

    def _check_before_writes(self) -> None:
        """Let nothing be written before the last transfer that may fail before anything is."""
        nodes = self.draft.nodes
        first = next((at for at, node in enumerate(nodes) if written_values(node)), len(nodes))
        last = next((at for at in range(first - 1, -1, -1) if nodes[at].target in (SPILLED, FETCHED)), None)
        if last is not None:
            token = nodes[last].results()[0]
            nodes.insert(last + 1, Node(REACHED, (token, "file"), phase=nodes[last].phase, origin=nodes[last].origin))

    def _move(self, move: Move, problem: WholeProblem) -> None:
        """Let contents begin to leave, have left, begin to come back, or be back."""
        storage = problem.storages[move.storage]
        maker = self.program.nodes[problem.makers[move.storage]]
        first = next(v for v in maker.results() if v.is_tensor and v.tensor.storage == storage)
        if move.way is Way.SPILL:
            self.tokens[storage] = self._moved(maker, SPILL, (self.draft.current(first),), f"{first.name}_leaves")
        elif move.way is Way.SPILLED:
            operands = (self.draft.current(first), self.tokens[storage])
            self.tokens[storage] = self._moved(maker, SPILLED, operands, f"{first.name}_left")
        elif move.way is Way.FETCH:
            meta = replace(first.tensor, storage=self.draft.storage())
            memory = Value(self.draft.name(f"{first.name}_back"), meta)
            layout = (list(meta.shape), list(meta.stride), meta.dtype)
            self._append(maker, FETCH, (self.tokens[storage], *layout), memory)
            self.coming[storage] = memory
        else:
            memory = self.coming.pop(storage)
            self._moved(maker, FETCHED, (memory, self.tokens[storage]), f"{first.name}_is_back")
            self.originals[memory.name] = first.name
            self.places[storage] = memory.tensor.storage
            self._stands_for(first, memory)

    def _moved(self, maker: Node, target: Target, operands: tuple[Operand, ...], wish: str) -> Value:
        """Append a node that gives a token."""
        token = Value(self.draft.name(wish), token_meta(self.draft.storage()))
        self._append(maker, target, operands, token)
        return token

    def _append(self, maker: Node, target: Target, operands: tuple[Operand, ...], result: Value) -> None:
        self.draft.nodes.append(Node(target, operands, outputs=(result,), phase=self.phase, origin=maker.origin))

    def _take(self, node: Node) -> None:
        """Append a node of the program; results that lie in memory that was made again lie there now."""
        for value in node.results() if self.places else ():
            place = self._place(value)
            if place is not None:
                self._stands_for(value, Value(value.name, value.tensor.at(place, value.tensor.offset)))
        self.draft.take(node)

    def _have(self, node: Node) -> None:
        """Make views again of memory that was made again, as far as a node reads them."""
        stack = [value for value in node.operands() if self._is_elsewhere(value)] if self.places else []
        while stack:
            view = self.producers[stack[-1]]
            missing = [value for value in view.operands() if self._is_elsewhere(value)]
            if missing:
                stack += missing
            elif self._is_elsewhere(stack.pop()):
                self._copy(view, {value.tensor.storage for value in view.results()})

    def _place(self, value: Value) -> int | None:
        return self.places.get(value.tensor.storage) if value.is_tensor else None

    def _is_elsewhere(self, value: Value) -> bool:
        """Whether what stands for a value lies where it is not any more."""
        place = self._place(value)
        return place is not None and self.homes.get(value) != place

    def _copy(self, node: Node, replaced: set[int]) -> None:
        """Run a node again. replaced: storages of the results that stand for the first ones from now on."""
        made = {value.tensor.storage for value in node.results()} - {v.tensor.storage for v in node.operands()}
        fresh = {storage: self.draft.storage() for storage in sorted(made)}
        outputs: list[Value | None] = []
        again = node.with_operands(self.draft.current)
        for value in node.outputs:
            if value is None:
                outputs.append(None)
                continue
            storage = value.tensor.storage
            place = fresh.get(storage, self.places.get(storage, storage))
            new = Value(self.draft.name(f"{value.name}_again"), value.tensor.at(place, value.tensor.offset))
            outputs.append(new)
            self.originals[new.name] = value.name
            if storage in replaced:
                self.places[storage] = place
                self._stands_for(value, new)
        self.draft.nodes.append(replace(again, outputs=tuple(outputs), phase=self.phase, recomputed=True))

    def _stands_for(self, value: Value, new: Value) -> None:
        self.draft.substitute(value, new)
        self.homes[value] = new.tensor.storage
