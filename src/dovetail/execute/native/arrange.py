"""A run as rows: which claims share one, and in what order the rows run.

Claims that work element by element share a loop where they work on the same memory. Two pieces of memory of one loop
are the same elements, or do not overlap; where neither is known, the claim gets a loop of its own, later. A claim that
works in another way has a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dovetail.execute.native.rows import Access, RowClaim, are_apart

_FIRST = 2  # see `OpenRow.relation`
_MOST = 40  # claims of one loop: more of them need more registers than there are


@dataclass(slots=True)
class OpenRow:
    """Claims that one row runs, and what they touch, by storage."""

    claims: list[RowClaim] = field(default_factory=list)
    touched: dict[int, list[Access]] = field(default_factory=dict)

    @property
    def is_loop(self) -> bool:
        """Whether it works element by element."""
        return self.claims[0].layout is not None

    def add(self, claim: RowClaim) -> None:
        """Let the row run a claim as well."""
        self.claims.append(claim)
        for access in claim.accesses():
            self.touched.setdefault(access.meta.storage, []).append(access)

    def relation(self, claim: RowClaim) -> int:
        """0: their order does not matter. 1: the row runs first, or runs the claim as well. 2: the row runs first."""
        found, fits = 0, self._fits(claim)
        for access in claim.accesses():
            meta = access.meta
            for other in self.touched.get(meta.storage, ()):
                if not (access.is_written or other.is_written):
                    continue
                is_same = fits and (meta.offset, meta.dtype) == (other.meta.offset, other.meta.dtype)
                is_same = is_same and access.pitch == other.pitch
                if is_same and not (access.is_single or other.is_single):
                    found = 1
                elif is_same or not are_apart(meta, other.meta):
                    return _FIRST
        return found

    def _fits(self, claim: RowClaim) -> bool:
        """Whether the claim works on elements that lie like the row's."""
        return self.is_loop and self.claims[0].layout == claim.layout

    def may_take(self, claim: RowClaim) -> bool:
        """Whether the claim works on elements like the row's, and on memory that the row touches."""
        fits = self._fits(claim) and self.claims[0].element == claim.element and len(self.claims) < _MOST
        return fits and any(a.meta.storage in self.touched for a in claim.accesses() if not a.is_single)

    def may_take_all(self, row: OpenRow) -> bool:
        """Whether it can run the claims of another row, which comes later, after its own."""
        fits = self._fits(row.claims[0]) and self.claims[0].element == row.claims[0].element
        fits = fits and len(self.claims) + len(row.claims) <= _MOST
        return fits and all(self.relation(claim) < _FIRST for claim in row.claims)


def rows_of(claims: Iterable[RowClaim]) -> list[OpenRow]:
    """The rows of a run, in order."""
    rows: list[OpenRow] = []
    touching: dict[int, list[int]] = {}
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
            rows.append(OpenRow())
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
        for claim in row.claims:
            kept[into].add(claim)
    return kept
