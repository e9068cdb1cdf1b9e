"""Checks in processes of their own: what ends a process is a failure, and scripts show failures by themselves."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.artifact.call import load_call, save_call
from dovetail.artifact.program_json import program_to_json
from dovetail.errors import BadCheck, DoesNotFail, OutputInTheWay
from dovetail.inspect.minify import minify
from dovetail.inspect.minify_isolated import Isolated, run_apart
from dovetail.inspect.minify_oracles import Agrees, CheckFile, Compiles, FailureKind, NamedOracle, oracle_from_json
from dovetail.inspect.minify_script import write_reproducer
from tests.inspect.planted import BROKEN, long_program

aten = torch.ops.aten

_CHECKS = """
import os, signal, time
import torch

def _has_erf(gm):
    return any("erf" in str(node.target) for node in gm.graph.nodes)

def fine(gm, inputs):
    gm(*inputs)

def exits(gm, inputs):
    gm(*inputs)
    if _has_erf(gm):
        os._exit(7)

def exits_calmly(gm, inputs):
    if _has_erf(gm):
        os._exit(0)

def dies(gm, inputs):
    if _has_erf(gm):
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

def hangs(gm, inputs):
    if _has_erf(gm):
        time.sleep(600)

def raises(gm, inputs):
    for place, node in enumerate(gm.graph.nodes):
        if "erf" in str(node.target):
            raise RuntimeError(f"bad node {node.name} at {place}")

def first_process_only(gm, inputs):
    if _has_erf(gm) and os.environ.get("PLANTED") != "no":
        raise RuntimeError("bad erf")
