"""The decisions of re-inplacing, in words and bytes: the report of `passes.inplace`.

Every node that writes in place, and every remaining copy, is a row. `missed_bytes` counts the copies that are not
proved to be needed: another order or another choice of memory might remove them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dovetail.analysis.inplace_plan import (
    Absorb,
    DropCopyBack,
    InplacePlan,
    Kept,
    Reason,
    Share,
    WriteCast,
    WriteInCopy,
    WriteOperands,
    WriteOut,
    WritePart,
)
from dovetail.ir.program import Node, Value, values_in
from dovetail.ir.sizes import Number, OrOne, evaluate
from dovetail.ops.facts import ignores_first_contents, is_copy, overwrites
from dovetail.ops.writing_forms import out_form, replaces_a_part, view_of_copy
from dovetail.passes.collection import collection_paused


@dataclass(frozen=True, slots=True)
class InplaceRow:
    """One decision. node: name of the result. operator: of the functional program. because: why it is a copy, else "".

    code: of that reason. copied_bytes: bytes copied although nothing new is computed; is_needed: whether that is proved
    to be needed. saved_bytes: bytes of results that need no memory of their own.
    """

    node: str
    operator: str
    decision: str
    because: str = ""
    copied_bytes: int = 0
    saved_bytes: int = 0
    is_needed: bool = True
    origin: str = ""
    code: str = ""

    @property
    def is_in_place(self) -> bool:
        """Whether the node works in memory that was there."""
        return self.decision != COPY

    def __str__(self) -> str:
        text = f"{self.node} = {self.operator}: {self.decision}"
        text += f", because {self.because}" if self.because else ""
        text += f"; {self.copied_bytes} bytes copied" if self.copied_bytes else ""
        text += "" if self.is_needed or not self.copied_bytes else " (not proved to be needed)"
        return text + (f"   {self.origin}" if self.origin else "")


COPY = "copy"
USED, NOT_USED = "USED", "NOT-USED"


@dataclass(frozen=True, slots=True)
class DonationRow:
    """What became of a donated input.

    code: USED, NOT-USED, or why it was not offered to the pass. bytes: of results that lie in it.
    """

    name: str
    code: str
    because: str
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class InplaceReport:
    """The rows in program order.

    sunk: names of results that are computed later than they stood. unused_donations: names of donated inputs that
    nothing is written to. commit_point: how many nodes run before the first one that writes an input. donations: what
    became of each donated input.
    """

    rows: tuple[InplaceRow, ...] = ()
    sunk: tuple[str, ...] = ()
    unused_donations: tuple[str, ...] = ()
    commit_point: int = 0
    donations: tuple[DonationRow, ...] = ()

    @property
    def in_place(self) -> int:
        """How many nodes work in memory that was there."""
        return sum(1 for row in self.rows if row.is_in_place)

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied although nothing new is computed."""
        return sum(row.copied_bytes for row in self.rows)

    @property
    def missed_bytes(self) -> int:
        """Bytes of copies that are not proved to be needed."""
        return sum(row.copied_bytes for row in self.rows if not row.is_needed)

    @property
    def saved_bytes(self) -> int:
        """Bytes of results that need no memory of their own."""
        return sum(row.saved_bytes for row in self.rows)

    def explain(self) -> str:
        """One line for each row, and the sums."""
        lines = [str(row) for row in self.rows]
        lines += [f"{name}: computed later, after the reads of the contents it replaces" for name in self.sunk]
        lines += [f"{name}: donated, and not used: no result fits into it" for name in self.unused_donations]
        return "\n".join([*lines, str(self)])

    def __str__(self) -> str:
        return (
            f"{self.in_place} nodes in place, {self.saved_bytes} bytes not allocated; "
            f"{self.copied_bytes} bytes copied, {self.missed_bytes} of them not proved to be needed"
        )


