"""Executors that other packages bring are found by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import dovetail
from dovetail.cli import doctor
from dovetail.errors import BadOptionValue
from dovetail.execute.installed import brought_executors, executor_by_name

_MODULE = """
import torch

calls = []


def my_cos(x):
    calls.append(x.shape)
    return torch.cos(x)


class Cosines:
    name = "cosines"

    def claim(self, node):
        return node.target is torch.ops.aten.cos.default

    def call(self, names, node):
        return f"{names.constant(my_cos, 'my_cos')}({names.arguments(node)})"


made = Cosines()
number = 3
"""
_ENTRIES = """
[dovetail.executors]
cosines = brought_cosines:Cosines
made = brought_cosines:made
number = brought_cosines:number
missing = brought_cosines:nothing
absent = no_such_module_at_all:x
aten = brought_cosines:number
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought_cosines.py").write_text(_MODULE)
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought_cosines", raising=False)


@pytest.mark.parametrize("name", ["cosines", "made"])
def test_it_claims_its_nodes(name: str) -> None:
    compiled = dovetail.compile(lambda x: x.cos() + x.sin(), executors=[name])
    x = torch.linspace(0, 1, 4)
    assert torch.equal(compiled(x), x.cos() + x.sin())
    assert sys.modules["brought_cosines"].calls == [(4,)]


def test_names_are_known_without_an_import() -> None:
    assert {"cosines", "made", "number"} <= brought_executors().keys()
    assert "aten" not in brought_executors()
    assert "brought_cosines" not in sys.modules
    assert executor_by_name("aten").name == "aten"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("number", "TypeError|it is a int"),
        ("missing", "brought_cosines:nothing of brought is not an executor: it raised AttributeError"),
        ("absent", "it raised ModuleNotFoundError"),
        ("nobody", "no such executor"),
    ],
)
def test_what_cannot_be_used(name: str, reason: str) -> None:
    with pytest.raises(BadOptionValue, match=reason):
        dovetail.compile(torch.sin, executors=[name])(torch.ones(2))


def test_doctor_lists_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_self_checks", list)  # they have tests of their own
    doctor.doctor()
    assert "brought_cosines:Cosines, provided by brought" in " ".join(capsys.readouterr().out.split())
