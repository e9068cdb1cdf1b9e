"""Damaged and forged files: another error than ours, other numbers, or code that runs would be a failure."""

from __future__ import annotations

import ast
import copy
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.artifact.container import Container, open_container, write_container
from dovetail.artifact.json_text import json_bytes
from dovetail.artifact.plan_json import plan_from_json, plan_to_json
from dovetail.artifact.program_json import program_from_json, program_to_json
from dovetail.artifact.tensors import load_tensors, save_tensors
from dovetail.artifact.tree import put_together, tree_of
from dovetail.artifact.tree_json import tree_from_json, tree_to_json
from dovetail.errors import BadArtifact, InvalidProgram, UnsupportedOutput
from dovetail.execute.wrapper import wrapper_source
from dovetail.ir.calling import CallPlan
from dovetail.ir.program import Program, meta_symbols
from dovetail.ir.text import emit, plain_call
from tests.harness.functional_programs import functional_program
from tests.rotation import rotated

JSON_MEMBERS = ("program.json", "plan.json", "results.json", "constants.json")


def _f(x: Tensor, w: Tensor, state: Tensor) -> Any:
    state.add_(1)
    y = torch.nn.functional.linear(x, w).split(2, 1)[1].to(torch.float64)
    return {"y": y, "view": [y.t(), x[1:]], "rest": (float("inf"), torch.float16, x.shape[0])}


def _members() -> dict[str, bytes]:
    args = torch.randn(3, 4), torch.randn(4, 4), torch.zeros(2)
    compiled = dovetail.compile(_f, dynamic=True)
    result = compiled(*args)
    graph = compiled.graphs[0]
    program = graph.forward.program
    tensors = save_tensors({"w": args[1], "part of w": args[1][1], "state": args[2]})
    return {
        "program.json": json_bytes(program_to_json(program)),
        "plan.json": json_bytes(plan_to_json(graph.plan, program)),
        "results.json": json_bytes(tree_to_json(tree_of(result))),
        **{name: bytes(content) for name, content in tensors.items()},
    }


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    return _members()


class _Loaded:
    def __init__(self, container: Container) -> None:
        self.program: Program = container.decode("program.json", program_from_json)
        self.plan: CallPlan = container.decode("plan.json", lambda data: plan_from_json(data, self.program))
        self.tree = container.decode("results.json", tree_from_json)
        self.tensors = load_tensors(container, private=())

    def written_again(self) -> dict[str, Any]:
        return {
            "program.json": program_to_json(self.program),
            "plan.json": plan_to_json(self.plan, self.program),
            "results.json": tree_to_json(self.tree),
            "constants.json": json.loads(bytes(save_tensors(self.tensors)["constants.json"])),
        }


# --- nothing but the right thing happens --------------------------------------------------------------------------

_EVENTS = frozenset({"exec", "os.system", "subprocess.Popen", "pickle.find_class", "os.exec", "socket.connect"})
_seen: list[str] | None = None


def _hook(event: str, arguments: object) -> None:
    if _seen is not None and event in _EVENTS:
        _seen.append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_hook)


def _checked(folder: Path, members: dict[str, bytes]) -> bool:
    """Load a file of these members, checksums right. True when it was read, and read as it is written."""
    global _seen  # noqa: PLW0603
    write_container(folder / "forged", members)
    _seen = []
    try:
        loaded = _Loaded(open_container(folder / "forged", verify="full"))
    except BadArtifact:
        return False
    finally:
        events, _seen = _seen, None
        assert events == []
    for name, data in loaded.written_again().items():
        assert json.dumps(data, sort_keys=True) == json.dumps(json.loads(members[name]), sort_keys=True), name
    _check_source(loaded)
    put_together([0] * loaded.tree.leaves(), loaded.tree)
    return True


