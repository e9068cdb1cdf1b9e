"""`dovetail fit`: what a step needs, what less of it costs, and which batch fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from dovetail.cli.app import main
from dovetail.ir.provenance import is_library_file

SOURCE = """
import torch
from torch import nn
import dovetail

def make(batch=32):
    net = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU())], nn.Linear(64, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @dovetail.compile_step(keep_grads=False)
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(batch, 64),)

def model():
    return nn.Linear(64, 8), [torch.randn(16, 64)]

def wrong():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["fit", *arguments])
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


def test_a_step_that_fits(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, f"{file}:make", "--limit", "transient:1MiB", "--batch")
    assert code == 0
    assert 'memory_limit="transient:1MiB"' in out
    assert "What a lower limit costs" in out
    assert int(out.rpartition("the largest batch that fits: ")[2]) > 32


def test_a_step_that_does_not(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, f"{file}:make", "--limit", "transient:10kB")
    assert code == 1
    assert "does not fit in transient:10kB: the lowest found is" in out


def test_facts_for_other_programs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, f"{file}:make", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["peak_bytes"] == sum(found["breakdown"].values())
    plans = found["plans"]
    assert plans == sorted(plans, key=lambda plan: plan["transient_bytes"])
    assert found["floor_transient_bytes"] <= plans[0]["transient_bytes"] < plans[-1]["transient_bytes"]
    assert plans[-1]["work"] == 0 < plans[0]["work"]


def test_a_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, f"{file}:model", "--limit", "1MiB")
    assert code == 0
    assert "What a lower limit costs" not in out
    assert 'fits in 1MiB without backward: in torch.no_grad(), dovetail.compile(model, memory_limit="1MiB")' in out
    assert "compile_step" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("make", "--limit", "much"), "it is not a number of bytes with a unit"),
        (("make", "--batch"), "there is no limit"),
        (("wrong",), "the function returned int"),
        (("absent",), "the file has no function"),
    ],
)
def test_wrong_usage(file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    code, _, err = _run(capsys, f"{file}:{arguments[0]}", *arguments[1:])
    assert code == 2
    assert message in err


def test_the_command_line_is_no_code_of_the_user() -> None:
    """A model is called right below it; this Python may be one of a virtual environment."""
    assert is_library_file(typer.main.__file__)
    assert is_library_file(str(click.__file__))
    assert is_library_file("/home/me/.venv/lib/python3.12/site-packages/typer/main.py")
    assert not is_library_file("/home/me/typer/train.py")
