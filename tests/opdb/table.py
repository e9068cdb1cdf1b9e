"""What was found, as markdown: counts for each dtype and way, then every entry that is not eager's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.opdb.state import Record
from tests.opdb.verdict import CRASH, FAIL, PASS, REFUSED, ROUNDING, SKIPPED, STATUSES

_TITLES = ("Wrong, or refused where aot_eager passes", "Refused or rounded, or not equal in aot_eager")


_PLURAL = {"operator": "operators", "module": "modules", "transposed": "operators on transposed inputs"}


def is_shortfall(record: Record) -> bool:
    """Whether a compiled call was wrong, or was refused or only close to eager's although aot_eager's is equal."""
    statuses = {arm: verdict["status"] for arm, verdict in record["arms"].items()}
    own = {status for arm, status in statuses.items() if arm != "aot"}
    bad = {FAIL, CRASH} | ({REFUSED, ROUNDING} if statuses.get("aot") == PASS else set())
    return bool(own & bad)


def table(records: Sequence[Record]) -> str:
    """Counts, then the entries that are wrong or refused, each with its reason."""
    arms = list(dict.fromkeys(arm for record in records for arm in record["arms"]))
    parts = ["# Operators and modules against eager", _counts(records, arms)]
    groups: dict[str, list[Record]] = {title: [] for title in _TITLES}
    wrong, other = _TITLES
    for record in records:
        if is_shortfall(record):
            groups[wrong].append(record)
        elif any(verdict["status"] not in (PASS, SKIPPED) for verdict in record["arms"].values()):
            groups[other].append(record)
    for title, group in groups.items():
        rows = [_row(record, arms) for record in group]
        parts.append("\n".join([f"## {title} ({len(group)})", "", *_head(["entry", *arms]), *rows]))
    return "\n\n".join(parts) + "\n"


def _counts(records: Sequence[Record], arms: list[str]) -> str:
    kinds = list(dict.fromkeys((record["kind"], record["dtype"]) for record in records))
    rows = []
    for kind, dtype in kinds:
        own = [record for record in records if (record["kind"], record["dtype"]) == (kind, dtype)]
        for arm in arms:
            counts = Counter(record["arms"][arm]["status"] for record in own if arm in record["arms"])
            cells = [f"{_PLURAL[kind]}, {dtype}", arm, *(str(counts[status]) for status in STATUSES)]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*_head(["entries", "way", *STATUSES]), *rows])


def _head(names: list[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _row(record: Record, arms: list[str]) -> str:
    cells = [record["key"]]
    for arm in arms:
        verdict = record["arms"].get(arm, {"status": ""})
        words = [verdict["status"], verdict.get("sample", ""), verdict.get("reason", "")]
        cells.append(": ".join(word for word in words if word).replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"
