"""Make again for backward what the user does not want to be kept for it.

    h = gelu(x); loss = f(h)                        h = gelu(x); loss = f(h)
    d = f_backward(g, h)                      ->    h_again = gelu(x); d = f_backward(g, h_again)

It is made right before its first reader in backward, and then stays until its last one; what it is made of is kept,
or made again as well where that is asked for. What is returned is there anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import Node, Phase, Program
from dovetail.ir.sizes import Number
from dovetail.partition.patterns import Patterns
from dovetail.partition.policy import Mark, Policy, can_run_again, is_view
from dovetail.partition.whole.apply import apply_schedule
from dovetail.partition.whole.check import verify_whole
from dovetail.partition.whole.halves import read_until
from dovetail.partition.whole.problem import NEVER, WholeProblem, build_whole_problem
from dovetail.partition.whole.schedule import Run, Schedule


def recompute_as_asked(
    program: Program, patterns: Patterns, hints: Mapping[str, Number], *, is_split: bool
) -> tuple[Program, int]:
    """The program in which backward makes again what must not be kept for it, and how many nodes run again.

    is_split: backward runs after forward has written what it writes.
    Raises: BadOptionValue where a node cannot run again.
    """
    marks = patterns.of(program)
    must = {node for node, mark in marks.items() if mark is Mark.MUST_RECOMPUTE and node.phase is Phase.FORWARD}
    if not must:
        return program, 0
    policy = Policy(recompute="all")
    until = read_until(program, policy) if is_split else {}
    problem = build_whole_problem(program, policy, hints, until=until)
    runs = _Forced(program, problem, patterns, must, frozenset(until)).runs()
    again = len(runs) - len(program.nodes)
    changed = apply_schedule(program, problem, Schedule(tuple(runs), 0, 0))
    verify_whole(program, changed)
    return changed, again


class _Forced:
    """must: what runs again. lost: storages that may be written before backward runs."""

    def __init__(
        self, program: Program, problem: WholeProblem, patterns: Patterns, must: set[Node], lost: frozenset[int]
    ) -> None:
        self.program = program
        self.problem = problem
        self.patterns = patterns
        self.lost = lost
        self.shared = _shared(program)
        makers = [program.nodes[maker] for maker in problem.makers]
        self.left = {s for s, maker in enumerate(makers) if maker in must and problem.ends[s] != NEVER}
        self.found: list[Run] = []

    def runs(self) -> list[Run]:
        """All runs, in order."""
        for at, (node, makes) in enumerate(zip(self.program.nodes, self.problem.makes, strict=True)):
            if node.phase is Phase.BACKWARD:
                self._make(self.problem.reads[at])
            self.found.append(Run(at, makes))
        return self.found

    def _make(self, storages: Iterable[int]) -> None:
        """Have those that are still to be made again, after what they are made of."""
        stack = [storage for storage in storages if storage in self.left]
        while stack:
            storage = stack[-1]
            maker = self.problem.makers[storage]
            before = [read for read in self.problem.reads[maker] if read in self.left and read != storage]
            if storage not in self.left:
                stack.pop()
            elif before:
                stack += before
            else:
                self._require(maker, storage)
                made = tuple(one for one in self.problem.makes[maker] if one in self.left)
                self.left.difference_update(made)
                self.found.append(Run(maker, made))

    def _require(self, maker: int, storage: int) -> None:
        """Refuse what cannot be made again."""
        node = self.program.nodes[maker]
        if any(value.is_tensor and value.tensor.storage in self.lost for value in node.operands()):
            raise self.patterns.cannot(node, "what it reads may be written before that")
        if self.problem.storages[storage] in self.shared:
            raise self.patterns.cannot(node, "its memory is shared by what cannot be made again")


def _shared(program: Program) -> set[int]:
    """Storages in which there are results that are no views that can be made again, beside what made them."""
    fixed = frozenset(made_symbols(program))
    known: set[int] = set(program.input_storages())
    found: set[int] = set()
    for node in program.nodes:
        storages = {value.tensor.storage for value in node.results() if value.is_tensor}
        if not (can_run_again(node, fixed) and is_view(node)):
            found |= storages & known
        known |= storages
    return found
