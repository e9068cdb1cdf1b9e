"""What was found so far, as json lines that are written at once, so that a crash loses one entry only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.opdb.calls import Entry, dtype_name

Record = dict[str, Any]


class State:
    """The records of a run by key, kept in a file if there is one. An entry in flight when it is read has crashed."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._current: Record | None = None
        self.records: dict[str, Record] = {}
        if path is not None and path.exists():
            self.records, in_flight = _read(path)
            if in_flight is not None:
                in_flight["arms"].setdefault(in_flight.pop("now"), {"status": "crash", "reason": "the process ended"})
                self._keep(in_flight)

    def begin(self, entry: Entry, arm: str) -> None:
        """Say that an entry is about to be run in one way."""
        if self._current is None:
            self._current = {
                "key": entry.key,
                "kind": entry.kind,
                "name": entry.name,
                "dtype": dtype_name(entry.dtype),
                "arms": {},
            }
        self._append({**self._current, "now": arm})

    def note(self, arm: str, verdict: Record) -> None:
        """Keep what came of the entry in one way."""
        assert self._current is not None, "an entry was begun"
        self._current["arms"][arm] = verdict

    def end(self, seconds: float) -> None:
        """The entry is done."""
        assert self._current is not None, "an entry was begun"
        self._keep({**self._current, "seconds": seconds})
        self._current = None

    def _keep(self, record: Record) -> None:
        self.records[record["key"]] = record
        self._append(record)

    def _append(self, line: Record) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def read_records(path: Path) -> dict[str, Record]:
    """The records of a state file; the last one of a key counts."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[str, Record], Record | None]:
    """The records, and the last announcement without a record."""
    records: dict[str, Record] = {}
    in_flight: Record | None = None
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if "now" in record:
            in_flight = record
        else:
            records[record["key"]] = record
            in_flight = None
    return records, in_flight
