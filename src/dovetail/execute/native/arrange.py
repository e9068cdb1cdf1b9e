"""A run as rows: which claims share one, and in what order the rows run.

Claims that work element by element share a loop where they work on the same memory. Two pieces of memory of one loop
are the same elements, or do not overlap; where neither is known, the claim gets a loop of its own, later. A claim that
works in another way has a row of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.execute.native.row_loop import Part, Rows
from dovetail.execute.native.rows import Access, Layout, RowClaim, are_apart
from dovetail.ir.program import Value

_FIRST = 2  # see `OpenRow.relation`
_MOST = 40  # claims of one loop: more of them need more registers than there are


@dataclass(slots=True)
class OpenRow:
    """Claims that one row runs, and what they touch, by storage. known: matrices of whose rows some claims of the run
    are functions. rows: the matrix whose rows the claims work on together; None where they work on one element after
    the other. in_rows: what they touch of its rows, for a matrix that was asked for; None where one of them does not
    work on that.
    """

    known: Collection[Rows] = ()
    claims: list[RowClaim] = field(default_factory=list)
    touched: dict[int, list[Access]] = field(default_factory=dict)
    rows: Rows | None = None
    in_rows: dict[Rows, dict[int, list[Access]] | None] = field(default_factory=dict)

    @property
    def is_loop(self) -> bool:
        """Whether it works element by element, or row by row."""
        return self.claims[0].layout is not None

    @property
    def written(self) -> set[int]:
        """The storages that it writes."""
        return {value.tensor.storage for claim in self.claims for value in (claim.written, *claim.made)}

    def add(self, claim: RowClaim) -> None:
        """Let the row run a claim as well."""
        self.rows = self._rows_with(claim) if self.claims else claim.rows
        self.claims.append(claim)
        self.in_rows.clear()
        for access in claim.accesses():
            self.touched.setdefault(access.meta.storage, []).append(access)

    def add_all(self, row: OpenRow) -> None:
        """Let it run the claims of another row as well."""
        self.rows = self._common_rows(row.rows, row.claims[0].layout, row.claims)
        for claim in row.claims:
            self.add(claim)

    def relation(self, claim: RowClaim) -> int:
        """0: their order does not matter. 1: the row runs first, or runs the claim as well. 2: the row runs first."""
        rows = self._rows_with(claim)
        if rows is not None:
            own, given = self.touched_of(rows), accesses_in(claim, rows)
            if own is not None and given is not None:
                return max((self._of_access(access, own, fits=True) for access in given), default=0)
        fits = rows is None and self._fits(claim)
        found = 0
        for access in claim.accesses():
            found = max(found, self._of_access(access, self.touched, fits=fits))
            if found == _FIRST:
                break
        return found

    def _of_access(self, access: Access, touched: Mapping[int, Sequence[Access]], *, fits: bool) -> int:
        found, meta = 0, access.meta
        for other in touched.get(meta.storage, ()):
            if not (access.is_written or other.is_written):
                continue
            is_same = fits and (meta.offset, meta.dtype) == (other.meta.offset, other.meta.dtype)
            is_same = is_same and access.pitch == other.pitch and access.part == other.part
            if is_same and not (access.is_single or other.is_single):
                found = 1
            elif is_same or not are_apart(meta, other.meta):
                return _FIRST
        return found

    def _rows_with(self, claim: RowClaim) -> Rows | None:
        """The matrix on whose rows both would work: where one of them is a function of rows, or where their elements do
        not lie alike.
        """
        return self._common_rows(claim.rows, claim.layout, [claim])

    def _common_rows(self, rows: Rows | None, layout: Layout | None, claims: Sequence[RowClaim]) -> Rows | None:
        if self.rows is not None or not self.is_loop:
            return self.rows
        if rows is not None or self.claims[0].layout == layout:
            return rows
        found = (rows for rows in self.known if self.touched_of(rows) is not None)
        return next((rows for rows in found if all(claim.in_rows(rows) is not None for claim in claims)), None)

    def touched_of(self, rows: Rows) -> dict[int, list[Access]] | None:
        """What its claims touch of the rows of a matrix; None where one of them does not work on that."""
        if rows not in self.in_rows:
            self.in_rows[rows] = self._found_of(rows)
        return self.in_rows[rows]

    def _found_of(self, rows: Rows) -> dict[int, list[Access]] | None:
        found: dict[int, list[Access]] = {}
        for claim in self.claims:
            accesses = accesses_in(claim, rows)
            if accesses is None:
                return None
            for access in accesses:
                found.setdefault(access.meta.storage, []).append(access)
        return found

    def _fits(self, claim: RowClaim) -> bool:
        """Whether the claim works on elements that lie like the row's."""
        return self.is_loop and self.claims[0].layout == claim.layout and self.claims[0].element == claim.element

    def may_take(self, claim: RowClaim) -> bool:
        """Whether the claim works on elements, or on rows, like the row's, and on memory that the row touches."""
        if len(self.claims) >= _MOST:
            return False
        rows = self._rows_with(claim)
        if rows is None:
            return self._fits(claim) and self._shares(claim.accesses())
        own, given = self.touched_of(rows), accesses_in(claim, rows)
        return own is not None and given is not None and self._shares(given)

    def _shares(self, accesses: Iterable[Access]) -> bool:
        return any(access.meta.storage in self.touched for access in accesses if not access.is_single)

    def may_take_all(self, row: OpenRow) -> bool:
        """Whether it can run the claims of another row, which comes later, after its own."""
        if len(self.claims) + len(row.claims) > _MOST:
            return False
        rows = self._common_rows(row.rows, row.claims[0].layout, row.claims)
        if rows is None:
            return self._fits(row.claims[0]) and all(self.relation(claim) < _FIRST for claim in row.claims)
        own, given = self.touched_of(rows), row.touched_of(rows)
        if own is None or given is None:
            return False
        accesses = [access for each in given.values() for access in each]
        return all(self._of_access(access, own, fits=True) < _FIRST for access in accesses)


