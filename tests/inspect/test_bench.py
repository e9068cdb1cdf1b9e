"""Backends side by side: what is measured, and what counts as equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dovetail import cli
from dovetail.inspect.bench import EAGER, measure_backends

_MODEL = """
import torch


def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    return model, (torch.randn(3, 4, requires_grad=True),)


def wrong():
    return 3


def fails():
    raise KeyError("the user's own error")
"""


def _make() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5)), (torch.randn(3, 4),)


def _off_by_one(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
    return lambda *args: [gm(*args)[0] + 1]


def test_equal_and_unequal_back_ends() -> None:
    torch.compiler.reset()
    torch._dynamo.register_backend(_off_by_one, "off_by_one")
    eager, ours, wrong, none = measure_backends(_make, ("dovetail", "off_by_one", "no_such_backend"), rounds=3)
    assert (eager.backend, eager.difference, eager.failure) == (EAGER, None, "")
    assert [len(column.calls_ms) for column in (eager, ours, wrong, none)] == [3, 3, 3, 0]
    assert eager.peak_bytes >= 3 * 8 * 4
    assert ours.difference is None
    assert wrong.difference == "differs by up to 1"
    assert "no_such_backend" in none.failure


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *arguments])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(_MODEL)
    status, out, _ = _run(capsys, f"{path}:make", "--rounds", "2", "--json")
    columns = json.loads(out)
    assert status == 0
    assert [column["backend"] for column in columns] == ["eager", "dovetail"]
    status, out, _ = _run(capsys, f"{path}:make", "--rounds", "1")
    assert status == 0
    assert "bitwise eager's" in out


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("{path}:none", "no function 'none'"),
        ("{path}:wrong", "returned int"),
        ("{path}", "does not name a function"),
        ("{path}x:make", "no such file"),
    ],
)
def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, reason: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(_MODEL)
    status, _, err = _run(capsys, program.format(path=path))
    assert status == 2
    assert reason in err


def test_the_users_own_error_keeps_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(_MODEL)
    with pytest.raises(KeyError, match="own error"):
        cli.main(["bench", f"{path}:fails"])
