"""Forged files that once ran Python, touched files or spoiled the process: each is refused when it is read.

The checksums of every file here are right; see SECURITY.md for what a forged file can and cannot do. All the names that
no program may call are in `test_attacks_by_rule`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.artifact.container import open_container, write_container
from dovetail.artifact.json_text import json_bytes
from dovetail.artifact.program_json import program_from_json
from dovetail.errors import BadArtifact, DovetailError
from dovetail.inspect.dump_folder import read_dump
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.minify_files import read_source
from dovetail.inspect.replay import replay
from dovetail.ops import prims

PROGRAM = "programs/forward.0.json"
Edit = Callable[[dict[str, Any]], None]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * x.shape[0]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("honest") / "model.dovetail"
    dovetail.freeze(_Model().eval(), (torch.randn(3, 4),)).save(path)
    file = open_container(path)
    return {name: file.read(name) for name in file.names}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    dovetail.compile(lambda x: torch.tanh(x) * x.shape[0], dynamic=True, dump=folder)(torch.randn(3, 4))
    (one,) = [path for path in folder.iterdir() if path.is_dir()]
    return one


def _forged(folder: Path, members: dict[str, bytes], edit: Edit) -> Path:
    """A file whose program was edited, in both places where it is told."""
    changed = dict(members)
    for name in (PROGRAM, PROGRAM.replace(".json", ".unfolded.json")):
        data = json.loads(members[name])
        edit(data["program"])
        changed[name] = json_bytes(data)
    path = folder / "forged.dovetail"
    write_container(path, changed)
    return path


def _with_node(target: str, args: list[Any], outputs: list[Any] | None = None, **kwargs: Any) -> Edit:
    """Another node at the end, which makes nothing that is used."""

    def edit(program: dict[str, Any]) -> None:
        last = program["nodes"][-1]
        node = {**last, "target": target, "args": args, "kwargs": kwargs, "outputs": outputs or []}
        program["nodes"].append(node)

    return edit


def _with_number(target: str, args: list[Any]) -> Edit:
    """Another node at the end, whose result is a number."""

    def edit(program: dict[str, Any]) -> None:
        program["values"].append({"name": "made", "scalar": ["symbol", "made"]})
        _with_node(target, args, ["made"])(program)

    return edit


def _target(text: str) -> Edit:
    """Another target for the first node that has one operand."""

    def edit(program: dict[str, Any]) -> None:
        next(node for node in program["nodes"] if len(node["args"]) == 1)["target"] = text

    return edit


def _chain(program: dict[str, Any]) -> None:
    """Each number is the square of the one before; the numbers themselves are small in the file."""
    made: Any = 3
    for number in range(60):
        name = f"made_{number}"
        program["values"].append({"name": name, "scalar": ["symbol", name]})
        _with_node("operator.mul", [made, made], [name])(program)
        made = {"value": name}


_X = {"value": "arg_0"}
PYTHON = {
    "attrgetter": _with_number("operator.attrgetter", ["__class__.register_hook.__globals__"]),
    "call": _with_number("operator.call", [_X]),
    "eval": _with_number("eval", ["1"]),
    "a dunder of operator": _with_number("operator.__builtins__", ["eval"]),
    "the loader of a module": _with_number("operator.__loader__", []),
    "a class of operator": _with_number("math.__spec__.loader", []),
    "delitem": _with_node("operator.delitem", [[1], 0]),
    "text of a number": _with_number("operator.mod", ["%999999999d", 1]),
    "a long list": _with_number("operator.mul", [[0], 1 << 40]),
    "a tensor by name": _with_node("torch.load", ["/etc/passwd"]),
    "a global of torch": _with_node("torch.sym_int.__globals__", []),
    "a prim of nothing": _with_node("prims.Prim", ["x", "x", "x"]),
    "what a maker is made of": _with_node("prims.operator_text.__globals__", []),
}
FILES = [
    "torch.ops.aten.from_file.default",
    "prims.in_grad_mode(torch.ops.aten.from_file.default)",
    "prims.flat_results(torch.ops.aten.from_file.default)",
    "prims.functional_form(torch.ops.aten.from_file.default, ())",
    "prims.functional_form(torch.ops.aten.from_file.out, (4,))",
    "prims.view_scatter(torch.ops.aten.from_file.default, None)",
    "torch.ops.aten.from_file.out",
]
BOMBS = {
    "pow": _with_number("operator.pow", [9, 1 << 40]),
    "built-in pow": _with_number("pow", [9, 1 << 40]),
    "ipow": _with_number("operator.ipow", [9, 1 << 40]),
    "factorial": _with_number("math.factorial", [1 << 40]),
    "perm": _with_number("math.perm", [1 << 40]),
    "comb": _with_number("math.comb", [1 << 40, 1 << 39]),
    "shift": _with_number("operator.lshift", [1, 1 << 40]),
    "a size": _with_number("operator.add", [{"size": ["pow", 9, ["pow", 9, 9]]}, 1]),
    "a chain of powers": _chain,
}


OUT_OF_REACH = {
    "a view beyond its storage": _target("torch.ops.aten.as_strided.default"),
    "resize": _target("torch.ops.aten.resize_.default"),
    "resize as": _with_node("torch.ops.aten.resize_as_.default", [_X, _X]),
    "another storage": _with_node("torch.ops.aten.set_.source_Tensor", [_X, _X]),
    "a storage of its own": _with_node("torch.ops.aten.set_.source_Tensor_storage_offset", [_X, _X, 0, [1 << 40]]),
    "bytes of a tensor": _with_node("torch.ops.inductor.resize_storage_bytes_.default", [_X, 1 << 40]),
    "a view of inductor's": _target("torch.ops.inductor._reinterpret_tensor.default"),
    "prim": _with_node("torch.ops.prim.Print.default", [_X]),
    "profiler": _with_node("torch.ops.profiler._record_function_enter.default", ["x"]),
    "profiler, new": _with_node("torch.ops.profiler._record_function_enter_new.default", ["x"]),
    "a wrapper around inductor": _with_node("prims.flat_results(torch.ops.inductor._alloc_from_pool.default)", [_X]),
    "a library of torch's": _with_node("torch.ops.load_library", ["x.so"]),
    "a class of torch's": _with_node("torch.ops.loaded_libraries.add", ["x"]),
    "quantized": _with_node("torch.ops.quantized.linear_unpack.default", [_X]),
    "data pointer": _with_number("torch.ops.aten._data_ptr.default", [_X]),
    "a file of rng state": _with_node("prims.SET_RNG_STATE", [_X]),
    "the seed": _with_node("prims.MANUAL_SEED", [{"value": "arg_0"}]),
}


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in; it is empty afterwards."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def _refused(path: Path) -> None:
    begin = time.process_time()
    with pytest.raises(BadArtifact):
        dovetail.load(path)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("name", list(BOMBS))
def test_numbers_that_would_not_end(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    """Refused when the file is read, or before they are computed; or not computed, as nobody reads them."""
    begin = time.process_time()
    x = torch.randn(3, 4)
    honest = dovetail.load(_forged(tmp_path, members, lambda program: None))(x)
    with suppress(DovetailError):
        assert torch.equal(dovetail.load(_forged(tmp_path, members, BOMBS[name]))(x), honest)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("name", [*PYTHON, *OUT_OF_REACH])
def test_what_a_program_may_not_call(tmp_path: Path, members: dict[str, bytes], quiet: Path, name: str) -> None:
    edit = {**PYTHON, **OUT_OF_REACH}[name]
    _refused(_forged(tmp_path, members, edit))
    assert list(quiet.iterdir()) == []


@pytest.mark.parametrize("target", FILES)
def test_wrappers_hide_no_file(tmp_path: Path, members: dict[str, bytes], quiet: Path, target: str) -> None:
    _refused(_forged(tmp_path, members, _with_node(target, ["new-file", True, 16])))
    _refused(_forged(tmp_path, members, _with_node(target, ["/etc/passwd", False, 16])))
    assert list(quiet.iterdir()) == []


@pytest.mark.parametrize("name", ["attrgetter", "call", "a chain of powers", "resize", "profiler"])
def test_dumps_and_sources_of_minify_are_read_by_the_same_rules(
    tmp_path: Path, dump: Path, quiet: Path, name: str
) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    for path in dump.iterdir():
        content = path.read_bytes()
        if path.suffix == ".json":
            data = json.loads(content)
            if data.get("program", {}).get("nodes"):
                {**PYTHON, **BOMBS, **OUT_OF_REACH}[name](data["program"])
            content = json.dumps(data).encode()
        (folder / path.name).write_bytes(content)
    for read in (read_dump, replay, read_source):
        with pytest.raises(DovetailError):
            read(folder)
    step = folder / "000-recorded.json"
    for read in (replay, read_source):
        with pytest.raises(DovetailError):
            read(step)
    with pytest.raises(ValueError, match=r"\w"):
        program_from_json(json.loads(step.read_bytes())["program"])
    assert list(quiet.iterdir()) == []


def _lie(place: str, value: Any) -> Edit:
    """What is said of the last result is another thing than its operator makes."""

    def edit(program: dict[str, Any]) -> None:
        name = program["nodes"][0]["outputs"][0]
        next(entry for entry in program["values"] if entry["name"] == name)[place] = value

    return edit


LIES = {
    "rank": lambda program: (_lie("shape", [4])(program), _lie("stride", [1])(program)),
    "a number": _lie("scalar", 1),
}


@pytest.mark.parametrize("name", list(LIES))
def test_a_description_that_lies_is_refused(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    with pytest.raises(DovetailError):
        dovetail.load(_forged(tmp_path, members, LIES[name]))


def test_a_file_does_not_spoil_later_compilations(tmp_path: Path, members: dict[str, bytes]) -> None:
    """Makers of primitives are told apart by equality: 0.0 and False equal 0."""
    for text in (
        "prims.functional_form(torch.ops.aten.lerp_.Scalar, (0.0,))",
        "prims.functional_form(torch.ops.aten.lerp_.Scalar, (False,))",
        "prims.functional_form(torch.ops.aten.lerp_.Scalar, [0])",
        "prims.functional_form(torch.ops.aten.lerp_.Scalar, (-3,))",
        "prims.view_scatter(torch.ops.aten.unfold.default, False)",
        "prims.view_scatter(torch.ops.aten.unfold.default, 0.0)",
        "prims.view_scatter(torch.ops.aten.unfold.default, 'x')",
    ):
        with pytest.raises(BadArtifact):
            dovetail.load(_forged(tmp_path, members, _target(text)))
    form = prims.functional_form(torch.ops.aten.lerp_.Scalar, (0,))
    assert form.python == "prims.functional_form(torch.ops.aten.lerp_.Scalar, (0,))"
    assert [type(place) for place in form.run.writes] == [int]  # type: ignore[attr-defined]
    scatter = prims.view_scatter(torch.ops.aten.unfold.default, 0)
    assert scatter.python == "prims.view_scatter(torch.ops.aten.unfold.default, 0)"


def test_a_plan_that_takes_other_arguments_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    data = json.loads(members[PROGRAM])
    extra = {"rule": "FlatBytes", "leader": 0, "dtype": "float32", "length": 12, "back": 0}
    data["plan"]["plan"]["extras"].append(extra)
    data["plan"]["plan"]["extras_at"] = len(data["program"]["inputs"]) - 1
    write_container(tmp_path / "forged.dovetail", {**members, PROGRAM: json_bytes(data)})
    with pytest.raises(DovetailError, match="its plan takes others"):
        dovetail.load(tmp_path / "forged.dovetail")


class _Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) * y


@pytest.mark.parametrize("name", ["arguments", "held"])
def test_one_tensor_for_two_inputs_is_refused(name: str, tmp_path: Path, members: dict[str, bytes]) -> None:
    path = tmp_path / "honest.dovetail"
    if name == "arguments":
        dovetail.freeze(_Sum(), (torch.randn(3), torch.randn(3))).save(path)
    else:
        write_container(path, members)
    file = open_container(path)
    data = json.loads(file.read("frozen.json"))
    places = data["methods"]["forward"]["variants"][0][name]
    places[1] = places[0]
    changed = {member: file.read(member) for member in file.names}
    write_container(tmp_path / "forged.dovetail", {**changed, "frozen.json": json_bytes(data)})
    with pytest.raises(
        BadArtifact, match="for two of its inputs" if name == "arguments" else "two of its inputs|is not what"
    ):
        dovetail.load(tmp_path / "forged.dovetail")


def test_a_weight_of_symbolic_strides_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    unfolded = PROGRAM.replace(".json", ".unfolded.json")
    data = json.loads(members[unfolded])
    weight = next(value for value in data["program"]["values"] if value["name"] == data["program"]["inputs"][-1])
    weight["stride"][0] = ["symbol", "s99"]
    write_container(tmp_path / "forged.dovetail", {**members, unfolded: json_bytes(data)})
    with pytest.raises(DovetailError, match="is not a weight of the file"):
        dovetail.load(tmp_path / "forged.dovetail").swap_weights(_Model().state_dict())


def test_a_size_that_nothing_gives_a_number_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    def edit(program: dict[str, Any]) -> None:
        value = next(value for value in program["values"] if value["name"] == program["nodes"][0]["outputs"][0])
        value["shape"][0] = ["symbol", "s99"]

    with pytest.raises(BadArtifact, match="which nothing gives a number"):
        dovetail.load(_forged(tmp_path, members, edit))


def _of_cuda(data: dict[str, Any]) -> None:
    for value in data["program"]["values"]:
        value["device"] = "cuda"


def _flag(data: dict[str, Any]) -> None:
    data["plan"]["plan"]["flags"].append({"rule": "GradientFlag", "input": 2, "requires_grad": True, "before": False})


@pytest.mark.parametrize("edit", [_of_cuda, _flag])
def test_what_is_read_when_weights_are_swapped(tmp_path: Path, members: dict[str, bytes], edit: Edit) -> None:
    name = PROGRAM.replace(".json", ".unfolded.json")
    data = json.loads(members[name])
    edit(data)
    write_container(tmp_path / "forged.dovetail", {**members, name: json_bytes(data)})
    model = dovetail.load(tmp_path / "forged.dovetail")
    with pytest.raises(DovetailError, match=r"no CUDA|which is not state"):
        model.swap_weights(_Model().state_dict())


@pytest.mark.parametrize("place", [("methods", "forward", "leaves"), ("methods", "forward", "signature"),
                                   ("methods", "forward", "signature", 0, "default"),
                                   ("methods", "forward", "variants", 0, "arguments"),
                                   ("methods", "forward", "variants", 0, "facts"),
                                   ("methods", "forward", "variants", 0, "written")], ids=itemgetter(-1))  # fmt: skip
@pytest.mark.parametrize("given", [{"float": "nan"}, "abc", 3], ids=["object", "text", "number"])
def test_what_is_a_list_is_only_a_list(
    tmp_path: Path, members: dict[str, bytes], place: tuple[Any, ...], given: Any
) -> None:
    """Keys of an object and letters of a text are items, too."""
    data = json.loads(members["frozen.json"])
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    assert isinstance(holder[place[-1]], list)
    holder[place[-1]] = given
    write_container(tmp_path / "forged.dovetail", {**members, "frozen.json": json_bytes(data)})
    with pytest.raises(BadArtifact, match="is not a list"):
        dovetail.load(tmp_path / "forged.dovetail")


@pytest.mark.parametrize("given", [0, "00", [0], [[0]], [[0, 0]], [[1, 0]], [[0, 1, 2]], [[True, False]], {"a": 1}])
def test_a_tensor_that_is_said_to_be_another_one(tmp_path: Path, members: dict[str, bytes], given: Any) -> None:
    data = json.loads(members["frozen.json"])
    data["methods"]["forward"]["variants"][0]["same"] = given
    write_container(tmp_path / "forged.dovetail", {**members, "frozen.json": json_bytes(data)})
    with pytest.raises(BadArtifact):
        dovetail.load(tmp_path / "forged.dovetail")


def test_more_than_one_default(tmp_path: Path, members: dict[str, bytes]) -> None:
    data = json.loads(members["frozen.json"])
    data["methods"]["forward"]["signature"][0]["default"] = [1, 2]
    write_container(tmp_path / "forged.dovetail", {**members, "frozen.json": json_bytes(data)})
    with pytest.raises(BadArtifact, match="more than one default"):
        dovetail.load(tmp_path / "forged.dovetail")


@pytest.mark.parametrize(
    ("place", "size"),
    [("shape", 1 << 40), ("stride", (1 << 62) - 1), ("offset", 1 << 50), ("dtype", "uint4")],
)
def test_random_inputs_that_cannot_be_made(dump: Path, tmp_path: Path, place: str, size: Any) -> None:
    data = json.loads((dump / "000-recorded.json").read_bytes())
    entry = data["program"]["values"][0]
    entry[place] = [size, *entry[place][1:]] if isinstance(entry[place], list) else size
    (tmp_path / "step.json").write_bytes(json_bytes(data))
    with pytest.raises(DovetailError, match="no inputs can be created"):
        replay(tmp_path / "step.json")


@pytest.mark.parametrize("name", ["bessel_j1", "exp", "neg"])
def test_a_description_of_a_primitive_of_torch_that_lies_is_refused(
    tmp_path: Path, members: dict[str, bytes], name: str
) -> None:
    def edit(program: dict[str, Any]) -> None:
        program["nodes"][0]["target"] = f"torch.ops.prims.{name}.default"
        program["nodes"][0]["args"] = [{"value": program["inputs"][0]}]
        _lie("shape", [4])(program)
        _lie("stride", [1])(program)

    with pytest.raises(BadArtifact, match="is described as"):
        dovetail.load(_forged(tmp_path, members, edit))


@pytest.mark.parametrize("edit", [_lie("dtype", "float32"), _lie("shape", [3]), _lie("dtype", "quint8")])
def test_a_description_of_what_depends_on_data_that_lies_is_refused(
    tmp_path: Path, members: dict[str, bytes], edit: Edit
) -> None:
    """Sizes that only data tells are not known, but dtypes and ranks are."""

    def forge(program: dict[str, Any]) -> None:
        program["nodes"][0]["target"] = "torch.ops.aten.nonzero.default"
        program["nodes"][0]["args"] = [{"value": program["inputs"][0]}]
        _lie("dtype", "int64")(program)
        _lie("shape", [5, 2])(program)
        _lie("stride", [1, 5])(program)
        edit(program)

    with pytest.raises(BadArtifact):
        dovetail.load(_forged(tmp_path, members, forge))


def test_the_name_of_a_field_that_is_not_equal_to_itself(tmp_path: Path, members: dict[str, bytes]) -> None:
    data = json.loads(members["frozen.json"])
    leaf = {"kind": "leaf"}
    results = {"kind": "dict", "keys": [{"float": "nan"}], "children": [leaf]}
    data["methods"]["forward"]["variants"][0]["results"] = results
    write_container(tmp_path / "forged.dovetail", {**members, "frozen.json": json_bytes(data)})
    with pytest.raises(BadArtifact, match="not equal to itself"):
        dovetail.load(tmp_path / "forged.dovetail")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("forward_call_in", 1 << 63),
        ("nodes", "many"),
        ("comparable", 1),
        ("compilation", ["x"]),
        ("hints", {"s0": "2"}),
        ("step", {"name": 3}),
        ("step", {"name": "x", "nodes_before": "1"}),
        ("step", []),
    ],
)
@pytest.mark.parametrize("read", [read_dump, replay, read_source, explain_dump])
def test_what_a_dump_says_of_a_step(dump: Path, tmp_path: Path, name: str, given: Any, read: Any) -> None:
    """It is refused, or of no consequence."""
    folder = tmp_path / dump.name
    shutil.copytree(dump, folder)
    for path in folder.glob("0*.json"):
        data = json.loads(path.read_bytes())
        data[name] = given
        path.write_bytes(json_bytes(data))
    with suppress(DovetailError):
        read(folder)


@pytest.mark.parametrize("size", [["mod", ["symbol", "s0"], 0], ["truediv", 1, ["add", ["symbol", "s0"], -2]]])
def test_random_inputs_without_a_size(dump: Path, tmp_path: Path, size: Any) -> None:
    data = json.loads((dump / "000-recorded.json").read_bytes())
    data["program"]["values"][0]["shape"][0] = size
    (tmp_path / "step.json").write_bytes(json_bytes(data))
    with pytest.raises(DovetailError):
        replay(tmp_path / "step.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_random_inputs_on_a_device_that_is_not_there(dump: Path, tmp_path: Path) -> None:
    data = json.loads((dump / "000-recorded.json").read_bytes())
    for value in data["program"]["values"]:
        value["device"] = "cuda"
    (tmp_path / "step.json").write_bytes(json_bytes(data))
    with pytest.raises(DovetailError, match="no inputs can be created"):
        replay(tmp_path / "step.json")


@pytest.mark.parametrize("dim", [{"size": ["where", True, 1, 2]}, 1.0, [1]])
def test_a_dimension_is_a_number_that_is_known_beforehand(tmp_path: Path, members: dict[str, bytes], dim: Any) -> None:
    def edit(program: dict[str, Any]) -> None:
        first = program["nodes"][0]
        first["target"], first["args"] = "torch.ops.aten.cumsum.default", [{"value": program["inputs"][0]}, dim]

    with pytest.raises(BadArtifact, match="operand 'dim' of"):
        dovetail.load(_forged(tmp_path, members, edit))


def test_a_device_that_is_named_is_that_of_the_result(tmp_path: Path, members: dict[str, bytes]) -> None:
    def edit(program: dict[str, Any]) -> None:
        first = program["nodes"][0]
        first["target"], first["args"] = "torch.ops.aten.zeros_like.default", first["args"][:1]
        first["kwargs"] = {"device": {"device": "cuda"}}

    with pytest.raises(BadArtifact, match="is described on the device cpu"):
        dovetail.load(_forged(tmp_path, members, edit))


def test_a_result_that_cannot_require_gradients(tmp_path: Path, members: dict[str, bytes]) -> None:
    data = json.loads(members[PROGRAM])
    program = data["program"]
    first = program["nodes"][0]
    first["target"], first["args"], first["kwargs"] = "torch.ops.aten.isnan.default", first["args"][:1], {}
    entry = next(value for value in program["values"] if value["name"] == first["outputs"][0])
    given = next(value for value in program["values"] if value["name"] == first["args"][0]["value"])
    entry.update({**given, "name": entry["name"], "storage": entry["storage"], "dtype": "bool"})
    program["nodes"][1:] = []
    program["outputs"] = [{"value": entry["name"]}]
    named = {*program["inputs"], entry["name"]}
    program["values"] = [value for value in program["values"] if value["name"] in named]
    program["origins"] = program["origins"][:1]
    data["plan"]["plan"]["outputs"] = [{"rule": "AsLeaf", "of": {"rule": "FromSlot", "slot": 0}}]
    write_container(tmp_path / "forged.dovetail", {**members, PROGRAM: json_bytes(data)})
    with pytest.raises(BadArtifact, match="cannot require gradients"):
        dovetail.load(tmp_path / "forged.dovetail")


@pytest.mark.parametrize("name", ["unsqueeze_", "squeeze_", "t_", "transpose_", "as_strided_"])
def test_a_node_that_changes_the_shape_of_its_operand(dump: Path, tmp_path: Path, name: str) -> None:
    data = json.loads((dump / "000-recorded.json").read_bytes())
    node = data["program"]["nodes"][0]
    more = {"unsqueeze_": [0], "transpose_": [0, 1], "as_strided_": [[3], [1]]}.get(name, [])
    made = {**node, "target": f"torch.ops.aten.{name}.default", "kwargs": {}, "outputs": [None]}
    made["args"] = [{"value": data["program"]["inputs"][0]}, *more]
    data["program"]["nodes"].append(made)
    (tmp_path / "step.json").write_bytes(json_bytes(data))
    with pytest.raises(DovetailError, match="changes the shape of its operand"):
        replay(tmp_path / "step.json")


def test_the_cpu_has_no_number(tmp_path: Path, members: dict[str, bytes]) -> None:
    def edit(program: dict[str, Any]) -> None:
        program["values"][0]["device"] = "cpu:0"

    with pytest.raises(BadArtifact, match="no device number"):
        dovetail.load(_forged(tmp_path, members, edit))


def test_a_model_that_names_the_cpu_by_number_is_saved(tmp_path: Path) -> None:
    class Moves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to("cpu:0") + torch.ones(3, device="cpu:0")

    frozen = dovetail.freeze(Moves(), (torch.zeros(2, 3),))
    frozen.save(tmp_path / "moves.dovetail")
    assert torch.equal(dovetail.load(tmp_path / "moves.dovetail")(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def _packs(weight: int, result: int) -> Edit:
    """All that the program does is to pack an input. result: which value it returns: an input, or else the last one."""

    def edit(program: dict[str, Any]) -> None:
        first, inputs = program["nodes"][0], program["inputs"]
        first["target"], first["kwargs"] = "prims.PACK_LINEAR", {}
        first["args"] = [{"value": inputs[weight]}, None]
        described = {value["name"]: value for value in program["values"]}
        made = described[first["outputs"][0]]
        made.update({key: described[inputs[weight]][key] for key in ("shape", "stride", "offset", "dtype", "device")})
        program["nodes"], program["origins"] = [first], program["origins"][:1]
        program["values"] = [*(described[name] for name in inputs), made]
        program["outputs"] = [{"value": [*inputs, made["name"]][result]}]

    return edit


@pytest.mark.parametrize(
    ("weight", "result", "reason"),
    [(0, 1, "packs what is not a constant"), (1, -1, "a packed weight is a result")],
)
def test_only_constants_are_packed_and_only_for_primitives(
    tmp_path: Path, members: dict[str, bytes], weight: int, result: int, reason: str
) -> None:
    with pytest.raises(BadArtifact, match=reason):
        dovetail.load(_forged(tmp_path, members, _packs(weight, result)))


def test_the_honest_file_is_read(tmp_path: Path, members: dict[str, bytes]) -> None:
    path = _forged(tmp_path, members, lambda program: None)
    x = torch.randn(3, 4)
    assert torch.equal(dovetail.load(path)(x), dovetail.load(path)(x))
    assert os.listdir(tmp_path) == ["forged.dovetail"]