def accesses_in(claim: RowClaim, rows: Rows) -> list[Access] | None:
    """What a claim touches of the rows of a matrix; None where it does not work on them."""
    steps = claim.in_rows(rows)
    if steps is None:
        return None
    found: list[Access] = []
    for step in steps:
        found.append(Access(step.written.tensor, is_written=True, part=step.part))
        for operand, part in step.reads:
            if isinstance(operand, Value) and isinstance(part, Part):
                found.append(Access(operand.tensor, is_single=not part.is_own, part=part))
    return found


def rows_of(claims: Sequence[RowClaim]) -> list[OpenRow]:
    """The rows of a run, in order."""
    rows: list[OpenRow] = []
    touching: dict[int, list[int]] = {}
    known = dict.fromkeys(claim.rows for claim in claims if claim.rows is not None)
    for claim in claims:
        storages = {access.meta.storage for access in claim.accesses()}
        near = sorted({at for storage in storages for at in touching.get(storage, ())})
        floor = 0
        for at in near:
            relation = rows[at].relation(claim)
            if relation:
                floor = at + relation - 1
        chosen = next((at for at in near if at >= floor and rows[at].may_take(claim)), len(rows))
        if chosen == len(rows):
            rows.append(OpenRow(known))
        rows[chosen].add(claim)
        for storage in storages:
            if chosen not in touching.setdefault(storage, []):
                touching[storage].append(chosen)
    return _merged(rows)


def _merged(rows: list[OpenRow]) -> list[OpenRow]:
    """The rows, with those that work on the same memory as one where the order allows that."""
    kept: list[OpenRow] = []
    for row in rows:
        into = next((at for at in range(len(kept) - 1, -1, -1) if kept[at].touched.keys() & row.touched.keys()), -1)
        if into < 0 or not kept[into].may_take_all(row):
            kept.append(row)
            continue
        kept[into].add_all(row)
    return kept
