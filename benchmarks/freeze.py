"""Measure frozen models next to eager, inductor, ONNX Runtime and OpenVINO: latency, cold start, load time, memory.

Each backend has a process of its own for a model and a number of threads. It is measured from its start to the first
result; then all backends take their turns, case by case, so that a change of the machine's load meets all of them. A
package that is not installed is a line in the table, not an error.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.freeze_models import Case, cases_of
from benchmarks.freeze_worker import EAGER, INDUCTOR, INDUCTOR_FREEZING, ONNXRUNTIME, OPENVINO
from benchmarks.processes import ROOT, fresh_environment

Json = dict[str, Any]
_COMPILED_BY_CXX = (INDUCTOR, INDUCTOR_FREEZING)


@dataclass(frozen=True, slots=True)
class FreezeSettings:
    """What is measured. sizes: batch and length of each case.

    inductor_s: seconds of compiling after which an inductor gets no further case. case_s: seconds after which a case
    gets no further round. start_s: seconds that a cold start may take.
    """

    backends: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    rounds: int = 10
    turn_s: float = 0.1
    case_s: float = 25.0
    inductor_s: float = 60.0
    start_s: float = 400.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One backend's way to the first result of the first case, in a fresh process.

    cold_s: import of the backend, making the program, first call; torch and the model are there already, except for
    backends that read files and need neither. rss_bytes: what the process has grown by since it imported torch.
    wall_s: from nothing, with imports of torch and transformers and building the model.
    """

    model: str
    threads: int
    backend: str
    cold_s: float | None = None
    prepare_s: float | None = None
    wall_s: float | None = None
    rss_bytes: int | None = None
    peak_bytes: int | None = None
    equal: bool | None = None
    difference: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """One backend on one case. ratio: to eager, the median over rounds of the ratio within a round.

    least_ratio: of the shortest calls. cpu_ratio: like `ratio`, of the processor time of all threads; on a machine that
    others use, too, it says more than the wall does, but threads that wait by spinning count as if they worked.
    """

    model: str
    threads: int
    case: str
    backend: str
    calls: int
    p50_ms: float
    p95_ms: float
    least_ms: float
    ratio: float
    ratio_range: tuple[float, float]
    least_ratio: float
    cpu_ratio: float
    prepare_s: float
    equal: bool
    difference: float


@dataclass(slots=True)
class Measured:
    """All rows. notes: what was left out, and why. files: seconds for writing what backends read, by model."""

    cold: list[ColdStart] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, Json] = field(default_factory=dict)


def missing_reason(backend: str) -> str | None:
    """Why a backend cannot be measured here; None when it can."""
    if backend in _COMPILED_BY_CXX and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "there is no C++ compiler"
    for package in {ONNXRUNTIME: ("onnxruntime", "onnxscript"), OPENVINO: ("openvino", "onnxscript")}.get(backend, ()):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install dovetail[benchmarks])"
    return None


def measure_frozen(model: str, threads: Sequence[int], settings: FreezeSettings, found: Measured) -> None:
    """Measure one model, and add the rows to what was found already."""
    backends = []
    for backend in settings.backends:
        reason = missing_reason(backend)
        if reason is None:
            backends.append(backend)
        elif (note := f"{backend}: {reason}") not in found.notes:
            found.notes.append(note)
    cases = cases_of(model, settings.sizes)
    request = {"model": model, "cases": [[c.batch, c.length] for c in cases], "backends": backends}
    with tempfile.TemporaryDirectory(prefix="dovetail-freeze-", ignore_cleanup_errors=True) as folder:
        request["folder"] = folder
        with _started({**request, "writes_files": True, "threads": threads[0]}, Path(folder)) as writer:
            found.files[model] = writer.answer(settings.start_s * len(cases))
        if "error" in found.files[model]:
            found.notes.append(f"{model}: {found.files[model]['error']}")
            return
        if "export_error" in found.files[model]:
            found.notes.append(f"{model} as ONNX: {found.files[model]['export_error']}")
        for count in threads:
            Group(model, count, cases, settings, found).measure({**request, "threads": count}, backends, Path(folder))


