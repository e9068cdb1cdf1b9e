"""Measure files and memory of a large frozen model, in fresh processes.

The model is a stack of linear layers and batch norms, which fold into them, so that every weight is made again.
`python -m benchmarks.freeze_artifact FOLDER` is how the second process is started that has the file mapped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from benchmarks.freeze_worker import memory_bytes, timed
from benchmarks.processes import ROOT, fresh_environment

Json = dict[str, Any]

LIMIT_LOAD_S = 0.5
LIMIT_PRIVATE = 0.05
LIMIT_PEAK = 1.1
_LAYERS = 24
_PASSES = ("remove_dropout", "fold_batch_norms")
"""None that packs weights where they run: packed ones are not part of the file, and memory of each process's own."""

_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class ArtifactCost:
    """A large model and its file.

    cold_load_s: with none of the file in the page cache. private_share: of the constants' bytes, by which the private
    memory of a second process grows from before loading to after the first call; mapped_private_share: of which in
    the mapping of the file. peak_share: the most memory during freezing with discard_originals, as a share of the
    model's bytes; kept_peak_share: without it.
    """

    model_bytes: int
    file_bytes: int
    freeze_s: float
    save_s: float
    load_s: float
    cold_load_s: float
    full_load_s: float
    first_call_s: float
    second_call_s: float
    equal: bool
    private_share: float
    mapped_private_share: float
    peak_share: float
    kept_peak_share: float


def write_artifact(folder: str, megabytes: int) -> Json:
    """Freeze, save, and load again in this process; times in seconds."""
    model, x = _model(megabytes)
    freeze_s, frozen = timed(lambda: dovetail.freeze(model, (x,), passes=_PASSES))
    path = Path(folder) / "large.dovetail"
    save_s, _ = timed(lambda: frozen.save(path))
    torch.save([x, frozen(x)], Path(folder) / "large.pt")
    return {
        "model_bytes": _bytes_of(model),
        "file_bytes": path.stat().st_size,
        "freeze_s": freeze_s,
        "save_s": save_s,
    }


def read_artifact(folder: str) -> Json:
    """Load in a process that has not the model: times in seconds, and the memory of a second process beside it."""
    path = Path(folder) / "large.dovetail"
    x, wanted = torch.load(Path(folder) / "large.pt", weights_only=True)
    _forget(path)
    cold_load_s, _ = timed(lambda: dovetail.load(path))
    load_s, frozen = timed(lambda: dovetail.load(path))
    full_load_s, _ = timed(lambda: dovetail.load(path, verify="full"))
    first_call_s, found = timed(lambda: frozen(x))
    second_call_s, _ = timed(lambda: frozen(x))
    command = [sys.executable, "-m", "benchmarks.freeze_artifact", folder]
    environment = fresh_environment("read-artifact", Path(folder), torch.get_num_threads())
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    second = json.loads(done.stdout)
    return {
        "cold_load_s": cold_load_s,
        "load_s": load_s,
        "full_load_s": full_load_s,
        "first_call_s": first_call_s,
        "second_call_s": second_call_s,
        "equal": torch.equal(found, wanted) and second["equal"],
        **{name: second[name] for name in ("private_share", "mapped_private_share")},
    }


def measure_discarding(megabytes: int, discards: bool) -> Json:
    """The most memory while a model is frozen, as a share of the model's bytes. Linux only; 0 elsewhere."""
    small, x = _model(1)
    dovetail.freeze(small, (x,), passes=_PASSES, discard_originals=discards)(x)  # what is imported and made once
    before = memory_bytes("VmRSS")
    model, x = _model(megabytes)
    size = _bytes_of(model)
    _reset_peak()
    freeze_s, frozen = timed(lambda: dovetail.freeze(model, (x,), passes=_PASSES, discard_originals=discards))
    share = (memory_bytes("VmHWM") - before) / size
    frozen(x)
    return {"peak_share": share, "freeze_s": freeze_s}


def measure_second(folder: str) -> Json:
    """Load and call while another process has the file mapped: shares of the constants' bytes that are private."""
    path = Path(folder) / "large.dovetail"
    x, wanted = torch.load(Path(folder) / "large.pt", weights_only=True)
    torch.nn.functional.linear(x, torch.zeros(8, x.shape[1]))  # memory that the library of products takes once
    before = _private_bytes(None)
    frozen = dovetail.load(path)
    with torch.no_grad():
        found = frozen(x)
    size = frozen.constant_bytes()
    return {
        "equal": torch.equal(found, wanted),
        "private_share": (_private_bytes(None) - before) / size,
        "mapped_private_share": _private_bytes(path.name) / size,
    }


def _model(megabytes: int) -> tuple[nn.Module, Tensor]:
    width = int((megabytes * _MB / 4 / _LAYERS) ** 0.5)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers).eval().requires_grad_(False), torch.randn(2, width)


def _bytes_of(model: nn.Module) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in model.state_dict().values())


def _private_bytes(name: str | None) -> int:
    """Bytes of memory that only this process has: all of it, or in mappings of files that end in a name."""
    found, counts = 0, name is None
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        fields = line.split()
        if not fields[0].endswith(":"):
            counts = name is None or line.endswith(name)
        elif counts and fields[0] in ("Private_Clean:", "Private_Dirty:"):
            found += int(fields[1]) * 1024
    return found


def _forget(path: Path) -> None:
    """Ask the system to drop the file from its page cache."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(0.1)


def _reset_peak() -> None:
    """Let VmHWM start again from what is resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


if __name__ == "__main__":
    print(json.dumps(measure_second(sys.argv[1])))
