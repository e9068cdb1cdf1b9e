"""The tour finds what it breaks, in a process of its own."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import cli

_TOUR = Path(__file__).resolve().parents[2] / "examples" / "look_inside.py"
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=_ENVIRONMENT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that the tour wrote, and what it printed."""
    folder = tmp_path_factory.mktemp("tour")
    done = _run(folder, str(_TOUR), "--out", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out", done.stdout


def test_it_tells_what_it_finds(told: tuple[Path, str]) -> None:
    _, out = told
    for line in (
        "it and all 20 weights are eager's, bit by bit",
        "forward call: result 0 differs",
        "step code differs from reinplace-backward, on the inputs of the first call",
        "node      gelu = torch.ops.aten.gelu.default(addmm)",
        "run by    wrong_gelu: quick_gelu(addmm)",
        "small/repro.py was run once in a process of its own: exit status 1: it fails",
        "Everything was found",
    ):
        assert line in out
    left = re.search(r"(\d+) of (\d+) nodes, \d+ inputs", out)
    assert left is not None
    assert int(left[1]) <= 8 < int(left[2])
    assert len(out.splitlines()) < 70


def test_it_leaves_what_it_wrote(told: tuple[Path, str]) -> None:
    folder, _ = told
    for name in ("report.html", "program.svg", "small/program.json", "wrong_gelu.py"):
        assert (folder / name).stat().st_size > 0
    for pattern in ("right/*/000-recorded.py", "right/*/001-*.diff", "wrong/*/forward.inputs.safetensors"):
        assert len(list(folder.glob(pattern))) == 1


def test_the_reproducer_fails_by_itself(told: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Here, after the tour ran it in a process of its own."""
    folder, _ = told
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(folder / "small" / "repro.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("it fails:")


def test_the_commands_say_the_same(
    told: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = told
    command = next(line for line in out.splitlines() if line.startswith("   $ dovetail bisect"))
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match="1"):
        cli.main(command.split()[2:])
    assert "gelu = torch.ops.aten.gelu.default(addmm)" in capsys.readouterr().out


def test_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(_TOUR.parent))
    monkeypatch.setattr(sys, "argv", [str(_TOUR), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(_TOUR), run_name="__main__")
    assert "exists, and nothing is written over" in capsys.readouterr().err
