"""Equal rows are merged: storages as a tree by module, layer, line or operator, decisions by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dovetail.analysis.categories import CATEGORIES
from dovetail.inspect.holders import Holder, short_operator
from dovetail.inspect.layers import Layers
from dovetail.inspect.report_rows import Decision
from dovetail.inspect.source_paths import short_path
from dovetail.inspect.units import Unit

By = Literal["module", "layer", "line", "operator", "category"]
GROUPINGS: tuple[By, ...] = get_args(By)

_PARTS_OF: dict[str, Callable[[Holder], tuple[str, ...]]] = {
    "module": lambda holder: _module_parts(holder, holder.module),
    "layer": lambda holder: _module_parts(holder, holder.layer),
    "line": lambda holder: (short_path(holder.file), holder.line) if holder.file else (_aside(holder.category),),
    "operator": lambda holder: (holder.operator,) if holder.operator else (_aside(holder.category),),
    "category": lambda holder: (holder.category,),
}


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of a tree. label: within its parent. path: labels from the root on.

    size: bytes of all storages in it; those of its children and of its holders add up to it. count: of the storages.
    children, holders: the largest first; lines of the user's code before those of libraries. is_library: whether all
    of it is made by lines of installed packages.
    """

    label: str
    path: tuple[str, ...]
    size: int
    count: int
    children: tuple[Branch, ...] = ()
    holders: tuple[Holder, ...] = ()
    is_library: bool = False

    def walk(self) -> Iterator[Branch]:
        """Itself and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def group(holders: Iterable[Holder], by: By) -> Branch:
    """Storages as a tree.

    by: "module": by the parts of the module's path. "layer": the same, with repeated layers as one (`h.*.mlp`). "line":
    by file, then by line. "operator": by what makes them. "category": by what they are for. What the program was given
    has no line and no operator, and what no module makes has no module: there they stand under their category, in
    parentheses.
    Raises: ValueError for another `by`.
    """
    if by not in GROUPINGS:
        raise ValueError(f"{by!r} is not a grouping: by is one of {', '.join(GROUPINGS)}")
    parts_of = _PARTS_OF[by]
    return _branch((), [(parts_of(holder), holder) for holder in holders], by)


def _branch(path: tuple[str, ...], members: Sequence[tuple[tuple[str, ...], Holder]], by: By) -> Branch:
    """A branch of members that share its path; a level with one child and nothing else is joined with the child."""
    depth = len(path)
    here: list[Holder] = []
    below: dict[str, list[tuple[tuple[str, ...], Holder]]] = {}
    for parts, holder in members:
        if len(parts) == depth:
            here.append(holder)
        else:
            below.setdefault(parts[depth], []).append((parts, holder))
    children = [_branch((*path, label), inside, by) for label, inside in below.items()]
    order = CATEGORIES.index if by == "category" else None
    children.sort(key=lambda b: (b.is_library, -b.size, b.label) if order is None else (False, order(b.label), ""))
    return _joined(
        Branch(
            label=path[-1] if path else "",
            path=path,
            size=sum(holder.bytes for _, holder in members),
            count=len(members),
            children=tuple(children),
            holders=tuple(sorted(here, key=lambda holder: (-holder.bytes, holder.name))),
            is_library=bool(members) and by == "line" and all(holder.is_library for _, holder in members),
        ),
        "." if by in ("module", "layer") else "",
    )


def _joined(branch: Branch, separator: str) -> Branch:
    """`m` with nothing but `transformer` inside is `m.transformer`. The root stays, and so do files with one line."""
    if not separator or not branch.path or branch.holders or len(branch.children) != 1:
        return branch
    (child,) = branch.children
    label = f"{branch.label}{separator}{child.label}"
    return Branch(label, child.path, child.size, child.count, child.children, child.holders, child.is_library)


def _module_parts(holder: Holder, module: str) -> tuple[str, ...]:
    return tuple(module.split(".")) if module else (_aside(holder.category),)


def _aside(category: str) -> str:
    return f"({category})"


# --- decisions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecisionGroup:
    """Decisions that say the same of repeated layers. rows: in the order of the program.

    operator: short. layer: with repeated layers folded. bytes_each: of each row.
    """

    kind: str
    operator: str
    code: str
    why: str
    layer: str
    bytes_each: int
    rows: tuple[Decision, ...]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return self.bytes_each * len(self.rows)

    def text(self, unit: Unit) -> str:
        """In words: `12 x gelu, recomputed, 25.2 MB each`."""
        each = " each" if self.count > 1 else ""
        return f"{self.count} x {self.operator}, {self.kind}, {unit.text(self.bytes_each)}{each}"


def group_decisions(decisions: Iterable[Decision], layers: Layers) -> tuple[DecisionGroup, ...]:
    """Equal decisions as one: of one kind, operator, reason, folded module and number of bytes.

    The groups come with the kinds in their order, in each the one with the most bytes first.
    """
    found: dict[tuple[str, str, str, str, str, int], list[Decision]] = {}
    for row in decisions:
        operator = short_operator(row.operator).removesuffix("_")
        key = (row.kind, operator, row.code, row.why, layers.fold(row.origin.module), row.bytes)
        found.setdefault(key, []).append(row)
    groups = [DecisionGroup(*key, tuple(rows)) for key, rows in found.items()]
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(group.kind for group in groups))}
    return tuple(sorted(groups, key=lambda group: (kinds[group.kind], -group.bytes, -group.count)))