class Group:
    """All backends with one model and one number of threads."""

    def __init__(
        self, model: str, threads: int, cases: Sequence[Case], settings: FreezeSettings, found: Measured
    ) -> None:
        self._model = model
        self._threads = threads
        self._cases = cases
        self._settings = settings
        self._found = found
        self._answers: dict[tuple[str, int], Json] = {}

    def measure(self, request: Mapping[str, Any], backends: Sequence[str], folder: Path) -> None:
        """Start every backend, and give them their turns. Eager comes first: others are compared with its results."""
        with ExitStack() as stack:
            workers: dict[str, _Worker] = {}
            for backend in sorted(backends, key=lambda name: name != EAGER):
                start = time.perf_counter()
                worker = stack.enter_context(_started({**request, "backend": backend}, folder))
                answer = worker.answer(self._settings.start_s)
                answer["wall_s"] = time.perf_counter() - start
                names = {*ColdStart.__dataclass_fields__} & answer.keys()
                row = ColdStart(self._model, self._threads, backend, **{name: answer[name] for name in names})
                self._found.cold.append(row)
                if row.error is None:
                    workers[backend] = worker
                    self._answers[backend, 0] = answer
            self._prepare(workers)
            for number in range(len(self._cases)):
                able = {name: worker for name, worker in workers.items() if (name, number) in self._answers}
                if EAGER in able:
                    self._take_turns(number, able)

    def _prepare(self, workers: Mapping[str, _Worker]) -> None:
        """Every backend makes its programs for the other cases."""
        spent_s = {name: self._answers[name, 0]["prepare_s"] + self._answers[name, 0]["first_s"] for name in workers}
        for number in range(1, len(self._cases)):
            for name, worker in workers.items():
                where = f"{self._model} {self._cases[number]} with {self._threads} threads, {name}"
                if name in _COMPILED_BY_CXX and spent_s[name] > self._settings.inductor_s:
                    self._found.notes.append(f"{where}: left out, {spent_s[name]:.0f} s of compiling are enough")
                    continue
                answer = worker.ask({"do": "prepare", "case": number}, self._settings.start_s)
                if "error" in answer:
                    self._found.notes.append(f"{where}: {answer['error']}")
                    continue
                spent_s[name] += answer["prepare_s"] + answer["first_s"]
                self._answers[name, number] = answer

    def _take_turns(self, case: int, workers: Mapping[str, _Worker]) -> None:
        rounds: dict[str, list[Json]] = {name: [] for name in workers}
        start = time.perf_counter()
        for number in range(self._settings.rounds):
            order = [*workers]
            shift = number % len(order)
            for name in order[shift:] + order[:shift]:
                asked = {"do": "turn", "case": case, "seconds": self._settings.turn_s}
                rounds[name].append(workers[name].ask(asked, self._settings.start_s))
            if time.perf_counter() - start > self._settings.case_s:
                break
        for name, turns in rounds.items():
            failed = next((turn["error"] for turn in turns if "error" in turn), None)
            if failed is not None:
                where = f"{self._model} {self._cases[case]} with {self._threads} threads, {name}"
                self._found.notes.append(f"{where}: {failed}")
            elif not any("error" in turn for turn in rounds[EAGER]):
                self._found.latencies.append(self._latency(case, name, turns, rounds[EAGER]))

    def _latency(self, case: int, name: str, turns: Sequence[Json], eager: Sequence[Json]) -> Latency:
        pairs = list(zip(turns, eager, strict=True))
        ratios = sorted(statistics.median(turn["ms"]) / statistics.median(base["ms"]) for turn, base in pairs)
        passed = sorted(ms for turn in turns for ms in turn["ms"])
        answer = self._answers[name, case]
        return Latency(
            model=self._model,
            threads=self._threads,
            case=str(self._cases[case]),
            backend=name,
            calls=len(passed),
            p50_ms=statistics.median(passed),
            p95_ms=passed[math.ceil(0.95 * len(passed)) - 1],
            least_ms=passed[0],
            ratio=statistics.median(ratios),
            ratio_range=(ratios[0], ratios[-1]),
            least_ratio=passed[0] / min(ms for turn in eager for ms in turn["ms"]),
            cpu_ratio=statistics.median(turn["cpu_ms"] / base["cpu_ms"] for turn, base in pairs),
            prepare_s=answer["prepare_s"],
            equal=answer["equal"],
            difference=answer["difference"],
        )


class _Worker:
    """A process that answers, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: Json, timeout_s: float) -> Json:
        """Its answer; an error when the process has died."""
        assert self._process.stdin is not None, "its input is a pipe"
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process has ended"}
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> Json:
        """The next answer. After the timeout, in seconds, the process is killed."""
        assert self._process.stdout is not None, "its output is a pipe"
        watch = threading.Timer(timeout_s, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            status = self._process.wait()
            return {"error": f"the process ended with status {status}, or took longer than {timeout_s:.0f} s"}
        found: Json = json.loads(line)
        return found


@contextmanager
def _started(request: Json, folder: Path) -> Iterator[_Worker]:
    """A worker in a fresh process with caches of its own. It is ended at the end."""
    own = Path(tempfile.mkdtemp(dir=folder))
    path = own / "request.json"
    path.write_text(json.dumps(request))
    with (own / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.freeze_worker", str(path)],
            cwd=ROOT,
            env=fresh_environment("freeze", own, request["threads"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield _Worker(process)
        finally:
            process.kill()
            process.communicate()
