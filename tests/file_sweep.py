"""Search for forged files that do harm: `.dovetail` files and dumps, changed by the grammar of their format.

    python -m tests.file_sweep --minutes 10
    python -m tests.file_sweep --programs 100000 --minutes 60 --shard 1/2 --state files-1.json

`file_forgeries` says what is changed, `file_trial` what may happen, `file_watch` what is watched. Files are tried in
processes that are forked for some hundred of them at a time, so that a crash, a hang or a forbidden system call is a
finding with its seed and the search goes on. Each finding is written to `sweep-failures/`. The exit status is 1 when
there is one. `--programs 1 --first SEED` tries one file again.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.ops import interpret
from tests.file_corpus import FROZEN, Subject, corpus
from tests.file_forgeries import forgery, packed
from tests.file_text import MAX_TURNS
from tests.file_trial import OUTCOMES, Bench, Finding
from tests.file_watch import forbid_system_calls
from tests.searching import Standing, begin, keep, parser_of, quietly

_BATCH = 500
_SECONDS_FOR_ONE = 60.0  # on the clock of the wall, for what does not compute
_MORE_BYTES = 4 << 30
_SHOWN_OF_A_KIND = 3


@dataclass
class State(Standing):
    """Where a search stands. outcomes: how many files ended how. kinds: how often each kind of finding came."""

    outcomes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)


class _Board:
    """What a process and the one that it was forked from both see: the seed that is tried, and counts."""

    _FORM = struct.Struct(f"{2 + len(OUTCOMES)}q")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._FORM.size)

    def write(self, numbers: Sequence[int]) -> None:
        """Seed, number of tried files, numbers of outcomes."""
        self._memory[:] = self._FORM.pack(*numbers)

    def read(self) -> list[int]:
        """The same."""
        return list(self._FORM.unpack(self._memory[:]))


class Search:
    """A search on honest files, in a folder of its own."""

    def __init__(self, subjects: list[Subject], folder: Path, failures: Path, *, batch: int = _BATCH) -> None:
        self._subjects = subjects
        self._failures = failures.absolute()
        self._batch = batch
        self._bench = Bench(subjects, folder)
        interpret.MAX_TURNS = MAX_TURNS
        self._bench.honest_suite()  # loads what is loaded late
        self._honest = self._bench.honest_suite()
        self.is_filtered = False

    def run(self, state: State, step: int, seconds: float, files: int | None) -> None:
        """Try seeds `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (files is None or state.tried < files):
            count = self._batch if files is None else min(self._batch, files - state.tried)
            self._run_batch(state, step, count, end)
            if state.tried % 5000 < self._batch:
                print(report(state), flush=True)

    def _run_batch(self, state: State, step: int, count: int, end: float) -> None:
        """Try so many files in a process of their own; fewer when one of them ends it."""
        board, (reader, writer) = _Board(), os.pipe()
        board.write([state.next, 0, *[0] * len(OUTCOMES)])
        child = os.fork()
        if not child:
            os.close(reader)
            self._be_child(state.next, step, count, end, board, writer)
        os.close(writer)
        lines, ending = _waited(child, reader, board)
        seed, tried, *counts = board.read()
        for outcome, number in zip(OUTCOMES, counts, strict=True):
            state.outcomes[outcome] = state.outcomes.get(outcome, 0) + number
        for line in lines:
            self._note(state, line["seed"], line["what"])
        if ending != "exit status 0":
            self._note(state, seed, f"the process ends: {ending}")
            tried += 1
        state.tried += tried
        state.next += tried * step

    def _note(self, state: State, seed: int, what: str) -> None:
        kind = re.sub(r"-?[0-9][0-9.e+]*", "N", what)[:160]
        state.kinds[kind] = state.kinds.get(kind, 0) + 1
        if state.kinds[kind] > _SHOWN_OF_A_KIND:
            return
        forged = forgery(self._subjects, seed)
        state.failures[str(seed)] = (
            f"{what}\n    {forged.subject.name} ({forged.subject.kind}): {'; '.join(forged.what)}"
        )
        place = self._failures / f"file_{seed}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "what.txt").write_text(f"{state.failures[str(seed)]}\n", encoding="utf-8", errors="backslashreplace")
        if forged.subject.kind == FROZEN:
            content = packed(forged.members) if forged.packed is None else forged.packed
            (place / "forged.dovetail").write_bytes(content)
        else:
            for name, content in forged.members.items():
                (place / name).write_bytes(content)

    def _be_child(self, first: int, step: int, count: int, end: float, board: _Board, writer: int) -> None:
        status, seed = 1, first
        try:
            soft = _mapped_bytes() + _MORE_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 2)
            self._bench.start_watching()
            forbid_system_calls()
            counts = dict.fromkeys(OUTCOMES, 0)
            for number in range(count):
                seed = first + number * step
                board.write([seed, number, *counts.values()])
                try:
                    counts[self._bench.try_seed(seed)] += 1
                except Finding as finding:
                    _tell(writer, seed, str(finding))
                board.write([seed, number + 1, *counts.values()])
                if time.monotonic() > end:
                    break
            now = self._bench.honest_suite()
            if now != self._honest:
                differs = [place for place, (a, b) in enumerate(zip(self._honest, now, strict=True)) if a != b]
                _tell(writer, seed, f"honest work differs after files from {first} on: {differs}")
            status = 0
        except BaseException:
            _tell(writer, seed, f"the search itself fails: {traceback.format_exc()[-1500:]}")
        finally:
            os._exit(status)


def _tell(writer: int, seed: int, what: str) -> None:
    os.write(writer, (json.dumps({"seed": seed, "what": what}) + "\n").encode())


def _mapped_bytes() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[0]) * mmap.PAGESIZE if status.exists() else 16 << 30


def _waited(child: int, reader: int, board: _Board) -> tuple[list[dict[str, object]], str]:
    """What a process told, and how it ended; it is ended when it stays at one file for too long."""
    told, last, since = b"", board.read(), time.monotonic()
    is_stuck = False
    while True:
        ready, _, _ = select.select([reader], [], [], 0.2)
        if ready:
            content = os.read(reader, 1 << 16)
            told += content
            if not content:
                break
        now = board.read()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > _SECONDS_FOR_ONE and not is_stuck:
            is_stuck = True
            os.kill(child, signal.SIGKILL)
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ending = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    lines = [json.loads(line) for line in told.decode(errors="replace").splitlines()]
    return lines, "no end" if is_stuck else ending


def report(state: State) -> str:
    """One line on where a search stands."""
    ways = ", ".join(f"{number} {outcome}" for outcome, number in state.outcomes.items() if number)
    return f"{state.tried} files: {ways}; {sum(state.kinds.values())} findings of {len(state.kinds)} kinds"


@quietly()
def main(argv: list[str] | None = None) -> int:
    """Search, and say now and then how far it is."""
    parser = parser_of("tests.file_sweep", __doc__)
    parser.add_argument("--failures", type=Path, default=Path("sweep-failures"), help="folder for what was found")
    parser.add_argument("--only", type=int, help="take so many honest files of either kind; all if not given")
    options = parser.parse_args(argv)
    if not hasattr(os, "fork"):
        print("files are tried in forked processes, which this system does not have")
        return 0
    state, shards = begin(options, State(0))
    begun = time.monotonic()
    standing = Path.cwd()
    options.state = options.state and options.state.absolute()
    with tempfile.TemporaryDirectory() as folder:
        search = Search(corpus(options.only), Path(folder).resolve(), options.failures)
        search.run(state, shards, options.minutes * 60 - (time.monotonic() - begun), options.programs)
        os.chdir(standing)
    keep(options, state)
    print(report(state))
    for kind, number in sorted(state.kinds.items(), key=lambda item: -item[1]):
        print(f"  {number} x {kind}")
    for label, what in state.failures.items():
        print(f"seed {label}: {what}")
    return 1 if state.kinds else 0


if __name__ == "__main__":
    sys.exit(main())
