"""The page: it parses, refers to nothing outside, escapes what users write, and stays fast for large programs."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.inspect.page import byte_text
from tests.inspect import explained

_VOID = {"meta", "link", "input", "br"}
_REFERENCES = {"src", "href", "action", "data", "poster", "srcset"}


class _Page(HTMLParser):
    """Checks nesting while it reads. texts: of cells, by table row; data: of the script of that type."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.rows: list[dict[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self.references += [value or "" for name, value in attrs if name in _REFERENCES]
        if tag == "tr":
            self.rows.append(dict(attrs))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text.append(data)


def _read(path: Path) -> tuple[str, _Page]:
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return text, page


def test_the_page_parses_and_needs_nothing_else(tmp_path: Path) -> None:
    found = explained.explained_net()
    found.html(tmp_path / "report.html")
    text, page = _read(tmp_path / "report.html")
    assert text.startswith("<!doctype html>")
    assert all(link.startswith("#") or link == "data:," for link in page.references)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "@@page" not in text


def test_every_row_is_there(tmp_path: Path) -> None:
    found = explained.explained_cut()
    found.html(tmp_path / "report.html")
    _, page = _read(tmp_path / "report.html")
    nodes = [row for row in page.rows if "data-op" in row]
    assert len(nodes) == sum(len(program.nodes) for program in found.programs)
    words = "".join(page.text)
    for decision in found.decisions:
        assert decision.name in words
        assert decision.code in words
    data = json.loads(page.scripts[0])
    assert [len(part["storages"]) for part in data["maps"]] == [
        len(memory.storages) for memory in (found.step, *(program.memory for program in found.programs))
    ]
    assert data["maps"][0]["peak"] == found.peak_bytes
    assert set(data["diffs"]) == {str(place) for place, row in enumerate(found.steps) if row.diff}


def test_what_the_user_writes_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / '<b>&"quoted"'
    folder.mkdir()
    source = (
        'def attack(x):\n    "</script><script>alert(1)</script>"\n    return x.sin()  # </script><img src=x> & "y"\n'
    )
    path = folder / "user.py"
    path.write_text(source)
    space: dict[str, object] = {}
    exec(compile(source, str(path), "exec"), space)
    function = space["attack"]
    function.__name__ = "</title><script>alert(2)</script>"  # type: ignore[attr-defined]
    found = dovetail.explain(function, torch.ones(3))  # type: ignore[arg-type]
    assert "</script>" in "".join(found.lines.values())
    found.html(tmp_path / "report.html")
    text, page = _read(tmp_path / "report.html")
    assert len(page.scripts) == 2
    assert text.count("<script") == 2
    assert "<img" not in text
    assert '</script><img src=x> & "y"' in "".join(page.text)
    assert str(path) in "".join(page.text)
    json.loads(page.scripts[0])


def test_a_program_of_thousands_of_nodes(tmp_path: Path) -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(1250):
            x = (x.sin() * 2).tanh() + 1
        return x

    found = dovetail.explain(long, torch.ones(4, 4))
    assert len(found.programs[0].nodes) == 5000
    start = time.process_time()
    found.html(tmp_path / "report.html")
    assert time.process_time() - start < 5
    assert (tmp_path / "report.html").stat().st_size < 10_000_000
    _, page = _read(tmp_path / "report.html")
    assert sum("data-op" in row for row in page.rows) == 5000


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"),
        (5 * 1024**5, "5.12e+03 TiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert byte_text(count) == text