@collection_paused()
def report_of(
    plan: InplacePlan, hints: Mapping[str, Number] | None = None, donated: Collection[int] = ()
) -> InplaceReport:
    """The report of a plan. hints: a number for each size symbol (default 1 each). donated: numbers of inputs."""
    rows: list[InplaceRow] = []
    producers, readers = plan.program.producers(), _readers_of(plan)
    for node in plan.order:
        rows += _Rows(plan, node, producers, readers, hints or {}).made()
    inputs = plan.program.inputs
    outside = plan.program.input_storages()
    donations = tuple(_donation(plan, inputs[i], hints or {}) for i in donated)
    return InplaceReport(
        tuple(rows),
        tuple(_name(node) for node in plan.sunk),
        tuple(row.name for row in donations if row.code == NOT_USED),
        _commit_point(plan, outside),
        donations,
    )


def _readers_of(plan: InplacePlan) -> dict[Value, list[Node]]:
    found: dict[Value, list[Node]] = {}
    for node in plan.order:
        for value in dict.fromkeys(node.operands()):
            found.setdefault(value, []).append(node)
    return found


def _donation(plan: InplacePlan, value: Value, hints: Mapping[str, Number]) -> DonationRow:
    """What lies in the memory of a donated input."""
    number = plan.places[value.tensor.storage][0].number
    outside = plan.program.input_storages()
    there = {s for s, (buffer, _) in plan.places.items() if buffer.number == number and s not in outside}
    if not there:
        return DonationRow(value.name, NOT_USED, "no result fits into it")
    made = (v for node in plan.program.nodes for v in node.results() if v.is_tensor and v.tensor.storage in there)
    first = {v.tensor.storage: v for v in reversed(list(made))}
    count = f"{len(first)} results lie" if len(first) > 1 else f"{next(iter(first.values())).name} lies"
    return DonationRow(value.name, USED, f"{count} in its memory", sum(_size_bytes(v, hints) for v in first.values()))


def _commit_point(plan: InplacePlan, outside: frozenset[int]) -> int:
    """The place of the first node that writes an input; the number of nodes if none does."""
    for at, node in enumerate(plan.order):
        action = plan.actions.get(node)
        if isinstance(action, DropCopyBack | Share | Absorb):
            continue
        written = [node.args[0]] if overwrites(node.target) else list(node.results()) if action is not None else []
        values = [value for value in written if isinstance(value, Value) and value.is_tensor]
        if any(plan.places[value.tensor.storage][0].number in outside for value in values):
            return at
    return len(plan.order)


