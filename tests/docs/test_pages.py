"""Every page: its code runs, its commands exist, its links lead somewhere, and its words are plain."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from dovetail.cli.app import app
from tests.docs.blocks import ROOT, blocks, commands, pages, run_blocks, run_prompts
from tests.harness.functional_programs import functional_program

_PAGES = pages()
_NAMES = [str(page.relative_to(ROOT)) for page in _PAGES]
# How many examples with prompts a page has at least: a page that lost them by a slip of its format would pass else.
_AT_LEAST = {
    "docs/aliasing.md": 20,
    "docs/backends.md": 15,
    "docs/freezing.md": 40,
    "docs/frontends.md": 3,
    "docs/graph-signature.md": 8,
    "docs/inplace.md": 10,
    "docs/instruments.md": 5,
    "docs/overlap.md": 8,
    "docs/training-step.md": 40,
}


def _given(name: str) -> dict[str, Any]:
    """What a page takes for granted: the names that it says the reader has."""
    if name == "docs/artifact.md":
        weights = {"weight": torch.randn(3, 4), "running_mean": torch.zeros(3)}
        return {"program": functional_program(1).program(), "weights": weights}
    return {}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("page", _PAGES, ids=_NAMES)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(page.relative_to(ROOT))
    monkeypatch.chdir(tmp_path)
    results = run_prompts(page)
    assert results.failed == 0
    assert results.attempted >= _AT_LEAST.get(name, 0)
    run_blocks(page, {"__name__": "__main__", **_given(name)})


def test_few_blocks_are_not_run() -> None:
    skipped = [(page.name, block.line, block.not_run) for page in _PAGES for block in blocks(page) if block.not_run]
    assert all(reason.removeprefix("not run: ").strip() for _, _, reason in skipped)
    assert len(skipped) <= 4, skipped


@pytest.mark.parametrize("page", _PAGES, ids=_NAMES)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    made = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    click_app = typer.main.get_command(app)
    for command in commands(page):
        words = shlex.split(command)
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert set(targets) <= made, command
        elif words[0].endswith("dovetail"):
            found = click_app.commands[words[1]]  # type: ignore[attr-defined]
            known = {option for parameter in found.params for option in parameter.opts} | {"--help"}
            assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, command
        elif words[:2] == ["python", "-m"]:
            module = ROOT / words[2].replace(".", "/")
            assert words[2] in ("pip", "pytest") or module.is_dir() or module.with_suffix(".py").exists(), command


@pytest.mark.parametrize("page", _PAGES, ids=_NAMES)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([\w./-]+)(?:#[\w.-]*)?\)", text):
        if "://" not in target and not (page.parent / target).exists():
            pytest.fail(f"{page.name} links to {target}")
