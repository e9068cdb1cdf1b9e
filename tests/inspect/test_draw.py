"""Drawings of programs: what they say, and that any label renders."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.inspect.draw import draw, to_dot, to_svg, to_text
from dovetail.inspect.lanes import lay_out
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Node, Origin, Program
from dovetail.passes import reinplace
from tests.passes.programs import Builder

aten = torch.ops.aten
SVG = "{http://www.w3.org/2000/svg}"


def _halves(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x @ w)
    a, b = y.split(2)
    x.copy_(torch.cat([a + 1, b * 2]))
    return y.sum(), a


def _graph() -> Any:
    return make_fx(_halves)(torch.randn(4, 4), torch.randn(4, 4))


def _layer() -> Program:
    b = Builder("x", "unused")
    (x, _) = b.inputs
    value = x
    for number, module in enumerate(["", "layers.0", "layers.0", "layers.1"]):
        value = b.call(f"v{number}", aten.sin.default, value)
        b.nodes[-1] = Node(aten.sin.default, b.nodes[-1].args, outputs=(value,), origin=Origin("m.py", 3, "f", module))
    return b.program(value)


GOLDEN = """\
o            x_1                                                  f32[4, 4]
| o          w_1                                                  f32[4, 4]
|-'-o        mm                   aten.mm.default(x_1, w_1)       f32[4, 4]
| o-'        relu                 aten.relu.default(mm)           f32[4, 4]
| |          getitem, getitem_1   aten.split.Tensor(relu, 2)      f32[2, 4], f32[2, 4]
| |-o        add                  aten.add.Tensor(getitem, 1)     f32[2, 4]
| |-|-o      mul                  aten.mul.Tensor(getitem_1, 2)   f32[2, 4]
| | '-'-o    cat                  aten.cat.default([add, mul])    f32[4, 4]
*-|- - -'    copy_                aten.copy_.default(x_1, cat)    f32[4, 4]
o-|          sum_1                aten.sum.default(relu)          f32[]
' '          return               sum_1, getitem
"""


def test_text() -> None:
    assert draw(_graph()) == GOLDEN


def test_what_works_in_place_stays_in_its_lane() -> None:
    rows = {row.values[0].name: row for row in lay_out(_lifted(reinplace(_graph()))).rows if row.values}
    assert rows["relu"].writes == rows["mm"].makes
    assert rows["relu"].makes == ()
    assert rows["getitem"].shows == rows["mm"].makes


def _lifted(graph: Any) -> Program:
    return lift(graph).program


def test_a_result_made_in_given_memory_is_a_write() -> None:
    b = Builder("x", "y")
    x, y = b.inputs
    made = b.call("made", aten.sin.out, x, view_of=y, kwargs=(("out", y),))
    (row,) = [row for row in lay_out(b.program(made)).rows if row.node is not None]
    assert (row.makes, row.writes) == ((), row.shows)
    assert to_dot(b.program(made)).count("[style=bold]") == 1


def test_lanes_are_shared_by_what_is_not_alive_together() -> None:
    lanes = lay_out(_layer())
    assert lanes.width == 2
    for lane in range(lanes.width):
        lives = sorted((life for life in lanes.lives if life.lane == lane), key=lambda life: life.first)
        assert all(a.last < b.first for a, b in pairwise(lives))
    assert [life.last for life in lanes.lives if life.is_returned] == [len(lanes.rows) - 1]


def test_svg_has_a_row_for_each_node_and_a_band_for_each_module() -> None:
    program = _layer()
    root = ElementTree.fromstring(to_svg(program))
    rows = [group for group in root.iter(f"{SVG}g") if group.get("class") == "row"]
    assert len(rows) == len(program.nodes) + len(program.inputs) + 1
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "module"] == ["layers.0", "layers.1"]
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any("m.py:3 in f   (layers.1)" in title for title in titles)


def test_dot_has_clusters_and_bold_writes() -> None:
    assert 'label="layers.0"' in to_dot(_layer())
    graph = draw(_graph(), format="dot")
    assert graph.count("[style=bold]") == 1
    assert 'n0 [label="torch.ops.aten.mm.default\\nmm: f32[4, 4]"' in graph


@pytest.mark.parametrize("name", ['<a & "b">', "\x00\x1b", "\ud800", "]]>", "é漢😀", "-->", "\\n", ""])
def test_any_name_renders(name: str) -> None:
    b = Builder(name)
    value = b.call(name + "x", aten.sin.default, b.inputs[0])
    b.nodes[-1] = Node(aten.sin.default, b.nodes[-1].args, outputs=(value,), origin=Origin(name, 1, name, name))
    program = b.program(value)
    root = ElementTree.fromstring(to_svg(program).encode("utf-8"))
    assert sum(1 for _ in root.iter(f"{SVG}text")) >= 9
    quotes = to_dot(program).replace("\\\\", "").replace('\\"', "").count('"')
    assert quotes % 2 == 0
    assert to_text(program)


def test_an_empty_program_says_so() -> None:
    program = Builder().program()
    assert to_text(program) == "   return   nothing\n"
    assert "nothing" in to_svg(program)


def test_five_thousand_nodes() -> None:
    b = Builder("x")
    value = b.inputs[0]
    kept = []
    for number in range(5000):
        value = b.call(f"v{number}", aten.sin.default, value)
        kept += [value] if number % 50 == 0 else []
    root = ElementTree.fromstring(to_svg(b.program(value, *kept)))
    assert sum(1 for group in root.iter(f"{SVG}g")) == 5002


def test_files_and_formats(tmp_path: Path) -> None:
    graph = _graph()
    for suffix, start in ((".svg", "<svg"), (".txt", "o "), (".dot", "digraph")):
        made = draw(graph, to=tmp_path / f"program{suffix}")
        assert made.startswith(start)
        assert (tmp_path / f"program{suffix}").read_text(encoding="utf-8") == made
    for options in ({"to": tmp_path / "program.png"}, {"format": "png"}):
        with pytest.raises(ValueError, match="svg"):
            draw(graph, **options)
