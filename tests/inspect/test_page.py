"""The page: its numbers add up, it refers to nothing outside, escapes what users write, and opens no long tables."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.explanation import Explanation
from dovetail.inspect.holders import peak_moment
from dovetail.inspect.source_paths import short_path
from dovetail.inspect.step_time import StepTime
from dovetail.inspect.units import byte_unit
from dovetail.pipeline.compile_trace import CompileTrace
from tests.counting import LINEAR, growth
from tests.inspect import explained

_VOID = {"meta", "link", "input", "br"}
_REFERENCES = {"src", "href", "action", "data", "poster", "srcset"}


class _Page(HTMLParser):
    """Checks nesting while it reads. boxes: the attributes of each that opens and closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.rows: list[dict[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.attributes: set[str] = set()
        self.boxes: list[dict[str, str | None]] = []
        self.policy = ""
        self.shown_rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        facts = dict(attrs)
        self.attributes |= facts.keys()
        if tag == "details":
            self.boxes.append(facts)
        if tag == "style":
            self.styles.append("")
        if facts.get("http-equiv") == "Content-Security-Policy":
            self.policy = facts["content"] or ""
        self.references += [value or "" for name, value in attrs if name in _REFERENCES]
        if tag == "tr" and "details" not in self.open:
            self.shown_rows += 1
        if tag == "tr":
            self.rows.append(dict(attrs))
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= dict(attrs).keys()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "style":
            self.styles[-1] += data
        elif self.open:
            self.text.append(data)


def _read(path: Path) -> tuple[str, _Page]:
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return text, page


def _written(found: Explanation, folder: Path) -> tuple[str, _Page]:
    found.html(folder / "report.html")
    return _read(folder / "report.html")


def _explained_step() -> Explanation:
    """A whole training step, with the state of its optimizer."""
    net = explained.Net()
    optimizer = torch.optim.AdamW(net.parameters())

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = net(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = dovetail.compile_step(train)
    for _ in range(2):
        step(torch.ones(32, 8))
    return dovetail.explain(step)


def _explained_frozen() -> Explanation:
    net = explained.Net().eval()
    return dovetail.explain(dovetail.freeze(net, (torch.ones(32, 8),)))


def _explained_backend() -> Explanation:
    trace = CompileTrace()
    torch.compiler.reset()
    compiled = torch.compile(explained.Net(), backend="dovetail", options={"compile_trace": trace})
    compiled(torch.ones(32, 8)).backward()
    return dovetail.explain(trace)


_DOORS: dict[str, Callable[[], Explanation]] = {
    "compile": explained.explained_net,
    "cut": explained.explained_cut,
    "write": explained.explained_write,
    "step": _explained_step,
    "freeze": _explained_frozen,
    "backend": _explained_backend,
}


@pytest.fixture(scope="module", params=_DOORS)
def door(request: pytest.FixtureRequest) -> Explanation:
    """An explanation from each way to compile."""
    return _DOORS[request.param]()


def _sums_up(tree: list[Any], sizes: list[int]) -> list[int]:
    """The numbers of the storages in a tree, each level of which adds up."""
    _, size, children, numbers = tree
    inside = [number for child in children for number in _sums_up(child, sizes)]
    assert size == sum(child[1] for child in children) + sum(sizes[number] for number in numbers)
    return [*inside, *numbers]


def test_holders_add_up_to_the_peak_in_every_grouping(door: Explanation, tmp_path: Path) -> None:
    _, page = _written(door, tmp_path)
    data = json.loads(page.scripts[0])["holders"]
    sizes = [holder[1] for holder in data["holders"]]
    total = door.peak_bytes + door.step.resident_bytes
    assert data["total"] == sum(sizes) == total
    assert list(data["trees"]) == ["module", "layer", "line", "operator"]
    for tree in data["trees"].values():
        assert tree[1] == total
        assert sorted(_sums_up(tree, sizes)) == list(range(len(sizes)))
    words = "".join(page.text)
    assert door.eager is not None
    unit = byte_unit(max(total, door.eager.total_bytes))
    assert f"{unit.text(total)} at the peak" in words
    assert unit.text(door.eager.total_bytes) in words
    assert door.eager.total_bytes >= door.step.resident_bytes or "freeze" in door.name


def test_nothing_is_loaded_and_nothing_else_may_run(door: Explanation, tmp_path: Path) -> None:
    text, page = _written(door, tmp_path)
    assert text.startswith("<!doctype html>")
    assert all(link.startswith("#") or link == "data:," for link in page.references)
    for word in ("http://", "https://", "url(", "@import", "@@page"):
        assert word not in text
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, content in (("script-src", page.scripts[1]), ("style-src", page.styles[0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert len(page.styles) == 1
    assert "style" not in page.attributes
    assert not [name for name in page.attributes if name.startswith("on")]


def test_nothing_long_is_open(door: Explanation, tmp_path: Path) -> None:
    _, page = _written(door, tmp_path)
    assert not [box for box in page.boxes if "open" in box]
    assert page.shown_rows <= 15, "of one table by layer, for readers without the script"


def test_a_page_of_a_dump_says_the_same(tmp_path: Path) -> None:
    x = torch.ones(64, 64, requires_grad=True)
    now = dovetail.explain(explained.many_cheap, x)
    dovetail.compile(explained.many_cheap, (x,), dump=str(tmp_path / "dump"))
    (later,) = explain_dump(tmp_path / "dump")
    assert later.eager == now.eager
    assert [(h.category, h.bytes) for h in peak_moment(later).holders] == [
        (h.category, h.bytes) for h in peak_moment(now).holders
    ]
    _, page = _written(later, tmp_path)
    assert "How much memory?" in "".join(page.text)


def test_equal_decisions_are_one_group(tmp_path: Path) -> None:
    found = explained.explained_cut()
    text, _ = _written(found, tmp_path)
    summaries = re.findall(r'<details class="group"><summary>(.*?)</summary>', text)
    told = [re.sub(r"<[^>]*>", "", summary) for summary in summaries]
    rows = [row for row in found.decisions if row.kind == "recomputed" and row.operator.startswith("aten.tanh")]
    assert len(rows) > 1
    unit = byte_unit(peak_moment(found).total_bytes)
    each = unit.text(rows[0].bytes)
    assert any(line.startswith(f"{len(rows)} &times; tanh") and f"{each} each" in line for line in told), told
    assert len(told) < len(found.decisions)


def test_times_stand_next_to_those_of_eager_mode(tmp_path: Path) -> None:
    found = dovetail.explain(explained.Net(), torch.ones(32, 8), measure_time=True)
    assert found.time is not None
    assert found.time.failure == ""
    _, page = _written(found, tmp_path)
    words = "".join(page.text)
    assert "eager mode's" in words
    assert all(layer in words for layer in ("first", "norm", "second"))
    broken = replace(found, time=StepTime(failure="RuntimeError: <no>"))
    assert "RuntimeError: <no>" in "".join(_written(broken, tmp_path)[1].text)
    assert "Not measured" in "".join(_written(replace(found, time=None), tmp_path)[1].text)


def test_a_second_version_for_likely_gradients_is_explained(tmp_path: Path) -> None:
    def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (x @ w).tanh()
        return hidden.sum(), hidden

    found = dovetail.explain(two, torch.ones(4, 4), torch.ones(4, 4, requires_grad=True))
    is_likely = any(row.program.endswith("_likely") for row in found.steps)
    assert is_likely
    words = "".join(_written(found, tmp_path)[1].text)
    assert "for the most common gradients" in words
    assert "its name ends in _likely" in words
    assert "_likely" not in "".join(_written(explained.explained_write(), tmp_path)[1].text)


def test_a_program_that_makes_nothing(tmp_path: Path) -> None:
    found = dovetail.explain(lambda x: x.t(), torch.ones(3, 5))
    _, page = _written(found, tmp_path)
    assert json.loads(page.scripts[0])["holders"]["total"] == 60
    assert "60 B at the peak" in "".join(page.text)


def test_every_row_is_there(tmp_path: Path) -> None:
    found = explained.explained_cut()
    _, page = _written(found, tmp_path)
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
    folder = tmp_path / '<b>&"quoted"\u202e\udcff'
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
    assert short_path(str(path)).replace("\udcff", "?") in "".join(page.text)
    json.loads(page.scripts[0])


def _explained(rounds: int) -> Explanation:
    def long(x: Tensor) -> Tensor:
        for _ in range(rounds):
            x = (x.sin() * 2).tanh() + 1
        return x

    return dovetail.explain(long, torch.ones(4, 4))


def test_work_grows_with_the_number_of_nodes(tmp_path: Path) -> None:
    _explained(1).html(tmp_path / "report.html")  # templates are read once
    assert growth(lambda rounds: partial(_explained(rounds).html, tmp_path / "report.html"), 60) < LINEAR


def test_a_program_of_a_thousand_nodes(tmp_path: Path) -> None:
    found = _explained(250)
    assert len(found.programs[0].nodes) == 1000
    found.html(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
    _, page = _read(tmp_path / "report.html")
    assert sum("data-op" in row for row in page.rows) == 1000