def _check_source(loaded: _Loaded) -> None:
    """The source that would run is one function of calls and names of its own, with comments or without."""
    program = loaded.program
    values = [*program.inputs, *(value for node in program.nodes for value in node.results())]
    own = {value.name for value in values} | {name for value in values for name in meta_symbols(value.meta)}
    own |= {name for node in program.nodes for name in node.symbols()}
    sources = []
    try:
        plain, commented = (emit(program, plain_call, {}, comments=comments) for comments in (False, True))
        assert [ast.dump(ast.parse(source.text)) for source in (plain, commented)] == [
            ast.dump(ast.parse(plain.text))
        ] * 2
        assert len(plain.text.splitlines()) == len(commented.text.splitlines())
        sources += [(plain.text, plain.globals), wrapper_source(loaded.plan, program)]
    except (InvalidProgram, UnsupportedOutput):
        pass  # a refusal of ours, when it is built
    for text, named in sources:
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        for node in ast.walk(function):
            assert not isinstance(node, ast.Import | ast.ImportFrom | ast.Lambda | ast.Await | ast.NamedExpr)
            if isinstance(node, ast.Name):
                assert node.id in own | named.keys() | _SOURCE_NAMES or node.id.startswith("result_"), node.id
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("__") or isinstance(node.value, ast.Attribute), node.attr


_SOURCE_NAMES = frozenset(
    {
        *("torch", "math", "operator", "prims", "args", "outs", "run", "copy_into", "flat_bytes", "followed", "graft"),
        *(
            "viewed_tensor",
            "withdraw_announcement",
            "change_layout",
            "increment_version",
            "put_together",
            "getattr",
            "complex",
            "float",
        ),
        *("int", "max", "min", "round", "bool", "abs", "pow", "_"),
    }
)


def test_the_file_itself_is_read(tmp_path: Path, members: dict[str, bytes]) -> None:
    assert _checked(tmp_path, members)


# --- damage -------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_and_every_truncation_is_noticed(tmp_path: Path) -> None:
    program = functional_program(3).program()
    members = {"program.json": json_bytes(program_to_json(program))[:300], **save_tensors({"w": torch.randn(7)})}
    path, bad = tmp_path / "small.dovetail", tmp_path / "bad.dovetail"
    write_container(path, members)
    content = path.read_bytes()
    choose = random.Random(0)
    damaged = [content[:end] for end in range(len(content))]
    for position in range(len(content)):
        for mask in (0xFF, 1 << choose.randrange(8)):
            damaged.append(content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :])
    assert len(damaged) > 5000
    for one in rotated(damaged, 8):
        bad.write_bytes(one)
        with pytest.raises(BadArtifact):
            open_container(bad)


def test_random_damage_is_noticed(tmp_path: Path, members: dict[str, bytes]) -> None:
    write_container(tmp_path / "good", members)
    content = (tmp_path / "good").read_bytes()
    choose = random.Random(1)
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(choose.randrange(1, 5)):
            at, size = choose.randrange(len(damaged)), choose.randrange(1, 40)
            change = choose.randrange(4)
            if change == 0:
                damaged[at : at + size] = choose.randbytes(size)
            elif change == 1:
                del damaged[at : at + size]
            elif change == 2:
                damaged[at:at] = choose.randbytes(size)
            else:
                other = choose.randrange(len(damaged))
                damaged[at : at + size] = damaged[other : other + size]
        if bytes(damaged) == content:
            continue
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(BadArtifact):
            open_container(tmp_path / "bad")


# --- forgery: the checksums are right -----------------------------------------------------------------------------

PAYLOADS = (
    "x\nimport os",
    "x\r__import__('os')",
    "x\u2028import os",
    "__import__('os').system('true')",
    "x); print(1",
    "x=1",
    '"""',
    "'",
    "\\",
    "os.system",
    "print",
    "torch",
    "args",
    "lambda",
    "__class__",
    "__builtins__",
    "_",
    "",
    "x" * 5000,
    "é",
    "../../etc/passwd",
    "torch.ops.aten.save.default",
    "torch.load",
    "s0",
    "1",
)
OTHER_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 63, 1 << 80, 0.5, 1e308, [], {}, [[]], "", "x", {"value": "x"}),
    *({"tuple": []}, {"size": ["symbol", "s0"]}, {"size": ["pow", 9, 9]}, {"float": "nan"}, {"dtype": "int64"}),
    *(["symbol", "q"], ["add", 1, 2], ["where", 1, 2, 3], {"device": "cuda:9"}, {"device": "x"}, "float32"),
    *({"kind": "leaf"}, {"rule": "FromSlot", "slot": 0}, {"role": "UserInput", "index": 0}, [0, 1, 2, 3, "x"]),
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(data, dict | list):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _places(inner, (*path, key))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    data = copy.deepcopy(data)
    _at(data, path[:-1])[path[-1]] = value
    return data


