"""What holds memory at a point of a program: every live storage, its category, and the line that created it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dovetail.inspect.explanation_data import ExplanationData
from dovetail.inspect.layers import Layers
from dovetail.inspect.report_rows import MemoryMap, NodeRow, StorageRow
from dovetail.inspect.source_paths import is_library, line_text

_FUNCTIONAL = "functional_aten_"  # how the functional form of an operator that writes is called


@dataclass(frozen=True, slots=True)
class Holder:
    """One storage that is in memory at a moment.

    category: one of `analysis.categories.CATEGORIES`. module: of what made it, or of whose weight it is. layer: that
    with repeated layers folded. line: of the code that made it, short, and source: its text; both "" for what was there
    before. operator: short, "" likewise. is_library: whether the line is an installed package's. is_resident: whether
    it was there before the program and is in no simulated sum.
    """

    storage: int
    name: str
    bytes: int
    meta: str
    category: str
    module: str
    layer: str
    file: str
    line: str
    source: str
    operator: str
    is_library: bool
    is_resident: bool


@dataclass(frozen=True, slots=True)
class Moment:
    """What is in memory while a node runs. node: its index.

    holders: residents and what is made, the largest first; empty storages are left out.
    """

    node: int
    holders: tuple[Holder, ...]

    @property
    def made_bytes(self) -> int:
        """Bytes that the program made: the simulated level at the node."""
        return sum(holder.bytes for holder in self.holders if not holder.is_resident)

    @property
    def resident_bytes(self) -> int:
        """Bytes that were there before."""
        return sum(holder.bytes for holder in self.holders if holder.is_resident)

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(holder.bytes for holder in self.holders)


def peak_moment(explanation: ExplanationData) -> Moment:
    """Who holds memory at the peak of the whole step."""
    return moment(explanation.step, explanation.step.peak_node, explanation.lines, layers_of(explanation))


def moment(memory: MemoryMap, node: int, lines: Mapping[str, str], layers: Layers) -> Moment:
    """Who holds memory while a node runs. lines: text of the user's lines by `file:line`."""
    rows = [(row, True) for row in memory.residents] + [(row, False) for row in memory.alive(node)]
    holders = [_holder(row, node, is_resident, lines, layers) for row, is_resident in rows if row.bytes]
    return Moment(node, tuple(sorted(holders, key=lambda holder: -holder.bytes)))


def layers_of(explanation: ExplanationData) -> Layers:
    """The folded names of the modules that an explanation mentions."""
    nodes = [node for program in explanation.programs for node in program.nodes]
    return layers_from(nodes, explanation.step.residents)


def layers_from(nodes: Iterable[NodeRow], residents: Iterable[StorageRow] = ()) -> Layers:
    """The folded names of the modules that nodes run in and that hold what a program is given.

    Modules with nothing inside are told apart by what they hold and by the operators that compute something in them.
    """
    marks: dict[str, set[str]] = {}
    for row in residents:
        held = row.name.rpartition(".")[2]
        marks.setdefault(row.origin.module, set()).update({held} - {row.name})
    for node in nodes:
        operator = short_operator(node.operator)
        computes = node.makes or operator.endswith("_")
        marks.setdefault(node.origin.module, set()).update({operator.rstrip("_")} if computes else ())
    return Layers(marks)


def short_operator(operator: str) -> str:
    """An operator without its namespace and overload: `aten.gelu.default` -> `gelu`."""
    parts = operator.split(".")
    return (parts[1] if len(parts) > 2 else parts[-1]).removeprefix(_FUNCTIONAL)


def _holder(row: StorageRow, node: int, is_resident: bool, lines: Mapping[str, str], layers: Layers) -> Holder:
    origin = row.origin
    return Holder(
        storage=row.storage,
        name=row.name,
        bytes=row.bytes,
        meta=row.meta,
        category=row.category_at(node),
        module=origin.module,
        layer=layers.fold(origin.module),
        file=origin.file,
        line=line_text(origin),
        source=lines.get(f"{origin.file}:{origin.line}", "") if origin.file else "",
        operator=short_operator(row.operator),
        is_library=bool(origin.file) and is_library(origin.file),
        is_resident=is_resident,
    )
