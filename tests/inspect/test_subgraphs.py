"""Programs with control flow in dumps: written, read, run again, searched, and made small."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import dovetail
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.errors import NotSerializable
from dovetail.inspect.bisect import bisect
from dovetail.inspect.draw import draw
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.minify import minify
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.minify_oracles import Failure, FailureKind
from dovetail.inspect.minify_script import _text
from dovetail.inspect.replay import replay
from dovetail.ir.program import Program
from dovetail.ir.sub_programs import WithSubPrograms, with_inner_nodes
from tests.rotation import rotated

# torch's own imports and traces, made when a loop's subgraph is first taken apart, warn by themselves.
pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore")]

aten = torch.ops.aten


def _chosen(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,)).exp()


def _drawn(x: Tensor) -> Any:
    return torch.cond(x.sum() > -99, lambda x: x * torch.rand(3), lambda x: x.sin(), (x,)) + torch.rand(3)


def _sized(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.view(-1) * x.shape[0], lambda x: x.reshape(-1) + x.shape[1], (x,))


def _part(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x * 1, (x[1:],))


def _mapped(x: Tensor) -> Any:
    return map_over(lambda row, y: (row * y).sin(), x, x[0].clone())


def _scanned(x: Tensor) -> Any:
    return scan(lambda c, row: (c * row, c + row), x[0].clone(), x)


def _nested(x: Tensor) -> Any:
    def step(c: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cond(row.sum() > 0, lambda c, r: c * r, lambda c, r: c - r, (c, row)), c + row

    return scan(step, x[0].clone(), x)


def _looped(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1 + i), (torch.zeros((), dtype=torch.int64), x))


def _counted(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 2, x * 1.1 + i), (0, x))[1]


def _from_a_size(x: Tensor) -> Any:
    return while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x + i * x.shape[0]), (x.shape[0], x))[1]


def _with_a_tensor(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + torch.tensor([1.0, 2, -0.0]), lambda x: x * 2, (x,))


def _in_place(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.clone().add_(1).t_().relu_(), lambda x: (x * 2).mul_(3).t(), (x,))


def _with_a_sum_written(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.clone().add_(1).mul_(x), lambda x: torch.zeros_like(x).copy_(x), (x,))


CASES: dict[str, Callable[[Tensor], Any]] = {
    "cond": _chosen,
    "draws": _drawn,
    "sizes": _sized,
    "map": _mapped,
    "scan": _scanned,
    "nested": _nested,
}
WITHOUT_GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    "while_loop": _looped,
    "counts": _counted,
    "from a size": _from_a_size,
    "a tensor inside": _with_a_tensor,
    "written inside": _with_a_sum_written,
}


def _tensors(result: Any) -> list[Tensor]:
    return [item for item in (result if isinstance(result, tuple | list) else [result]) if isinstance(item, Tensor)]


def _x() -> Tensor:
    return torch.linspace(-1, 2, 12).reshape(4, 3)


def _compile(function: Callable[[Tensor], Any], folder: Path, **options: Any) -> Callable[[Tensor], Any]:
    return dovetail.compile(function, dump=str(folder), dump_calls=True, **options)


def _check_replay(folder: Path) -> None:
    rows = replay(folder)
    assert rows, "there is a dump"
    assert {row.verdict for row in rows} <= {"ran", "equal"}, [str(row) for row in rows]
    assert any(row.step.endswith("call") for row in rows)
    for path in folder.rglob("*.json"):
        data = json.loads(path.read_text())["program"]
        program = program_from_json(data, believe_descriptions=True, may_be_step=True)
        assert json.loads(json.dumps(program_to_json(program))) == data


@pytest.mark.parametrize(("name", "dynamic"), rotated([(name, d) for name in CASES for d in (False, True)], 5))
def test_a_dump_runs_again(name: str, dynamic: bool, tmp_path: Path) -> None:
    x = _x().requires_grad_()
    result = _compile(CASES[name], tmp_path, dynamic=dynamic)(x)
    sum(item.sum() for item in _tensors(result)).backward()  # type: ignore[union-attr]
    _check_replay(tmp_path)
    assert not any(report.differs for report in bisect(tmp_path, executors=[]))


@pytest.mark.parametrize(
    ("name", "dynamic"), rotated([(name, d) for name in WITHOUT_GRADIENTS for d in (False, True)], 5)
)
def test_a_dump_without_gradients_runs_again(name: str, dynamic: bool, tmp_path: Path) -> None:
    x = _x()
    like = WITHOUT_GRADIENTS[name](x)
    result = _compile(WITHOUT_GRADIENTS[name], tmp_path, dynamic=dynamic)(x)
    assert all(map(torch.equal, _tensors(result), _tensors(like)))
    _check_replay(tmp_path)
    assert not any(report.differs for report in bisect(tmp_path, executors=[]))


def test_through_dynamo(tmp_path: Path) -> None:
    compiled = torch.compile(
        _nested, backend=dovetail.dovetail_backend, options={"dump": str(tmp_path), "dump_calls": True}
    )
    x = _x().requires_grad_()
    sum(item.sum() for item in compiled(x)).backward()
    _check_replay(tmp_path)


class _Branches(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return _chosen(x)


def test_a_frozen_module_is_dumped_and_not_saved(tmp_path: Path) -> None:
    frozen = dovetail.freeze(_Branches().eval(), (_x(),), dump=str(tmp_path / "dump"))
    assert torch.equal(frozen(_x()), _chosen(_x()))
    assert {row.verdict for row in replay(tmp_path / "dump")} <= {"ran", "equal"}
    with pytest.raises(NotSerializable, match="cond calls subgraphs, which only dumps may hold"):
        frozen.save(tmp_path / "one.dovetail")
    assert not (tmp_path / "one.dovetail").exists()


def test_the_text_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _compile(_nested, tmp_path)(_x())
    for path in sorted(tmp_path.rglob("*-functional.py")):
        assert "def run_scan" in path.read_text()
        runpy.run_path(str(path), run_name="__main__")
    assert "(4, 3)" in capsys.readouterr().out


# --- finding a wrong operator ----------------------------------------------------------------------------------------


def _with_another(folder: Path, old: str, new: str, inside: bool, after: int) -> None:
    """Put another operator into the programs of all steps from a number on."""

    def change(nodes: list[Any], depth: int) -> None:
        for node in nodes:
            if node["target"] == old and (depth > 0) is inside:
                node["target"] = new
            for inner in node.get("subgraphs", ()):
                change(inner["nodes"], depth + 1)

    for path in folder.rglob("*.json"):
        if int(path.name[:3]) >= after:
            facts = json.loads(path.read_text())
            change(facts["program"]["nodes"], 0)
            path.write_text(json.dumps(facts))


PLANTED: list[tuple[Callable[[Tensor], Any], str, str, bool, str]] = [
    (_chosen, "sin", "cos", True, "higher_order.cond"),
    (_chosen, "exp", "sin", False, "aten.exp"),
    (_nested, "mul", "add", True, "higher_order.scan"),
    (_mapped, "sin", "cos", True, "higher_order.map_impl"),
    (_looped, "mul", "add", True, "higher_order.while_loop"),
]


@pytest.mark.parametrize(("function", "old", "new", "inside", "culprit"), rotated(PLANTED, 2))
def test_a_wrong_operator_is_found(
    function: Callable[[Tensor], Any], old: str, new: str, inside: bool, culprit: str, tmp_path: Path
) -> None:
    _compile(function, tmp_path)(_x() + 2)
    kind = {"mul": "Tensor"}.get(old, "default")
    _with_another(tmp_path, f"torch.ops.aten.{old}.{kind}", f"torch.ops.aten.{new}.{kind}", inside, 2)
    (report,) = bisect(tmp_path)
    assert report.step == "dead_code"
    assert report.culprit is not None
    assert culprit.replace("exp", new if culprit == "aten.exp" else "exp") in report.culprit.node


# --- making it small -------------------------------------------------------------------------------------------------


class _CallsSinInside:
    identity = "calls sin in a subgraph"

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        outer, every = {node.target for node in program.nodes}, {node.target for node in with_inner_nodes(program)}
        is_bad = aten.sin.default in every - outer
        return Failure(FailureKind.RAISED, "RuntimeError", "bad operator sin") if is_bad else None


def test_a_program_with_a_branch_is_made_small(tmp_path: Path) -> None:
    def function(x: Tensor) -> Any:
        y = (x * 2 + 1).tanh()
        return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,)).exp() - x

    _compile(function, tmp_path)(_x())
    path = next(tmp_path.rglob("*-functional.json"))
    program = read_source(path).program
    found = minify(program, [_x()], _CallsSinInside())
    assert [node.target.name for node in found.program.nodes] == ["cond"]  # type: ignore[attr-defined]
    again = program_from_json(program_to_json(found.program), believe_descriptions=True)
    assert program_to_json(again) == program_to_json(found.program)
    assert "torch.ops.aten.sin.default" in _text(found.program)[0]


def test_drawings_and_explanations(tmp_path: Path) -> None:
    _compile(_nested, tmp_path)(_x().requires_grad_())
    assert all("scan" in str(explanation) or explanation for explanation in explain_dump(tmp_path))
    program = read_source(next(tmp_path.rglob("*-functional.json"))).program
    assert "scan" in draw(program)


# --- what is noted of a subgraph -------------------------------------------------------------------------------------


def _told(function: Callable[[Tensor], Any], x: Tensor, **options: Any) -> list[WithSubPrograms]:
    compiled = dovetail.compile(function, **options)
    compiled(x)
    nodes = compiled.graphs[0].forward.program.nodes
    return [run for node in nodes if isinstance(run := getattr(node.target, "run", None), WithSubPrograms)]


def test_a_number_that_a_loop_carries_is_no_constant() -> None:
    (run,) = _told(_counted, _x())
    assert run.told is not None
    condition, body = (sub.program for sub in run.told)
    assert not isinstance(condition.outputs[0], bool)
    assert not isinstance(body.outputs[0], int)


def test_what_cannot_be_noted_still_runs(tmp_path: Path) -> None:
    x = _x()
    assert torch.equal(_compile(_in_place, tmp_path)(x), _in_place(x))
    rows = replay(tmp_path)
    assert {row.verdict for row in rows} == {"skipped"}
    assert all("a subgraph changes the shape of a tensor in place" in row.detail for row in rows)
