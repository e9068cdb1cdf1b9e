"""The explanation of a dump is that of the compilation, and the command prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.cli.app import main
from dovetail.errors import BadArtifact, NothingToExplain
from dovetail.inspect.explain_dump import explain_dump
from tests.inspect.explained import Net, many_cheap, smooth


def _pair(x: Tensor) -> tuple[Tensor, Tensor]:
    h = (x @ x).sin()
    return h.sum(), h


@pytest.mark.parametrize(
    ("target", "shapes", "partition"),
    [
        (Net(), [(32, 8)], "default"),
        (many_cheap, [(8, 8)], "min_cut"),
        (many_cheap, [(8, 8)], "auto"),
        (smooth, [(4, 4), (4, 4)], "default"),
        (_pair, [(4, 4)], "default"),
    ],
)
def test_a_dump_says_what_the_compilation_says(
    target: object, shapes: list[tuple[int, ...]], partition: str, tmp_path: Path
) -> None:
    args = [torch.ones(shape, requires_grad=target is not smooth) for shape in shapes]
    compiled = dovetail.compile(target, partition=partition)  # type: ignore[arg-type]
    now = dovetail.explain(compiled, *args)
    dovetail.compile(target, args, partition=partition, dump=str(tmp_path))  # type: ignore[arg-type]
    (later,) = explain_dump(tmp_path)
    assert later.text(times=False).splitlines()[1:] == now.text(times=False).splitlines()[1:]
    assert later.decisions == now.decisions
    assert later.step == now.step
    assert [row.diff for row in later.steps] == [row.diff for row in now.steps]
    assert later.lines == now.lines


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of two compilations."""
    folder = tmp_path / "dump"
    dovetail.compile(Net(), (torch.ones(32, 8),), dump=str(folder))
    dovetail.compile(smooth, (torch.ones(4, 4), torch.ones(4, 4)), dump=str(folder))
    return folder


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_prints_every_compilation(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("explain", dump) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "predicted peak" in line] == [
        "Net: predicted peak 12.1 kB",
        "smooth: predicted peak 196 B",
    ]


def test_the_command_prints_every_row_on_request(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = explain_dump(dump)[0]
    details = [row.detail for row in net.decisions if row.kind == "saved" and row.code != "IS-INPUT"]
    assert _run("explain", dump) == 0
    assert not any(detail in capsys.readouterr().out for detail in details)
    assert _run("explain", dump, "--all") == 0
    out = capsys.readouterr().out
    assert all(detail in out for detail in details)


def test_the_command_writes_files_for_one(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = next(path for path in dump.iterdir() if path.name.endswith("-smooth"))
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    assert _run("explain", one, "--html", page, "--trace", trace, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [found["name"] for found in data] == ["smooth"]
    assert data[0]["peak_bytes"] == 68
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_mistakes(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("explain", dump, "--html", tmp_path / "report.html") == 2
    assert "2 compilations (Net, smooth)" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    assert _run("explain", tmp_path / "missing") == 2
    assert "no such folder" in capsys.readouterr().err
    for path in sorted(dump.rglob("*.json")):
        if "forward" in path.name:
            path.unlink()
    with pytest.raises(NothingToExplain, match="no compilation in it has both halves"):
        explain_dump(dump)


def test_a_damaged_step_is_named(dump: Path) -> None:
    path = next(iter(sorted(dump.rglob("*-reinplace-forward.json"))))
    facts = json.loads(path.read_text())
    facts["step"]["details"]["rows"][0]["unknown"] = 1
    path.write_text(json.dumps(facts))
    with pytest.raises(BadArtifact, match="reinplace-forward"):
        explain_dump(dump)
