"""Run torch's databases of operators and modules through dovetail, and compare each call with eager.

    python -m tests.opdb --minutes 60 --state opdb.jsonl --table opdb.md
    python -m tests.opdb --shard 0/2 --state opdb-0.jsonl
    python -m tests.opdb --only add,bmm --dtypes float32 --samples 100
    python -m tests.opdb --through dynamo --state dynamo.jsonl
    python -m tests.opdb --minutes 0 --state opdb-0.jsonl --also opdb-1.jsonl --table opdb.md

With a state file, the run goes on where it stopped; an entry that ended the process is recorded as a crash. The exit
status is 1 when a compiled call was not eager's, or was refused where aot_eager takes it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.opdb.calls import MODULE_DTYPES, OPERATOR_DTYPES, Entry, dtype_name, module_entries, operator_entries
from tests.opdb.state import State, read_records
from tests.opdb.table import is_shortfall, table
from tests.opdb.verdict import ARMS, judge, references

KINDS = ("operator", "module", "transposed")


def main(argv: list[str] | None = None) -> int:
    """Run entries until all are done or the time is up; print the table."""
    options = _arguments(argv)
    state = State(options.state)
    end = time.monotonic() + options.minutes * 60
    for entry in _entries(options):
        if time.monotonic() >= end:
            break
        if entry.key not in state.records:
            examine(entry, options.through, options.samples, state)
            _show(state.records[entry.key])
    records = [*state.records.values(), *(r for path in options.also for r in read_records(path).values())]
    text = table(records)
    if options.table is not None:
        options.table.write_text(text)
    print(text if options.table is None else text.split("\n\n## ")[0])
    return 1 if any(map(is_shortfall, records)) else 0


def examine(entry: Entry, arms: Sequence[str], samples: int, state: State) -> None:
    """Compare an entry with eager in each way, and keep what came of it. Each step is announced to the state."""
    start = time.monotonic()
    state.begin(entry, "eager")
    found = references(entry, samples)
    for arm in arms:
        state.begin(entry, arm)
        state.note(arm, asdict(judge(found, ARMS[arm])))
    state.end(round(time.monotonic() - start, 2))


def _entries(options: argparse.Namespace) -> list[Entry]:
    """The entries that are asked for, in this shard: operators and modules, dtype by dtype.

    Operators run a second time with inputs that lie in memory otherwise: there, fakes and real tensors disagree most.
    """
    found: list[Entry] = []
    for dtype in OPERATOR_DTYPES:
        if dtype_name(dtype) in options.dtypes:
            found += operator_entries([dtype])
            found += module_entries([dtype]) if dtype in MODULE_DTYPES else ()
            found += operator_entries([dtype], transposed=True) if dtype in MODULE_DTYPES else ()
    if options.only is not None:
        found = [entry for entry in found if entry.name in options.only or entry.key in options.only]
    index, shards = map(int, options.shard.split("/"))
    return [entry for entry in found if entry.kind in options.kinds][index::shards]


def _show(record: dict[str, object]) -> None:
    words = [f"{arm} {verdict['status']}" for arm, verdict in record["arms"].items()]
    bad = [v for v in record["arms"].values() if v["status"] not in ("pass", "skipped")]
    print(f"{record['key']}: {', '.join(words)} {bad[0]['reason'][:150] if bad else ''}", flush=True)


def _words(text: str) -> list[str]:
    return text.split(",")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.opdb", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--samples", type=int, default=10, help="calls of an entry, spread evenly over its samples")
    parser.add_argument("--dtypes", type=_words, default=[dtype_name(dtype) for dtype in OPERATOR_DTYPES])
    parser.add_argument("--kinds", type=_words, default=list(KINDS))
    parser.add_argument("--only", type=_words, help="names or keys of entries")
    parser.add_argument("--through", type=_words, default=["dovetail", "aot"], help=f"ways: {', '.join(ARMS)}")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th entry, beginning with the i-th (from 0)")
    parser.add_argument("--state", type=Path, help="file of json lines to go on from, and to append to")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="state files of other shards, for the table")
    parser.add_argument("--table", type=Path, help="file to write the table to, as markdown")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
