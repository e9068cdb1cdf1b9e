"""Drawings of programs: what they say, and that any label renders."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.analysis.one_run import whole_step
from dovetail.cli.app import main
from dovetail.errors import BadOptionValue
from dovetail.inspect.collapse import Part, collapse, whole
from dovetail.inspect.draw import draw, to_dot, to_text
from dovetail.inspect.draw_svg import to_svg
from dovetail.inspect.lanes import lay_out
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Node, Origin, Program, Value
from dovetail.passes import reinplace
from dovetail.pipeline.compile_trace import CompileTrace
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
    assert to_dot(whole(b.program(made))).count("[style=bold]") == 1


def test_lanes_are_shared_by_what_is_not_alive_together() -> None:
    lanes = lay_out(_layer())
    assert lanes.width == 2
    for lane in range(lanes.width):
        lives = sorted((life for life in lanes.lives if life.lane == lane), key=lambda life: life.first)
        assert all(a.last < b.first for a, b in pairwise(lives))
    assert [life.last for life in lanes.lives if life.is_returned] == [len(lanes.rows) - 1]


def test_svg_has_a_row_for_each_node_and_a_band_for_each_module() -> None:
    program = _layer()
    root = ElementTree.fromstring(to_svg(whole(program)))
    rows = [group for group in root.iter(f"{SVG}g") if group.get("class") == "row"]
    assert len(rows) == len(program.nodes) + len(program.inputs) + 1
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "module"] == ["layers.0", "layers.1"]
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any("m.py:3 in f   (layers.1)" in title for title in titles)


def test_dot_has_clusters_and_bold_writes() -> None:
    assert 'label="layers.0"' in to_dot(whole(_layer()))
    graph = draw(_graph(), format="dot")
    assert graph.count("[style=bold]") == 1
    assert 'n0 [label="torch.ops.aten.mm.default\\nmm: f32[4, 4]"' in graph


@pytest.mark.parametrize("name", ['<a & "b">', "\x00\x1b", "\ud800", "]]>", "é漢😀", "-->", "\\n", ""])
def test_any_name_renders(name: str) -> None:
    b = Builder(name)
    value = b.call(name + "x", aten.sin.default, b.inputs[0])
    b.nodes[-1] = Node(aten.sin.default, b.nodes[-1].args, outputs=(value,), origin=Origin(name, 1, name, name))
    program = b.program(value)
    root = ElementTree.fromstring(to_svg(whole(program)).encode("utf-8"))
    assert sum(1 for _ in root.iter(f"{SVG}text")) >= 9
    quotes = to_dot(whole(program)).replace("\\\\", "").replace('\\"', "").count('"')
    assert quotes % 2 == 0
    assert to_text(whole(program))


def test_an_empty_program_says_so() -> None:
    program = Builder().program()
    assert to_text(whole(program)) == "   return   nothing\n"
    assert "nothing" in to_svg(whole(program))


def test_five_thousand_nodes() -> None:
    b = Builder("x")
    value = b.inputs[0]
    kept = []
    for number in range(5000):
        value = b.call(f"v{number}", aten.sin.default, value)
        kept += [value] if number % 50 == 0 else []
    root = ElementTree.fromstring(to_svg(whole(b.program(value, *kept))))
    assert sum(1 for group in root.iter(f"{SVG}g")) == 5002


def test_lanes_are_as_wide_as_the_logarithm_of_their_bytes() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (x.sin() + y.cos()[:10].sum()).sum() + z

    inputs = (torch.ones(10), torch.ones(1000), torch.ones(100_000))
    svg = draw(make_fx(f)(*inputs), format="svg")
    widths: dict[str, float] = {}
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        title = path.find(f"{SVG}title")
        if title is not None and title.text:
            widths[title.text.partition(", ")[2]] = float(path.get("stroke-width") or 0)
    sizes = {"4 B": 4, "40 B": 40, "4,000 B": 4000, "400.0 kB": 400_000}
    assert widths["4 B"] == 2
    assert widths["400.0 kB"] == 14
    for text, size in sizes.items():
        assert widths[text] == pytest.approx(2 + 12 * math.log(size / 4) / math.log(100_000), abs=0.06)
    assert "lane width: logarithm of bytes, 4 B is thinnest, 400.0 kB widest" in svg


def test_labels_stand_on_the_left_and_are_cut_to_their_columns() -> None:
    b = Builder("x")
    names = [f"{'n' * 200}{number}" for number in range(40)]
    values = [b.call(name, aten.sin.default, b.inputs[0]) for name in names]
    b.nodes[:] = [replace(node, origin=Origin("m.py", 1, "f", "a." * 100 + "b")) for node in b.nodes]
    root = ElementTree.fromstring(to_svg(whole(b.program(*values))))
    lanes = [float((path.get("d") or "M0")[1:].split()[0]) for path in root.iter(f"{SVG}path")]
    for text in root.iter(f"{SVG}text"):
        if text.get("class") != "scale":
            assert float(text.get("x") or 0) + 7.3 * len(text.text or "") <= min(lanes)
    titles = {title.text for title in root.iter(f"{SVG}title")}
    assert all(any(name in (title or "") for title in titles) for name in names)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        """A residual layer."""
        out: Tensor = x + self.mlp(x)
        return out


def _net_program(blocks: int) -> Program:
    net = nn.Sequential(nn.Linear(8, 8), *(_Block() for _ in range(blocks)))
    trace = CompileTrace()
    dovetail.compile(net).with_options(compile_trace=trace).prepare(torch.ones(4, 8))
    halves = [trace.lowerings[0].half(which) for which in ("forward", "backward")]
    assert halves[0] is not None
    assert halves[1] is not None
    return whole_step(halves[0], halves[1])


def test_modules_are_rows() -> None:
    program = _net_program(3)
    drawn = collapse(program, 1)
    parts = [node.target for node in drawn.program.nodes if isinstance(node.target, Part)]
    assert len(parts) == len(drawn.program.nodes)
    assert sum(part.nodes for part in parts) == len(program.nodes)
    assert [part.label for part in parts if part.nodes > 1][:2] == ["0", "1-3"]
    deeper = collapse(program, 2)
    labels = [node.target.label for node in deeper.program.nodes if isinstance(node.target, Part)]
    assert labels.count("1-3.mlp") >= 3
    assert sum(node.target.nodes for node in deeper.program.nodes if isinstance(node.target, Part)) == len(
        program.nodes
    )


@pytest.mark.parametrize("level", [1, 2, 3, 9])
def test_a_row_shows_every_storage_that_outlives_it(level: int) -> None:
    program = _net_program(3)
    drawn, everything = collapse(program, level), whole(program)
    inside = sum(node.target.inside_bytes for node in drawn.program.nodes if isinstance(node.target, Part))
    assert sum(drawn.sizes.values()) + inside == sum(everything.sizes.values())
    known = set(drawn.program.inputs)
    for node in drawn.program.nodes:
        assert set(node.operands()) <= known
        known |= set(node.results())
    returned = {value.tensor.storage for value in drawn.program.outputs if isinstance(value, Value)}
    assert sum(drawn.counts[storage] for storage in returned) == len(program.output_storages())
    for form in ("svg", "text", "dot"):
        assert draw(program, format=form, level=level)


def test_repeated_layers_take_as_much_room_as_one() -> None:
    few, many = (draw(_net_program(count), level=1).splitlines() for count in (2, 6))
    assert len(few) == len(many)


def test_five_thousand_nodes_as_modules() -> None:
    b = Builder("x")
    value = b.inputs[0]
    for number in range(5000):
        value = b.call(f"v{number}", aten.sin.default, value)
    b.nodes[:] = [
        replace(node, origin=Origin("m.py", 1, "f", f"layers.{at // 50}.{'ab'[at % 50 // 25]}"))
        for at, node in enumerate(b.nodes)
    ]
    drawn = collapse(b.program(value), 1)
    assert [str(part.label) for node in drawn.program.nodes if isinstance(part := node.target, Part)] == ["layers.*"]
    assert len(collapse(b.program(value), 2).program.nodes) == 200


@pytest.mark.parametrize("level", [0, -1, True, 1.5, "2"])
def test_a_level_that_is_none(level: Any) -> None:
    with pytest.raises(BadOptionValue, match="level"):
        draw(_graph(), level=level)


def test_files_and_formats(tmp_path: Path) -> None:
    graph = _graph()
    for suffix, start in ((".svg", "<svg"), (".txt", "o "), (".dot", "digraph")):
        made = draw(graph, to=tmp_path / f"program{suffix}")
        assert made.startswith(start)
        assert (tmp_path / f"program{suffix}").read_text(encoding="utf-8") == made
    for options in ({"to": tmp_path / "program.png"}, {"format": "png"}):
        with pytest.raises(ValueError, match="svg"):
            draw(graph, **options)


def test_the_command_draws_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(*(_Block() for _ in range(3)))
    dovetail.compile(net, (torch.ones(4, 8),), dump=str(tmp_path / "dump"))

    def run(*options: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["draw", str(tmp_path / "dump"), *map(str, options)])
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    status, whole_text = run()
    assert status == 0
    status, text = run("--level", 1)
    assert status == 0
    assert len(text.splitlines()) < len(whole_text.splitlines()) / 3
    assert "nodes" in text
    assert run("--level", 0)[0] == 2
    assert run("--level", 1, "--to", tmp_path / "net.svg")[0] == 0
    assert "nodes" in (tmp_path / "net-Sequential_forward.svg").read_text(encoding="utf-8")