@pytest.mark.parametrize("name", JSON_MEMBERS)
def test_injection_through_every_string(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    data = json.loads(members[name])
    choose = random.Random(name)
    strings = [path for path in _places(data) if isinstance(_at(data, path), str)]
    fields: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in strings:
        fields.setdefault(tuple("*" if isinstance(key, int) else key for key in path), []).append(path)
    for alike in fields.values():
        for payload in rotated(PAYLOADS, 5):
            changed = _replaced(data, choose.choice(alike), payload)
            _checked(tmp_path, {**members, name: json.dumps(changed).encode()})


@pytest.mark.parametrize("name", JSON_MEMBERS)
def test_injection_through_every_key(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    data = json.loads(members[name])
    choose = random.Random(name)
    paths = [path for path in _places(data) if path and isinstance(path[-1], str)]
    for path in choose.sample(paths, min(len(paths), 60)):
        changed = copy.deepcopy(data)
        parent = _at(changed, path[:-1])
        parent[choose.choice(PAYLOADS)] = parent.pop(path[-1])
        _checked(tmp_path, {**members, name: json.dumps(changed).encode()})


def test_a_keyword_of_an_operator_is_one_of_its_operands(tmp_path: Path, members: dict[str, bytes]) -> None:
    data = json.loads(members["program.json"])
    node = next(node for node in data["nodes"] if not node["kwargs"])
    for payload in (*PAYLOADS, "dtype", "out"):
        node["kwargs"] = {payload: 1}
        assert not _checked(tmp_path, {**members, "program.json": json.dumps(data).encode()}), payload


def _mutated(data: Any, choose: random.Random) -> Any:
    paths = list(_places(data))
    for _ in range(choose.randrange(1, 4)):
        path, other = choose.choice(paths), choose.choice(paths)
        try:
            value = choose.choice(
                [choose.choice(OTHER_VALUES), choose.choice(PAYLOADS), copy.deepcopy(_at(data, other))]
            )
            data = _replaced(data, path, value)
            if choose.random() < 0.2 and isinstance(parent := _at(data, path[:-1]), list):
                parent.insert(choose.randrange(len(parent) + 1), copy.deepcopy(value))
            elif choose.random() < 0.2 and path and path[-1] in parent:
                del parent[path[-1]]
        except (KeyError, IndexError, TypeError, UnboundLocalError):
            continue  # the place went away with an earlier change
    return data


@pytest.mark.parametrize("name", JSON_MEMBERS)
def test_random_changes_of_plain_data(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    choose = random.Random(name)
    data = json.loads(members[name])
    for _ in range(80):
        _checked(tmp_path, {**members, name: json.dumps(_mutated(data, choose)).encode()})


def _raw(content: bytes, choose: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(choose.randrange(1, 6)):
        at = choose.randrange(len(changed))
        changed[at : at + choose.randrange(3)] = bytes(
            choose.choices(b'0123456789"{}[],:-aex_.\\\n\xff', k=choose.randrange(3))
        )
    return bytes(changed)


def _deep(content: bytes, choose: random.Random) -> bytes:
    return b"[" * choose.choice([10, 500, 100_000]) + content


@pytest.mark.parametrize("name", [*JSON_MEMBERS, "constants.safetensors"])
@pytest.mark.parametrize("change", [_raw, _deep])
def test_random_changes_of_text(
    tmp_path: Path, members: dict[str, bytes], name: str, change: Callable[[bytes, random.Random], bytes]
) -> None:
    choose = random.Random(name)
    for _ in range(100 if change is _raw else 6):
        content = change(members[name], choose)
        if name == "constants.safetensors" and len(content) == len(members[name]):
            continue  # other numbers with checksums of their own are another file
        _checked(tmp_path, {**members, name: content})


def test_mixed_up_members(tmp_path: Path, members: dict[str, bytes]) -> None:
    for name in JSON_MEMBERS:
        for other in (other for other in JSON_MEMBERS if other != name):
            assert not _checked(tmp_path, {**members, name: members[other]})
        assert not _checked(tmp_path, {key: content for key, content in members.items() if key != name})
        assert not _checked(tmp_path, {**members, name: b""})
