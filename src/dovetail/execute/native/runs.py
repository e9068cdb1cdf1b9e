"""Runs of nodes that may be machine code: neighbours in the program, so that its order and its peak stay as planned.

Between them may be views, which only say where elements lie, nodes that can as well run before all of them (functions
of numbers, and reads of a number from a tensor that the run has not written), and numbers that the run computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dovetail.analysis.reads import is_view
from dovetail.execute.native.computed import ITEM, is_read, is_step
from dovetail.execute.native.rows import RowClaim
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ops.facts import facts_of, is_reinterpretation
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.symbols import number_function_text

MOST = 1024
"""Claims of a run at most: what is planned for it grows faster than it does."""


@dataclass(slots=True)
class Run:
    """first: the number of its first node. claims: in order. before: nodes that run first. views: nodes whose results
    need not exist, as where their elements lie is known. computed: nodes that give numbers that the run computes. last:
    the number of its last claim. numbers: what those in `computed` give. read: storages that copies stand for there, so
    that nothing writes them later.
    """

    first: int
    claims: list[RowClaim] = field(default_factory=list)
    before: list[Node] = field(default_factory=list)
    views: list[Node] = field(default_factory=list)
    computed: list[Node] = field(default_factory=list)
    last: int = -1
    written: set[int] = field(default_factory=set)
    numbers: set[Value] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    results: set[Value] = field(default_factory=set)

    def add(self, at: int, claim: RowClaim) -> None:
        """Add the claim on the node of a number."""
        self.claims.append(claim)
        self.last = at
        self.written.update(value.tensor.storage for value in (claim.written, *claim.made))
        self.results.update(claim.node.results())

    def may_add(self, claim: RowClaim) -> bool:
        """Whether there is room, and a claim checks nothing that the run writes, and writes nothing that was copied."""
        is_checked = all(v.tensor.storage not in self.written for v in claim.checked)
        return len(self.claims) < MOST and is_checked and claim.written.tensor.storage not in self.read

    def may_compute(self, node: Node) -> bool:
        """Whether the run can compute the number that a node gives."""
        return is_step(node, self.numbers) or is_read(node, self.claims, self.written, self.numbers)

    def compute(self, node: Node) -> None:
        """Add a node that gives a number."""
        self.computed.append(node)
        self.numbers.update(node.results())
        self.results.update(node.results())
        self.read.update(value.tensor.storage for value in node.operands() if value.is_tensor)

    def may_run_before(self, node: Node) -> bool:
        """Whether it is all the same if a node that follows runs before all claims."""
        if any(value in self.results for value in node.operands()):
            return False
        if _is_number_function(node):
            return True
        if node.target is ITEM:
            return all(v.tensor.storage not in self.written for v in node.operands() if v.is_tensor)
        if not isinstance(node.target, Overload) or is_reinterpretation(node.target):
            return False
        return is_view(node) and facts_of(node.target).is_pure


def _is_number_function(node: Node) -> bool:
    if isinstance(node.target, Overload | Prim):
        return False
    is_of_numbers = not any(value.is_tensor for value in (*node.operands(), *node.results()))
    return is_of_numbers and number_function_text(node.target) is not None


def is_place(node: Node) -> bool:
    """Whether a node only shows elements of its operand whose place in memory is known beforehand."""
    results, tensors = node.results(), [value for value in node.operands() if value.is_tensor]
    if not isinstance(node.target, Overload) or not results or len(tensors) != 1:
        return False
    if is_reinterpretation(node.target) or not is_view(node) or not facts_of(node.target).is_pure:
        return False
    return all(_has_known_place(shown, tensors[0].tensor) for shown in results)


def _has_known_place(shown: Value, of: TensorMeta) -> bool:
    if not shown.is_tensor or shown.tensor.storage != of.storage or shown.tensor.dtype != of.dtype:
        return False
    numbers = (*shown.tensor.shape, *shown.tensor.stride, shown.tensor.offset, of.offset)
    return all(isinstance(number, int) for number in numbers)


def runs_of(program: Program, claims: Mapping[Node, RowClaim], may_show: Callable[[Node], bool]) -> list[Run]:
    """The longest runs, in order, without those of a single claim that does not pay alone. may_show: whether a node may
    be a view of a run, or a mark within it.
    """
    found: list[Run] = []
    open_: Run | None = None
    waiting: list[tuple[Node, bool]] = []  # they belong to the run if another claim follows; whether they are views
    for at, node in enumerate(program.nodes):
        claim = claims.get(node)
        if claim is not None and (open_ is None or open_.may_add(claim)):
            if open_ is None:
                open_ = Run(at)
                found.append(open_)
            open_.before += [each for each, shows in waiting if not shows]
            open_.views += [each for each, shows in waiting if shows]
            waiting.clear()
            open_.add(at, claim)
        elif open_ is not None and claim is None and may_show(node) and is_place(node):
            open_.results.update(node.results())
            waiting.append((node, True))
        elif open_ is not None and claim is None and open_.may_run_before(node):
            waiting.append((node, False))
        elif open_ is not None and claim is None and open_.may_compute(node):
            open_.compute(node)
        elif open_ is not None and may_show(node) and isinstance(node.target, Prim) and node.target.marks:
            continue
        else:
            waiting.clear()
            open_ = None
            if claim is not None:
                open_ = Run(at)
                found.append(open_)
                open_.add(at, claim)
    return [run for run in found if len(run.claims) > 1 or run.claims[0].pays_alone]


def reread_storages(program: Program) -> Collection[int]:
    """Storages some value of which does not hold its bytes as they are: it is complex, conjugate or negated."""
    found: set[int] = set()
    for value in program.values():
        if value.is_tensor and value.tensor.dtype.is_complex:
            found.add(value.tensor.storage)
    for node in program.nodes:
        if is_reinterpretation(node.target):
            found.update(value.tensor.storage for value in (*node.operands(), *node.results()) if value.is_tensor)
    return found
