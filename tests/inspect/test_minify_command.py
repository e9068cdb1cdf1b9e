"""`dovetail minify`: from a dump to a script that shows the failure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail import cli
from dovetail.artifact.call import save_call
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.inspect.minify_files import read_source
from tests.inspect.planted import BROKEN, long_program

_CHECK = """
def fails(gm, inputs):
    gm(*inputs)
    if any("erf" in str(node.target) for node in gm.graph.nodes):
        raise RuntimeError("bad erf")

def fine(gm, inputs):
    gm(*inputs)

def comes_and_goes(gm, inputs, calls=[]):
    calls.append(1)
    if len(calls) % 2:
        raise RuntimeError("now and then")

def only_here(gm, inputs):
    import os
    if os.getpid() == {pid}:
        fails(gm, inputs)
"""


@pytest.fixture
def check(tmp_path: Path) -> Path:
    path = tmp_path / "check.py"
    path.write_text(_CHECK.format(pid=os.getpid()))
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    made, inputs = long_program(0, 40, "aten.erf.default({a})", 20, writes=True)
    path.write_text(json.dumps(program_to_json(made)))
    save_call(tmp_path / "inputs.safetensors", inputs)
    return path


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


@pytest.mark.usefixtures("scripts_run_here")
def test_a_program_and_a_check_of_ones_own(
    program: Path, check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, state = tmp_path / "out", tmp_path / "state.jsonl"
    arguments = ["minify", program, "--check", f"{check}:fails", "--state", state]
    given = ["--inputs", tmp_path / "inputs.safetensors"]
    assert _run(*arguments, *given, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "1 of 40 nodes" in printed
    assert "confirmed in a fresh process" in printed
    (node,) = program_from_json(json.loads((out / "program.json").read_text())).nodes
    assert node.target is BROKEN
    assert _run(*arguments, *given, "--out", tmp_path / "again", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["nodes_before"], facts["nodes"], facts["checks"], facts["confirmed"]) == (40, 1, 0, True)
    assert (facts["failure"]["what"], facts["inputs_from"], facts["complete"]) == ("RuntimeError", "given", True)
    assert _run(*arguments, "--out", tmp_path / "third") == 2  # the state belongs to other inputs
    assert "DT-MINIFY-003" in capsys.readouterr().err


def test_a_program_that_does_not_fail(
    program: Path, check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _run("minify", program, "--check", f"{check}:fine", "--out", out) == 1
    assert "DT-MINIFY-001" in capsys.readouterr().err
    assert _run("minify", program, "--oracle", "agrees", "--tolerance", "1e-5", "--out", out, "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"program": "random", "fails": False, "inputs_from": "random"}
    assert not out.exists()


def test_what_fails_in_one_process_only_is_not_confirmed(
    program: Path, check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("minify", program, "--check", f"{check}:only_here", "--out", tmp_path / "out") == 3
    assert "NOT CONFIRMED" in capsys.readouterr().out


def test_wrong_usage(program: Path, check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "bad.json").write_text("{}")
    save_call(tmp_path / "short.safetensors", [torch.ones(1)])
    known = ["minify", program, "--out", tmp_path / "out"]
    for arguments, said in (
        (["minify", tmp_path / "none.json"], "does not exist"),
        (["minify", tmp_path / "bad.json"], "DT-ARTIFACT-002"),
        (["minify", tmp_path / "there"], "DT-ARTIFACT-002"),
        (["minify", program, "--out", tmp_path / "there"], "DT-MINIFY-005"),
        ([*known, "--check", check], "DT-MINIFY-004"),
        ([*known, "--check", f"{check}:nothing"], "DT-MINIFY-004"),
        ([*known, "--check", f"{check}:comes_and_goes"], "DT-MINIFY-002"),
        ([*known, "--inputs", tmp_path / "short.safetensors"], "1 inputs"),
        ([*known, "--oracle", "guess"], "guess"),
        ([*known, "--limit", "0"], "--limit"),
    ):
        assert _run(*arguments) == 2, arguments
        assert said in " ".join(capsys.readouterr().err.replace("│", "").split())  # it is wrapped
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("scripts_run_here")
def test_a_dump_is_read(tmp_path: Path, check: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        for _ in range(3):
            x = torch.cos(x @ w)
        return torch.erf(x).sum()

    dump = tmp_path / "dump"
    dovetail.compile(function, dump=str(dump))(torch.rand(3, 3), torch.rand(3, 3))
    source = read_source(dump)
    assert source.origin == "random"
    assert [tuple(item.shape) for item in source.inputs] == [(3, 3), (3, 3)]
    step = sorted(dump.rglob("*.json"))[0]
    arguments = ["--check", f"{check}:fails", "--isolate", "--json", "--out", tmp_path / "out"]
    assert _run("minify", step, *arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["nodes"], facts["confirmed"]) == (1, True)


def test_a_recorded_call_is_taken(tmp_path: Path) -> None:
    x = torch.rand(3, 3)
    dump = tmp_path / "dump"
    dovetail.compile(lambda x: torch.cos(x).sum(), dump=str(dump), dump_calls=True)(x)
    source = read_source(dump)
    assert source.origin == "recorded"
    assert torch.equal(source.inputs[0], x)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("minify", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("DOVETAIL_DUMP", "Exit status", "--isolate", "fresh process", "check.py:fails"):
        assert words in text