class _Rows:
    """The rows of one node."""

    def __init__(
        self,
        plan: InplacePlan,
        node: Node,
        producers: Mapping[Value, Node],
        readers: Mapping[Value, list[Node]],
        hints: Mapping[str, Number],
    ) -> None:
        self.plan, self.node, self.producers, self.readers, self.hints = plan, node, producers, readers, hints

    def made(self) -> list[InplaceRow]:
        """None, one, or one for each written operand."""
        action = self.plan.actions.get(self.node)
        if action is None:
            kept = self.plan.kept.get(self.node)
            if kept is None or not _is_a_copy(self.node) or self._is_gone():
                return []
            return [self._copy(kept, self._bytes(self.node.results()))]
        if isinstance(action, WriteOperands):
            return self._operands(action)
        if isinstance(action, WritePart):
            return [self._part(action)]
        if isinstance(action, WriteInCopy):
            return [self._copy(action.why, self._bytes(self.node.results()))]
        if isinstance(action, WriteOut):
            return [self._done(f"in place: computed in the memory of {action.out.name}")]
        words = {
            Share: "in place: nothing is copied",
            WriteCast: "in place: written in the operand's dtype",
            DropCopyBack: "in place: the input already holds it",
        }
        known = words.get(type(action))
        return [self._done(known, saves=not isinstance(action, DropCopyBack))] if known is not None else []

    def _is_gone(self) -> bool:
        """Whether nobody reads the copy any more: its layout alone was of interest, to copies that are left out."""
        result = self.node.outputs[0] if is_copy(self.node.target) else None
        readers = self.readers.get(result, []) if result is not None else []
        actions = [self.plan.actions.get(node) for node in readers]
        left_out = all(isinstance(action, Share) and action.source is not result for action in actions)
        return bool(readers) and left_out and result not in set(values_in(self.plan.program.outputs))

    def _part(self, action: WritePart) -> InplaceRow:
        if action.is_there:
            return self._done("in place: the part is already there")
        source = self.node.args[1]
        assert isinstance(source, Value), "a part is replaced by a value"
        reason = self._why_moved(source, action)
        moves = 2 if action.first_copy else 1  # out of the way, and back
        return _with_copy(self._done("in place: the part is written"), reason, moves * self._bytes([source]))

    def _operands(self, action: WriteOperands) -> list[InplaceRow]:
        results = self.node.outputs[action.form.fresh :]
        rows: list[InplaceRow] = []
        copied = self._bytes(action.first_copy)
        for result, slot in zip(results, action.slots, strict=True):
            assert result is not None, "written operands give results"
            if slot is None:
                row = self._done("in place", [result])
                if copied:
                    row = _with_copy(row, Kept(Reason.OPERAND_OVERLAPS, action.first_copy[0].name), copied)
                    copied = 0
                rows.append(row)
            else:
                rows.append(self._copy(slot, self._bytes([result]), result.name))
        return rows

    def _why_moved(self, source: Value, action: WritePart) -> Kept:
        """Why the source of a part was not made in its place."""
        maker = self.producers.get(source)
        while maker is not None and isinstance(copied := self.plan.actions.get(maker), Share):
            source = copied.source
            maker = self.producers.get(source)
        if maker is None or source.tensor.storage in self.plan.program.input_storages():
            return Kept(Reason.IS_NEW, source.name)
        if action.first_copy:
            return Kept(Reason.OPERAND_OVERLAPS, source.name)
        if source.tensor.layout() != action.meta.layout():
            return Kept(Reason.LAYOUT, source.name)
        if out_form(maker.target, source.tensor.device.type) is None:
            return Kept(Reason.NO_FORM, source.name)
        if source.tensor.storage in self.plan.program.output_storages():
            return Kept(Reason.IS_NEW, source.name)
        return self.plan.moved.get(self.node, Kept(Reason.ELSEWHERE, source.name))

    def _done(self, decision: str, results: Iterable[Value] | None = None, *, saves: bool = True) -> InplaceRow:
        made = list(self.node.results() if results is None else results)
        saved = self._bytes(made) if saves else 0
        name = made[0].name if made else _name(self.node)
        return InplaceRow(name, str(self.node.target), decision, saved_bytes=saved, origin=str(self.node.origin))

    def _copy(self, kept: Kept, copied: int, name: str = "") -> InplaceRow:
        row = InplaceRow(name or _name(self.node), str(self.node.target), COPY, origin=str(self.node.origin))
        return _with_copy(row, kept, copied)

    def _bytes(self, values: Iterable[Value]) -> int:
        return sum(_size_bytes(value, self.hints) for value in values)


def _size_bytes(value: Value, hints: Mapping[str, Number]) -> int:
    if not value.is_tensor:
        return 0
    return int(evaluate(value.tensor.size_bytes(), OrOne(hints)))


def _with_copy(row: InplaceRow, kept: Kept, copied: int) -> InplaceRow:
    return InplaceRow(
        row.node,
        row.operator,
        row.decision,
        str(kept),
        copied,
        row.saved_bytes,
        kept.reason.proves_need,
        row.origin,
        kept.reason.code,
    )


def _is_a_copy(node: Node) -> bool:
    """Whether the node, as it is, copies more than it computes."""
    target = node.target
    moves = is_copy(target) or ignores_first_contents(target) or overwrites(target) or view_of_copy(target) is not None
    return moves or replaces_a_part(target)


def _name(node: Node) -> str:
    if overwrites(node.target) and isinstance(node.args[0], Value):
        return node.args[0].name
    return next((value.name for value in node.results()), "nothing")
