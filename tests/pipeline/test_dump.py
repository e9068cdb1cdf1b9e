"""Dumps: files, scripts that run by themselves, facts, differences."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.artifact import call as save_call_module
from dovetail.errors import DumpNotWritten
from dovetail.pipeline.passes import PASSES

PASS_NAMES = [spec.name for spec in PASSES["joint"].specs]
LATE = [f"{spec.name}-{half}" for half in ("forward", "backward") for spec in PASSES[half].specs]
STEPS = ["recorded", "functional", *PASS_NAMES, "forward", "backward", "write_inputs-forward", *LATE]
_RUN_ALL = """
import runpy, sys, torch
torch.set_num_threads(1)
for path in sys.argv[1:]:
    print(path)
    runpy.run_path(path, run_name="__main__")
"""


def _scripts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if "__main__" in path.read_text())


def _names(folder: Path, kind: str) -> list[str]:
    return [path.stem for path in sorted(folder.glob(f"*.{kind}"))]


def _numbers(x: Tensor) -> tuple[Tensor, ...]:
    low = torch.full_like(x, -torch.inf, device="cpu")
    y = x.view(x.size(0) * 2, -1).masked_fill(x.view(x.size(0) * 2, -1) > 0, torch.nan)
    return low, y.sin() + torch.arange(x.size(0), device="cpu").sum(), torch.nn.functional.dropout(x, 0.5)


def _network(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        noise = torch.randn(3)
    out: Tensor = nn.functional.dropout(x, 0.25) * noise
    return out.relu_()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dumps of several programs."""
    folder = tmp_path_factory.mktemp("dump")
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    options: dict[str, Any] = {"dump": str(folder)}
    dovetail.compile(net, (torch.randn(3, 4),), **options)
    dovetail.compile(_numbers, (torch.randn(3, 4, requires_grad=True),), dynamic=True, **options)
    dovetail.compile(_network, (torch.randn(2, 3, requires_grad=True),), **options)
    return folder


def _folder(dump: Path, name: str) -> Path:
    return next(path for path in sorted(dump.iterdir()) if path.name.endswith(f"-{name}"))


def test_every_step_has_its_files(dump: Path) -> None:
    folder = _folder(dump, "Sequential")
    steps = [f"{number:03}-{name}" for number, name in enumerate(STEPS)]
    code = ["014-code-Sequential_forward", "015-code-Sequential_backward", "016-wrapper"]
    assert _names(folder, "py") == [*steps, *code]
    assert _names(folder, "json") == steps
    assert _names(folder, "diff") == [*steps[1:], *code]


def test_folders_are_numbered_by_compilation(dump: Path) -> None:
    numbers = [int(path.name[:3]) for path in sorted(dump.iterdir())]
    assert numbers == sorted(set(numbers))
    names = [path.name[4:] for path in sorted(dump.iterdir())]
    assert [name for name in names if not name.endswith(("_0", "_likely"))] == ["Sequential", "_numbers", "_network"]


def test_scripts_run_by_themselves_in_a_fresh_process(dump: Path, tmp_path: Path) -> None:
    scripts = [script for folder in sorted(dump.iterdir()) for script in _scripts(folder)]
    assert len(scripts) >= 3 * (len(STEPS) - 1)  # not all of them write inputs
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUN_ALL, *map(str, scripts)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    functional = result.stdout.split(str(_folder(dump, "Sequential") / "001-functional.py"))[1].splitlines()
    assert functional[1] == "output 0: torch.float32 (3, 2) strides (2, 1)"


def test_one_script_alone(dump: Path, tmp_path: Path) -> None:
    script = _folder(dump, "_numbers") / "005-forward.py"
    result = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("output 0: torch.float32 (2, 2) strides (2, 1)\n")


