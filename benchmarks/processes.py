"""Start a fresh process with fresh caches for each measurement, and collect facts about the machine."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH")
_SHOWN_LINES = 3


def ask_fresh_process(kind: str, arguments: Json, *, threads: int | None, timeout_s: float) -> Json:
    """Run one measurement in a process of its own, with empty caches, and return its answer.

    A process that dies, or that takes longer than `timeout_s`, gives `{"error": "..."}`.
    """
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-", ignore_cleanup_errors=True) as folder:
        request_path = Path(folder) / "request.json"
        answer_path = Path(folder) / "answer.json"
        request_path.write_text(json.dumps({"kind": kind, "arguments": arguments, "threads": threads}))
        command = [sys.executable, "-m", "benchmarks.measure", str(request_path), str(answer_path)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=fresh_environment(kind, Path(folder), threads),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {timeout_s:.0f} s"}
        if not answer_path.exists():
            last = " | ".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
            return {"error": f"the process ended with status {done.returncode}: {last}"}
        answer: Json = json.loads(answer_path.read_text())
        return answer


def keep_to_processors(process: subprocess.Popen[str], count: int) -> None:
    """Let a process that has just begun run on so many processors only: XLA takes all that it finds, whatever its flags
    say. Where the system has no such bound, nothing is done.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:count])


def last_line_of(module: str, *arguments: str) -> str:
    """The last line that a module of benchmarks prints, run in a process of its own with the caches of this one.

    Raises: CalledProcessError where it fails.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = os.environ | bytecode()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@functools.cache
def bytecode() -> Mapping[str, str]:
    """What lets a process find the bytecode of dovetail, as that of a package which pip has installed. Makes it first.

    Half of a first call is its compilation otherwise, where a checkout keeps none (`PYTHONDONTWRITEBYTECODE`).
    """
    prefix = str(ROOT / "build" / "bytecode")
    found = {"PYTHONPYCACHEPREFIX": prefix, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "compileall", "-q", "src/dovetail", "benchmarks"]
    subprocess.run(command, cwd=ROOT, env=os.environ | found, check=True)
    return found


def describe_machine(device: str) -> Json:
    """Return the facts that a number needs beside it: processor, cores, versions, load and date."""
    facts: Json = {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": device,
    }
    if device.startswith("cuda") and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def fresh_environment(kind: str, folder: Path, threads: int | None) -> dict[str, str]:
    """The environment of a measuring process: caches of its own in a folder, and that many threads."""
    environment = os.environ | bytecode()
    for name in _CACHES:
        environment[name] = str(folder / name.lower())
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    if kind in ("first-step", "step-capture"):
        # OpenMP's threads spin while they wait, unless told otherwise. In the first second of a process two of them
        # can share a core, and each then burns its time slice waiting for the other. Steady steps keep the default,
        # as users have it: waking threads that sleep would slow every small operator down.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    # A checkout that is not installed can be measured as well.
    paths = [str(ROOT / "src"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
