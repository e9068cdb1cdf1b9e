"""Forged dumps whose programs have subgraphs: each damage is refused when it is read, and nothing of the file runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

import dovetail
from dovetail.artifact.limits import MAX_SUBGRAPH_DEPTH
from dovetail.artifact.program_json import program_from_json
from dovetail.errors import BadArtifact, RefusedOperands
from dovetail.inspect.dump_folder import read_dump
from dovetail.ops import interpret
from dovetail.ops.preconditions import checked

pytestmark = pytest.mark.filterwarnings("ignore")

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    x = torch.randn(3, 4)
    dovetail.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,)), dump=folder)(x)
    return folder


@pytest.fixture(scope="module")
def honest(dump: Path) -> dict[str, Any]:
    return json.loads(next(dump.rglob("*-functional.json")).read_text())["program"]  # type: ignore[no-any-return]


def _cond(program: dict[str, Any]) -> dict[str, Any]:
    (node,) = [node for node in program["nodes"] if "subgraphs" in node]
    return node


def _inner(program: dict[str, Any]) -> dict[str, Any]:
    return _cond(program)["subgraphs"][0]  # type: ignore[no-any-return]


def _call(program: dict[str, Any]) -> dict[str, Any]:
    return _inner(program)["nodes"][0]  # type: ignore[no-any-return]


def _read(program: dict[str, Any]) -> Any:
    return program_from_json(program, believe_descriptions=True, may_be_step=True)


def _nested(depth: int) -> Edit:
    def edit(program: dict[str, Any]) -> None:
        whole = copy.deepcopy(_cond(program))
        node = _cond(program)
        for _ in range(depth):
            deeper = copy.deepcopy(whole)
            inner = node["subgraphs"][0]
            name = inner["inputs"][0]
            flag = {"name": "flag", **{k: v for k, v in inner["values"][0].items() if k != "name"}}
            inner["values"].insert(1, {**flag, "name": "flag"})
            result = next(value for value in inner["values"] if value["name"] not in (name, "flag"))["name"]
            gt = {**inner["nodes"][0], "target": "torch.ops.aten.gt.Scalar", "args": [{"value": name}, 0]}
            deeper |= {"args": [{"value": "flag"}, {"tuple": [{"value": name}]}], "outputs": [result]}
            deeper |= {"origin": 0, "unpack": True}
            inner["nodes"] = [{**gt, "outputs": ["flag"]}, deeper]
            node = deeper

    return edit


EDITS: dict[str, tuple[Edit, str]] = {
    "Python": (lambda p: _call(p).update(target="os.system"), "not an operator that a file can name"),
    "an attribute of torch": (lambda p: _call(p).update(target="torch.load"), "not an operator that a file can name"),
    "a dunder": (lambda p: _call(p).update(target="torch.ops.aten.__class__.x"), "not an operator"),
    "another package's": (lambda p: _call(p).update(target="torch.ops.mine.run.default"), "allow="),
    "a name that is code": (
        lambda p: _inner(p)["values"][0].update(name="x); print(1"),
        "is not a name|KeyError",
    ),
    "a keyword": (lambda p: _call(p)["kwargs"].update({"x=1,y": 1}), "is not a name"),
    "an origin of two lines": (
        lambda p: _inner(p)["origins"].__setitem__(0, ["a\nimport os", 1, "", ""]),
        "not a single line",
    ),
    "another operator over subgraphs": (
        lambda p: _cond(p).update(target="torch.ops.higher_order.wrap"),
        "not an operator over subgraphs that a file can name",
    ),
    "an attribute of it": (
        lambda p: _cond(p).update(target="torch.ops.higher_order.cond.__class__"),
        "not an operator over subgraphs that a file can name",
    ),
    "a loop of branches": (
        lambda p: _cond(p).update(target="torch.ops.higher_order.while_loop"),
        "not in a tuple or a list|called with",
    ),
    "one branch": (lambda p: _cond(p)["subgraphs"].pop(), "called with 2 operands and 1 subgraphs"),
    "three branches": (lambda p: _cond(p)["subgraphs"].append(_inner(p)), "called with 2 operands and 3 subgraphs"),
    "many branches": (lambda p: _cond(p)["subgraphs"].extend([_inner(p)] * 50), "at most 4 are read"),
    "branches that are no programs": (lambda p: _cond(p).update(subgraphs=["x", 1]), "a subgraph is a program"),
    "a branch of a later version": (lambda p: _inner(p).update(version=2), "a subgraph is a program of this version"),
    "branches of an operator that has none": (
        lambda p: p["nodes"][0].update(subgraphs=copy.deepcopy(_cond(p)["subgraphs"])),
        "not written as dovetail writes it",
    ),
    "branches that take more": (
        lambda p: _cond(p)["args"].__setitem__(1, {"tuple": []}),
        "takes other operands than it is handed",
    ),
    "branches that give other things": (
        lambda p: _inner(p)["outputs"].__setitem__(0, 1),
        "the branches of cond give different results",
    ),
    "a text for a condition": (lambda p: _cond(p)["args"].__setitem__(0, "yes"), "neither a value nor a number"),
    "a long number for a condition": (lambda p: _cond(p)["args"].__setitem__(0, 1 << 99), "too large for a program"),
    "a result more": (lambda p: _cond(p)["outputs"].append(None), "does not give what its subgraph gives"),
    "a result that is not unpacked": (lambda p: _cond(p).update(unpack=False), "does not give what its subgraph gives"),
    "a stage": (lambda p: _inner(p).update(stage="functional"), "a plain function of its operands"),
    "roles": (
        lambda p: _inner(p)["signature"]["inputs"].__setitem__(0, {"role": "Constant", "name": "x"}),
        "a plain function of its operands",
    ),
    "a value of the program around": (
        lambda p: _call(p)["args"].__setitem__(0, {"value": _cond(p)["args"][0]["value"]}),
        "KeyError|read before it is computed",
    ),
    "more than it was": (lambda p: _inner(p).update(more=1), "not written as dovetail writes it"),
    "too deep": (_nested(MAX_SUBGRAPH_DEPTH + 1), "levels of subgraphs"),
    "far too deep": (_nested(60), "nested|levels of subgraphs"),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_damage_is_refused(what: str, honest: dict[str, Any]) -> None:
    edit, message = EDITS[what]
    program = copy.deepcopy(honest)
    edit(program)
    with pytest.raises(ValueError, match=message):
        _read(program)


def test_the_readers_of_dumps_refuse_it_by_name(dump: Path, honest: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "000-one"
    folder.mkdir()
    facts = json.loads(next(dump.rglob("*-functional.json")).read_text())
    for edit, _ in EDITS.values():
        program = copy.deepcopy(honest)
        edit(program)
        (folder / "000-recorded.json").write_text(json.dumps({**facts, "program": program}))
        with pytest.raises(BadArtifact):
            read_dump(tmp_path)


def test_honest_depths_are_read(honest: dict[str, Any]) -> None:
    program = copy.deepcopy(honest)
    _nested(2)(program)
    assert _read(program)


def test_what_is_loaded_has_no_subgraphs(honest: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="calls subgraphs, which only dumps may hold"):
        program_from_json(honest)


def test_a_tensor_of_numbers_is_for_subgraphs(honest: dict[str, Any]) -> None:
    program = copy.deepcopy(honest)
    node = {**program["nodes"][0], "target": "prims.TENSOR_OF", "args": [[1.0], [1], {"dtype": "float32"}]}
    program["nodes"][0] = node
    with pytest.raises(ValueError, match="called outside subgraphs"):
        _read(program)


def test_a_loop_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpret, "MAX_TURNS", 50)
    function = lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * i), (0, x))[1]  # noqa: E731
    dovetail.compile(function, dump=tmp_path)(torch.ones(2))
    program = json.loads(next(tmp_path.rglob("*-functional.json")).read_text())["program"]
    (node,) = [node for node in program["nodes"] if "subgraphs" in node]
    operands = [[0, torch.ones(2)][place] for place in range(2)]
    body = node["subgraphs"][1]
    for output, message in ((0, "more than 50 times"), ({"size": ["mul", ["add", 1, 1]]}, "more than 50 times")):
        body["outputs"][0] = output
        run = _read(program).nodes[program["nodes"].index(node)].target
        with pytest.raises(RuntimeError, match=message):
            run(*operands[-1:])
    number = body["values"][0]["scalar"]
    body["outputs"][0] = {"size": ["add", -1, ["mul", -2, ["pow", number, 3]]]}
    node["subgraphs"][0]["outputs"][0] = True
    run = _read(program).nodes[program["nodes"].index(node)].target
    with pytest.raises(OverflowError, match="bits leaves a subgraph"):
        run(*operands[-1:])


def test_lists_of_copies_are_checked() -> None:
    copies = checked(torch.ops.aten._foreach_copy.default)
    assert copies is not None
    x = torch.ones(2)
    with pytest.raises(RefusedOperands, match="longer"):
        copies([], [x])
    assert torch.equal(copies([x * 2], [x])[0], x)