def test_facts_are_those_of_the_step(dump: Path) -> None:
    facts = {path.stem[4:]: json.loads(path.read_text()) for path in _folder(dump, "Sequential").glob("*.json")}
    assert {name: fact["stage"] for name, fact in facts.items()} == {
        "recorded": "impure",
        **dict.fromkeys(("functional", *PASS_NAMES), "functional"),
        "forward": "split",
        "backward": "split",
        "write_inputs-forward": "in-place",
        "expand_foreach-forward": "in-place",
        "sink-forward": "in-place",
        "expand_foreach-backward": "split",
        "sink-backward": "split",
        "reinplace-forward": "in-place",
        "reinplace-backward": "split",
    }
    for before, name in zip(["functional", *PASS_NAMES], PASS_NAMES, strict=False):
        step = facts[name]["step"]
        assert set(step) == {"name", "nodes_before", "nodes_after", "time_us", "report", "reason", "details"}
        assert step["name"] == name
        assert step["nodes_before"] == facts[before]["nodes"]
        assert step["nodes_after"] == facts[name]["nodes"]
    assert facts["forward"]["nodes"] + facts["backward"]["nodes"] == facts[PASS_NAMES[-1]]["nodes"]
    assert facts["forward"]["name"] == "Sequential_forward"
    assert facts["forward"]["peak_bytes"] > 0
    signature = facts["functional"]["signature"]
    assert signature["inputs"][0] == "Parameter(name='0.weight')"
    assert signature["inputs"][-1] == "Tangent(output=0)"
    assert "UserOutput(slot=0)" in signature["outputs"]
    assert "step" not in facts["recorded"]


def test_differences_lead_from_step_to_step(dump: Path) -> None:
    folder = _folder(dump, "Sequential")
    texts = [path.read_text().splitlines() for path in sorted(folder.glob("*.py"))]
    for (before, after), path in zip(itertools.pairwise(texts), sorted(folder.glob("*.diff")), strict=True):
        lines = path.read_text().splitlines()[2:]
        removed = [line[1:] for line in lines if line.startswith("-")]
        added = [line[1:] for line in lines if line.startswith("+")]
        assert all(line in before for line in removed)
        assert all(line in after for line in added)
        assert len(after) - len(before) == len(added) - len(removed)


def test_the_code_that_runs_is_in_the_dump(dump: Path) -> None:
    compiled = dovetail.compile(lambda x: x.sin(), (torch.ones(2),))
    assert "arg_0.sin()" in compiled.graphs[0].forward.source
    text = (_folder(dump, "Sequential") / "014-code-Sequential_forward.py").read_text()
    assert text.startswith("def run(args):\n    _0_weight_0, _0_bias_1, ")
    assert "addmm(" in text
    assert (_folder(dump, "Sequential") / "016-wrapper.py").read_text().startswith("def call(run, args):")


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOVETAIL_DUMP", raising=False)
    dovetail.compile(lambda x: x.sin(), (torch.ones(2),))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_DUMP", str(tmp_path / "new" / "folder"))
    dovetail.compile(lambda x: x.sin(), (torch.ones(2),))
    assert len(list((tmp_path / "new" / "folder").glob("*/000-recorded.py"))) == 1


@pytest.mark.parametrize("verify", [0, 1, 2])
def test_the_first_call_is_one_with_data(tmp_path: Path, verify: int) -> None:
    dovetail.compile(lambda x: x * 2 + 1, dump=str(tmp_path), dump_calls=True, verify=verify)(torch.ones(3))
    assert len(list(tmp_path.rglob("forward.inputs.safetensors"))) == 1
    assert len(list(tmp_path.rglob("forward.results.safetensors"))) == 1


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/dovetail/dump", "a\0b"):
        with pytest.raises(DumpNotWritten, match="name a folder that can be made"):
            dovetail.compile(torch.sin, (torch.ones(2),), dump=str(folder))
    monkeypatch.setenv("DOVETAIL_DUMP", str(tmp_path / "file"))
    with pytest.raises(DumpNotWritten, match="is no folder"):
        dovetail.compile_step(torch.sin)


def test_what_the_disk_refuses_later_is_an_error_before_the_step_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    weight = torch.ones(2, requires_grad=True)
    step = dovetail.compile_step(lambda: weight.square().sum().backward(), dump=str(tmp_path))
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        step()  # a first call that cannot be recorded runs in eager mode
        assert "No space left on device" in step.stats.eager_reasons[0]
        with pytest.raises(DumpNotWritten, match="No space left on device"):
            step()
    assert torch.equal(weight.grad, torch.full((2,), 2.0))
    step()
    assert torch.equal(weight.grad, torch.full((2,), 4.0))


def test_a_call_that_cannot_be_written_down_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(save_call_module, "save_call", full)
    compiled = dovetail.compile(torch.sin, dump=str(tmp_path), dump_calls=True)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())
    assert "cannot be written: [Errno 28] No space left on device" in caplog.text
