"""The commands say what is wrong with what they are given, with status 2 and without a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import dovetail
from dovetail import cli
from dovetail.inspect.explain_dump import explain_dump

_MODEL = """
def one(gm): return None
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of a forward and a backward program."""
    folder = tmp_path_factory.mktemp("dump")
    w = torch.ones(3, requires_grad=True)
    dovetail.compile(lambda x: (x * w).sum(), dump=str(folder), dump_calls=True)(torch.ones(3)).backward()
    return folder


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("draw {dump} --to x.png", "its suffix is not that of a known format"),
        ("draw {dump} --to {tmp}/missing/x.svg", "No such file or directory"),
        ("draw {text}", "it is not JSON"),
        ("replay {text}", "it is not JSON"),
        ("explain {text}", "it is a file"),
        ("bisect {text}", "it is a file"),
        ("bisect {tmp}/missing", "there is no such folder"),
        ("bisect {dump} --executor {model}:Mine --no-code", "leave out"),
        ("bisect {dump} --executor {model}", "it does not name a function"),
        ("minify {dump} --out {text}/x", "it cannot be created"),
        ("minify {dump} --out {tmp}/x --check {model}:one", "cannot be called with a graph module and a list"),
        ("bench {text}:make", "the file is not a Python module"),
    ],
)
def test_wrong_usage(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, reason: str) -> None:
    text, model = tmp_path / "text.txt", tmp_path / "model.py"
    text.write_text("hello")
    model.write_text(_MODEL)
    with pytest.raises(SystemExit) as caught:
        cli.main(command.format(dump=dump, tmp=tmp_path, text=text, model=model).split())
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert reason in " ".join(error.replace("│", " ").split())


def test_a_dump_may_be_renamed(dump: Path, tmp_path: Path) -> None:
    (compilation,) = dump.iterdir()
    shutil.copytree(compilation, tmp_path / "a-report")
    assert explain_dump(tmp_path / "a-report")[0].text() == explain_dump(dump)[0].text()
