"""Names that a person or a file chose cannot become markup, script or structure in what is drawn of a program."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.inspect.draw import draw

HOSTILE = 'x</script><script>alert(1)</script><img src=x onerror=alert(1)>"\'&--><!-- ]]> \\N \\" {{}} ${1}'


class _Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(HOSTILE.replace(".", ""), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.children()
        return torch.tanh(layer(x))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _explained() -> dovetail.Explanation:
    return dovetail.explain(_Hostile(), torch.randn(2, 4))


@pytest.fixture
def compiled() -> object:
    made = dovetail.compile(_Hostile())
    made(torch.randn(2, 4)).sum().backward()
    return made


def test_the_page_has_no_element_of_theirs_and_a_strict_policy(tmp_path: Path) -> None:
    _explained().html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(page)
    assert not [tag for tag, attributes in tags.found if tag == "img" or any(name[:2] == "on" for name in attributes)]
    assert "alert(1)" in page  # as text
    assert "alert(1)</script>" not in page
    policies = [a["content"] or "" for tag, a in tags.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert "unsafe" not in re.sub(r"style-src[^;]*", "", policies[0])
    scripts = [a for tag, a in tags.found if tag == "script" and a.get("type") in (None, "text/javascript", "module")]
    assert policies[0].count("'sha256-") >= len(scripts)


@pytest.mark.parametrize("suffix", [".svg", ".dot"])
def test_drawings_are_what_they_are(tmp_path: Path, compiled: object, suffix: str) -> None:
    program = compiled.graphs[0].forward.program  # type: ignore[attr-defined]
    path = tmp_path / f"drawing{suffix}"
    draw(program, to=path)
    text = path.read_text(encoding="utf-8")
    if suffix == ".svg":
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
        assert not names & {"script", "img", "foreignObject", "image"}
    else:  # quotes that are left when quoted strings are taken out would begin something else
        assert '"' not in re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
        assert "alert" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", text)


def test_what_is_written_for_traces_is_json(tmp_path: Path) -> None:
    explained = _explained()
    explained.trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert json.loads(explained.to_json())
