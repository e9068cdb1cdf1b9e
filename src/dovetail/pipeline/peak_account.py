"""What the planned peak of a program is made of, by what was decided of each piece: rows that add up to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dovetail.analysis import categories
from dovetail.analysis.liveness import Need
from dovetail.analysis.peak_contents import PeakContents, contents_at_peak
from dovetail.ir.program import Node, Program
from dovetail.ir.sizes import Number
from dovetail.ops.facts import written_values
from dovetail.partition.work import work_of
from dovetail.pipeline.recompute import PlanPoint

SAVED = "saved"
RECOMPUTED = "recomputed"
UPDATED_EARLY = "early update"
IN_BLOCKS = "in blocks"
IN_PLACE = "in place"
RESULTS = "results"
TEMPORARIES = "temporaries"
WORKSPACE = "workspace"
REST = "rest"

KINDS = {
    SAVED: "forward made it and backward reads it",
    RECOMPUTED: "made again, so that it was not held before",
    UPDATED_EARLY: "a gradient until its update, which runs as soon as it can",
    IN_BLOCKS: "made part by part, so that what leads to it is never there whole",
    IN_PLACE: "holds what was written over what it held first",
    RESULTS: "what the call gives back",
    TEMPORARIES: "read a little later, and freed then",
    WORKSPACE: "what operators take for themselves",
    REST: "what is there whatever the program needs: states of generators, room in an arena that is not used then",
}
"""What memory at the peak is there for, in the order of reports."""


@dataclass(frozen=True, slots=True)
class MemoryPiece:
    """One piece of memory at the peak. kind: one of `KINDS`. name: of the value in it.

    work: of making it again, as a part of all that the program does once; 0 for what is made once. line: of the user's
    code that makes it.
    """

    kind: str
    bytes: int
    name: str
    line: str
    work: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Pieces of one kind that one line makes. bytes, work: of all of them."""

    kind: str
    bytes: int
    count: int
    line: str
    work: float


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """What the peak is made of. peak_bytes: above state and arguments, as planned; rows, and pieces, add up to it.

    rows: in the order of `KINDS`, the largest first. pieces: the largest first. curve: what lower limits cost, the
    lowest first, where it was asked for.
    """

    peak_bytes: int
    rows: tuple[MemoryRow, ...]
    pieces: tuple[MemoryPiece, ...]
    curve: tuple[PlanPoint, ...] = ()

    def sums(self) -> dict[str, int]:
        """Bytes of each kind that there is."""
        found = {kind: sum(row.bytes for row in self.rows if row.kind == kind) for kind in KINDS}
        return {kind: amount for kind, amount in found.items() if amount}


def peak_account(
    program: Program, hints: Mapping[str, Number], need_of: Callable[[Node], Need], least: int = 0
) -> MemoryAccount:
    """The account of a program as it runs. least: bytes that are taken whatever it needs."""
    contents = contents_at_peak(program, hints, need_of)
    pieces = sorted(_pieces(program, contents, hints, least), key=lambda piece: -piece.bytes)
    groups: dict[tuple[str, str], list[MemoryPiece]] = {}
    for piece in pieces:
        groups.setdefault((piece.kind, piece.line), []).append(piece)
    rows = [
        MemoryRow(kind, sum(x.bytes for x in found), len(found), line, sum(x.work for x in found))
        for (kind, line), found in groups.items()
    ]
    order = {kind: place for place, kind in enumerate(KINDS)}
    rows.sort(key=lambda row: (order[row.kind], -row.bytes))
    return MemoryAccount(max(contents.peak_bytes, least), tuple(rows), tuple(pieces))


def _pieces(program: Program, contents: PeakContents, hints: Mapping[str, Number], least: int) -> list[MemoryPiece]:
    known = program if program.signature.outputs else replace(program, outputs=())  # one run of two halves has no roles
    purposes = categories.made_purposes(known, categories.handed_to_backward(program))
    writes, returned = _writes(program), program.output_storages()
    total = max(1, sum(work_of(node, hints) for node in program.nodes if not node.recomputed))
    found = []
    for held in contents.held:
        purpose, maker = purposes[held.storage], program.nodes[held.maker]
        is_later = 0 <= purpose.later_from <= contents.node
        kind = _kind(maker, purpose.later if is_later else purpose.category, writes.get(held.storage, set()))
        kind = RESULTS if kind in (TEMPORARIES, IN_PLACE) and held.storage in returned else kind
        work = work_of(maker, hints) / total if kind == RECOMPUTED else 0.0
        found.append(MemoryPiece(kind, held.bytes, held.value.name, str(maker.origin), work))
    if contents.workspace_bytes:
        node = program.nodes[contents.node]
        found.append(MemoryPiece(WORKSPACE, contents.workspace_bytes, str(node.target), str(node.origin)))
    if least > contents.peak_bytes:
        found.append(MemoryPiece(REST, least - contents.peak_bytes, "", ""))
    return found


def _writes(program: Program) -> dict[int, set[object]]:
    """For each storage that is written after it was made, the places in it that are: offset, shape and strides."""
    found: dict[int, set[object]] = {}
    for node in program.nodes:
        for value in written_values(node):
            meta = value.tensor
            found.setdefault(meta.storage, set()).add((meta.offset, meta.shape, meta.stride))
    return found


def _kind(maker: Node, category: str, writes: set[object]) -> str:
    if maker.recomputed:
        return RECOMPUTED
    if category == categories.SAVED:
        return SAVED
    if category == categories.GRADIENTS:
        return UPDATED_EARLY
    if category == categories.OUTPUTS:
        return RESULTS
    if len(writes) > 1:
        return IN_BLOCKS
    return IN_PLACE if writes else TEMPORARIES
