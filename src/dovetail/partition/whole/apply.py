"""Write the program that a schedule describes.

    h = gelu(x); y = mm(h, w); g = grad(y)          h = gelu(x); y = mm(h, w); g = grad(y)
    d = mm(t(h), g)                           ->    h_again = gelu(x); d = mm(t(h_again), g)

What runs again makes values of its own in memory of its own. From then on they stand for the first ones, and views of
these are made again where they are read.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.draft import Draft
from dovetail.ir.program import Node, Phase, Program, Value
from dovetail.partition.whole.problem import WholeProblem
from dovetail.partition.whole.schedule import Schedule


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
    phase: of the node for which something is made again.
    """

    def __init__(self, program: Program, originals: dict[str, str]) -> None:
        self.program = program
        self.originals = originals
        self.draft = Draft(program)
        self.producers = program.producers()
        self.places: dict[int, int] = {}
        self.homes: dict[Value, int] = {}
        self.phase = Phase.FORWARD

    def written(self, problem: WholeProblem, schedule: Schedule) -> Program:
        """The program."""
        nodes, done = self.program.nodes, 0  # nodes run for the first time in their order
        for run in schedule.runs:
            node = nodes[run.node]
            self.phase = nodes[min(done, len(nodes) - 1)].phase
            self._have(node)
            if run.node < done:
                self._copy(node, {problem.storages[number] for number in run.makes})
            else:
                done += 1
                self._take(node)
        return self.draft.finish()

    def _take(self, node: Node) -> None:
        """Append a node of the program; results that lie in memory that was made again lie there now."""
        for value in node.results():
            place = self._place(value)
            if place is not None:
                self._stands_for(value, Value(value.name, replace(value.tensor, storage=place)))
        self.draft.take(node)

    def _have(self, node: Node) -> None:
        """Make views again of memory that was made again, as far as a node reads them."""
        stack = [value for value in node.operands() if self._is_elsewhere(value)]
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
            new = Value(self.draft.name(f"{value.name}_again"), replace(value.tensor, storage=place))
            outputs.append(new)
            self.originals[new.name] = value.name
            if storage in replaced:
                self.places[storage] = place
                self._stands_for(value, new)
        self.draft.nodes.append(replace(again, outputs=tuple(outputs), phase=self.phase, recomputed=True))

    def _stands_for(self, value: Value, new: Value) -> None:
        self.draft.substitute(value, new)
        self.homes[value] = new.tensor.storage
