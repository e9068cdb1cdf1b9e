"""Forged dumps of training steps, and training steps in files of frozen modules: refused when they are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.artifact.program_json import program_from_json
from dovetail.errors import BadArtifact
from dovetail.inspect.dump_folder import read_dump
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.replay import replay

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    seen = {"loss": 0.0}

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        seen["loss"] = loss.item()
        return loss.detach()

    run = dovetail.compile_step(step, dump=folder, dump_calls=True, keep_grads=True)
    for _ in range(3):
        run(torch.randn(4, 3))
    later, _ = sorted(path for path in folder.iterdir() if path.is_dir())  # the other one makes the momentum
    return later


def _role(side: str, kind: str, **fields: Any) -> Edit:
    """The first role of a side becomes one of this kind."""

    def edit(program: dict[str, Any]) -> None:
        program["signature"][side][0] = {"role": kind, **fields}

    return edit


FORGED: dict[str, Edit] = {
    "a name that is a number": _role("inputs", "StateTensor", name=7),
    "a name that is a list": _role("inputs", "StateTensor", name=["x"]),
    "a name that is nothing": _role("inputs", "NumberInput", name=None),
    "no name": _role("inputs", "HeldGradient"),
    "another field": _role("inputs", "StateTensor", name="x", code="import os"),
    "a name that ends a line": _role("inputs", "StateTensor", name="x\nimport os"),
    "a name that is long": _role("inputs", "NumberInput", name="x" * 1001),
    "a place that is a truth value": _role("outputs", "NumberLeft", place=True),
    "a place that is a fraction": _role("outputs", "NumberLeft", place=0.0),
    "a place that is a text": _role("outputs", "NumberLeft", place="0"),
    "a place below 0": _role("outputs", "NumberLeft", place=-1),
    "a place that is large": _role("outputs", "NumberLeft", place=1 << 70),
    "a gradient without a name": _role("outputs", "GradientLeft", name=False),
    "a role that is not one": _role("inputs", "Signature", inputs=[], outputs=[]),
    "an output's role for an input": _role("inputs", "NumberLeft", place=0),
    "an input's role for an output": _role("outputs", "StateTensor", name="x"),
}


@pytest.mark.parametrize("name", list(FORGED))
def test_roles_of_steps_are_checked_by_exact_type(dump: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / dump.name
    shutil.copytree(dump, place)
    path = next(iter(sorted(place.glob("*-write_state.json"))))
    facts = json.loads(path.read_text(encoding="utf-8"))
    FORGED[name](facts["program"])
    path.write_text(json.dumps(facts), encoding="utf-8")
    for read in (read_dump, replay, read_source):
        with pytest.raises(BadArtifact):
            read(place)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("prims.GUARD", [{"value": "x"}, True]),
        ("prims.GUARD_NUMBER", [1.0]),
        ("prims.GUARD", ["os", "system", "true"]),
        ("prims.REACHED", [[1], 2]),
        ("os.system", ["true"]),
    ],
)
def test_questions_take_what_they_take(dump: Path, tmp_path: Path, target: str, args: list[Any]) -> None:
    place = tmp_path / dump.name
    shutil.copytree(dump, place)
    path = next(iter(sorted(place.glob("*-write_state.json"))))
    facts = json.loads(path.read_text(encoding="utf-8"))
    node = {
        **facts["program"]["nodes"][-1],
        "target": target,
        "args": args,
        "kwargs": {},
        "outputs": [],
        "unpack": False,
    }
    facts["program"]["nodes"].append(node)
    path.write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(BadArtifact):
        read_dump(place)


def test_only_dumps_hold_training_steps(dump: Path) -> None:
    facts = json.loads(next(iter(sorted(dump.glob("*-functional.json")))).read_text(encoding="utf-8"))
    kinds = {role["role"] for side in ("inputs", "outputs") for role in facts["program"]["signature"][side]}
    assert {"StateTensor", "NumberInput"} & kinds
    assert program_from_json(facts["program"], believe_descriptions=True, may_be_step=True).nodes
    with pytest.raises(ValueError, match="it is a training step, which only dumps may hold"):
        program_from_json(facts["program"], believe_descriptions=True)