"""


@pytest.fixture
def checks(tmp_path: Path) -> Path:
    path = tmp_path / "checks.py"
    path.write_text(_CHECKS)
    return path


@pytest.fixture(scope="module")
def isolated() -> Iterator[Callable[..., Isolated]]:
    """Isolated checks that are run by one process, which imports torch once."""
    with Isolated(Agrees()) as first:

        def made(oracle: NamedOracle, seconds: float = 60.0) -> Isolated:
            other = Isolated(oracle, seconds)
            other._server = first._started()
            return other

        yield made


@pytest.mark.parametrize(
    ("function", "seconds", "what"),
    [
        ("exits", 60, "exit status 7"),
        ("exits_calmly", 60, "exit status 0"),
        ("dies", 60, "signal SIGSEGV"),
        ("hangs", 0.7, "time limit"),
    ],
)
def test_what_ends_a_process_is_found(
    function: str, seconds: float, what: str, checks: Path, tmp_path: Path, isolated: Callable[..., Isolated]
) -> None:
    length = 10 if function == "hangs" else 40  # each check that hangs takes its whole time
    program, inputs = long_program(3, length, "aten.erf.default({a})", length // 2, writes=True)
    found = minify(program, inputs, isolated(CheckFile(checks, function), seconds))
    assert [node.target for node in found.program.nodes] == [BROKEN]
    assert (found.failure.kind, found.failure.what) == (FailureKind.CRASHED, what)
    if function == "dies":
        assert "about to die" in found.failure.text
    if function == "exits":
        written = write_reproducer(tmp_path / "out", found, CheckFile(checks, function))
        assert (written.is_confirmed, written.ending) == (True, what)


def test_where_the_system_cannot_fork(checks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs = long_program(3, 5, "aten.erf.default({a})", 2)
    monkeypatch.delattr(os, "fork")
    for function, end in (("raises", "exit status 0"), ("exits", "exit status 7")):
        folder = tmp_path / function
        folder.mkdir()
        (folder / "program.json").write_text(json.dumps(program_to_json(program)))
        (folder / "oracle.json").write_text(json.dumps(CheckFile(checks, function).to_json()))
        save_call(folder / "inputs.safetensors", inputs)
        assert run_apart(folder, "check", 60) == end
    assert json.loads((tmp_path / "raises" / "verdict.json").read_text())["what"] == "RuntimeError"
    assert not (tmp_path / "exits" / "verdict.json").exists()


def test_it_says_what_the_check_itself_says(checks: Path, isolated: Callable[..., Isolated]) -> None:
    program, inputs = long_program(3, 20, "aten.erf.default({a})", 10)
    check = CheckFile(checks, "raises")
    with Isolated(check) as oracle:
        here, there = check(program, list(inputs)), oracle(program, list(inputs))
        assert here == there
        assert here is not None
        assert oracle.reach(program, inputs) == len(program.nodes)
    with pytest.raises(DoesNotFail):
        minify(program, inputs, isolated(CheckFile(checks, "fine")))
    assert isolated(Agrees())(program, list(inputs)) is None


def test_a_program_of_which_only_the_beginning_runs(checks: Path) -> None:
    program, inputs = long_program(3, 30, "aten.erf.default({a})", 10)

    class Short(CheckFile):
        def reach(self, program: Any, inputs: Any) -> int:
            return 12

    found = minify(program, inputs, Short(checks, "raises"))
    assert [node.target for node in found.program.nodes] == [BROKEN]


def test_a_script_runs_by_itself(checks: Path, tmp_path: Path) -> None:
    program, inputs = long_program(3, 20, "aten.erf.default({a})", 10)
    check = CheckFile(checks, "raises")
    found = minify(program, inputs, check)
    written = write_reproducer(tmp_path / "out", found, check)
    assert written.is_confirmed
    assert "it fails: RuntimeError: bad node" in written.ending
    names = {path.name for path in written.script.parent.iterdir()} - {"__pycache__"}
    assert names == {"repro.py", "program.json", "checks.py"}
    with pytest.raises(OutputInTheWay, match="DT-MINIFY-005"):
        write_reproducer(tmp_path / "out", found, check)
    (written.script.parent / "checks.py").write_text("def raises(gm, inputs):\n    raise TypeError('other')\n")
    assert _run(written.script) == 3
    (written.script.parent / "checks.py").write_text("def raises(gm, inputs):\n    pass\n")
    assert _run(written.script) == 0


def _run(script: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("scripts_run_here")
def test_large_inputs_lie_beside_the_script_and_share_memory(checks: Path, tmp_path: Path) -> None:
    program, inputs = long_program(3, 20, "aten.erf.default({a})", 0)
    memory = torch.rand(2000)
    large = [memory[:16].view(4, 4), memory[8:24].view(4, 4), *inputs[2:]]
    assert program.inputs[0].tensor.shape == (4, 4)
    check = CheckFile(checks, "raises")
    found = minify(program, large, check, limit=2)
    written = write_reproducer(tmp_path / "out", found, check)
    assert written.is_confirmed
    assert (tmp_path / "out" / "inputs.safetensors").exists()
    read = load_call(tmp_path / "out" / "inputs.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(read, found.inputs, strict=True))


def test_what_does_not_fail_in_a_fresh_process_is_said_so(
    checks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, inputs = long_program(3, 20, "aten.erf.default({a})", 10)
    check = CheckFile(checks, "first_process_only")
    found = minify(program, inputs, check)
    monkeypatch.setenv("PLANTED", "no")
    written = write_reproducer(tmp_path / "out", found, check)
    assert not written.is_confirmed
    assert written.ending == "exit status 0: it does not fail"


@pytest.mark.usefixtures("scripts_run_here")
def test_built_in_checks_are_run_on_the_text_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with dovetail here, so the script must say so; what it compiles is its own text."""
    program, inputs = long_program(3, 20, "aten.erf.default({a})", 10)
    monkeypatch.setattr("dovetail.inspect.minify_oracles._compiled", _refuse)
    found = minify(program, inputs, Compiles())
    assert found.failure.text == "refused"
    monkeypatch.undo()
    written = write_reproducer(tmp_path / "out", found, Compiles())
    assert not written.is_confirmed
    assert "it does not fail" in written.ending


def _refuse(*_: object) -> Any:
    raise ValueError("refused")


def test_checks_are_written_and_read(checks: Path) -> None:
    for oracle in (Compiles({"verify": 2}), Agrees(0.5, {"skip": ("no_ops",)}), CheckFile(checks, "fine")):
        read = oracle_from_json(oracle.to_json())
        assert read.to_json() == oracle.to_json()
    with pytest.raises(BadCheck, match="no such check"):
        oracle_from_json({"oracle": "guess"})


@pytest.mark.parametrize(
    ("text", "function", "reason"),
    [
        (None, "f", "not a Python file"),
        ("x = 1", "f", "no function f"),
        ("f = 1", "f", "no function f"),
        ("1 / 0", "f", "ZeroDivisionError"),
        ("def f(:", "f", "SyntaxError"),
    ],
)
def test_a_check_that_cannot_be_used(text: str | None, function: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "check.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadCheck, match=reason):
        CheckFile(path, function)
