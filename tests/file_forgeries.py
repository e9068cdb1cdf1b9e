"""Forged files, from honest ones: each seed changes a few things that the grammar of the format has a place for.

What is changed: programs (`program_forgeries`), call plans, the index of a frozen module, lists of tensors, any JSON as
text or as a tree, tensors' bytes, the container. Checksums are made right afterwards, but for some forgeries of the
container itself.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dovetail.artifact import zip_layout
from dovetail.artifact.zip_layout import Member
from tests.file_corpus import FROZEN, Subject
from tests.program_forgeries import TEXTS, change_program, forged_number, forged_target

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Forgery:
    """A forged file. what: the changes, in words. members: of the file, or of the folder. packed: bytes of the file,
    where they are not simply those of its members.
    """

    subject: Subject
    what: tuple[str, ...]
    members: Mapping[str, bytes]
    packed: bytes | None = None


def forgery(subjects: list[Subject], seed: int) -> Forgery:
    """The forgery of this seed. Equal seeds make equal forgeries of equal subjects."""
    choose = random.Random(seed)
    is_frozen = choose.random() < 0.8
    subject = choose.choice([one for one in subjects if (one.kind == FROZEN) == is_frozen] or subjects)
    members = dict(subject.members)
    if subject.kind == FROZEN and choose.random() < 0.05:
        what, packed = choose.choice(_CONTAINERS)(members, choose)
        return Forgery(subject, (what,), members, packed)
    what = []
    for _ in range(choose.choice((1, 1, 1, 2, 2, 3))):
        name = _chosen_member(members, choose)
        if name.endswith(".safetensors"):
            members[name] = _changed_tensors(members[name], choose)
            what.append(f"{name}: bytes")
        elif choose.random() < 0.02:
            members[name] = _changed_text(members[name], choose)
            what.append(f"{name}: text")
        else:
            what.append(f"{name}: {_change_json(name, members, choose)}")
    return Forgery(subject, tuple(what), members)


def packed(members: Mapping[str, bytes]) -> bytes:
    """The file of these members, with right checksums."""
    listed = {n: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in members.items()}
    manifest = json.dumps({"format": "dovetail artifact", "version": 1, "members": listed}, separators=(",", ":"))
    return _laid_out([*members.items(), (_MANIFEST, manifest.encode())])


def _laid_out(pairs: list[tuple[str, bytes]]) -> bytes:
    content, members = bytearray(), []
    for name, data in pairs:
        member = Member(name, len(data), zlib.crc32(data), len(content))
        content += zip_layout.header(member) + data
        members.append(member)
    return bytes(content) + zip_layout.directory(members)


def _chosen_member(members: Mapping[str, bytes], choose: random.Random) -> str:
    names = [name for name in members if not name.endswith(".py")]
    programs = [name for name in names if name.endswith(".json") and not name.startswith(("const", "sour", "frozen"))]
    folded = [name for name in programs if not name.endswith(".unfolded.json")]
    kind = choose.random()
    return choose.choice(folded if kind < 0.75 else programs if kind < 0.8 else names)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _change_json(name: str, members: dict[str, bytes], choose: random.Random) -> str:
    try:
        data = json.loads(members[name])
    except (ValueError, RecursionError):
        return "not JSON any more"
    program = data.get("program") if isinstance(data, dict) else None
    plan = data.get("plan") if isinstance(data, dict) else None
    kind = choose.random()
    if isinstance(program, dict) and kind < (0.75 if plan else 0.9):
        what = _tried(change_program, program, choose)
        twin = name.replace(".json", ".unfolded.json")
        if twin in members and choose.random() < 0.3:  # the same program in both places, so that they agree
            with suppress(ValueError, RecursionError, TypeError):  # it was made no JSON, or no object, before
                members[twin] = _dumped({**json.loads(members[twin]), "program": program})
    elif isinstance(plan, dict) and kind < 0.95:
        what = _tried(_change_plan, plan, choose)
    else:
        what = _tried(_change_tree, data, choose)
    members[name] = _dumped(data)
    return what


def _tried(change: Callable[[Any, random.Random], str], data: Any, choose: random.Random) -> str:
    try:
        return change(data, choose)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration, RecursionError) as error:
        return f"nothing ({type(error).__name__})"  # the place went away with an earlier change


def _dumped(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in JSON."""
    yield path
    if isinstance(data, dict | list):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(inner, (*path, key))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


_OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 62, 1 << 63, 1 << 80, 0.0, 0.5, 1e308, [], {}, [[]], "", "x"),
    *({"value": "x"}, {"tuple": []}, {"size": ["symbol", "s0"]}, {"size": ["pow", 9, ["pow", 9, 9]]}, "forward"),
    *({"float": "nan"}, {"dtype": "int64"}, ["symbol", "q"], ["add", 1, 2], ["where", 1, 2, 3], {"device": "cuda:9"}),
    *({"device": "meta"}, "float32", "int8", {"kind": "leaf"}, {"rule": "FromSlot", "slot": 0}, "save", "__class__"),
    *({"role": "UserInput", "index": 0}, [0, 1, 2, 3, "x"], {"bytes": "00"}, {"complex": [1.0, 2.0]}, "_run", "train"),
)


def _change_tree(data: Any, choose: random.Random) -> str:
    """Another value, key, order or number of things at any place of JSON."""
    path = choose.choice([path for path in places(data) if path])
    parent, key = _at(data, path[:-1]), path[-1]
    kind = choose.randrange(8)
    if kind == 0 and isinstance(parent, list):
        parent.insert(choose.randrange(len(parent) + 1), copy.deepcopy(choose.choice(parent)))
        return f"{path}: once more"
    if kind == 1:
        del parent[key]
        return f"{path}: gone"
    if kind == 2 and isinstance(parent, dict):
        parent[choose.choice(TEXTS)] = parent.pop(key)
        return f"{path}: another key"
    if kind == 3:
        other = choose.choice([place for place in places(data) if place])
        parent[key] = copy.deepcopy(_at(data, other))
        return f"{path}: as {other}"
    if kind == 4 and isinstance(parent, list):
        choose.shuffle(parent)
        return f"{path}: in another order"
    if kind == 5 and isinstance(parent[key], int):
        parent[key] = forged_number(choose)
        return f"{path}: {parent[key]}"
    if kind == 6 and isinstance(parent[key], str):
        parent[key] = choose.choice(TEXTS)
        return f"{path}: {parent[key]!r}"[:120]
    parent[key] = copy.deepcopy(choose.choice(_OTHERS))
    return f"{path}: {parent[key]!r}"


_RULES: tuple[dict[str, Any], ...] = (
    {"rule": "FromSlot", "slot": 0},
    {"rule": "FromSlot", "slot": 1},
    {"rule": "FromInput", "input": 0},
    {"rule": "FromInput", "input": 1},
    {"rule": "FromOutput", "output": 0},
    {"rule": "FromConstant", "value": 3},
    {"rule": "AsLeaf", "of": {"rule": "FromSlot", "slot": 0}},
    {"rule": "FromView", "base": 0, "of_input": True, "steps": [], "detach": False},
)


def _change_plan(plan: dict[str, Any], choose: random.Random) -> str:
    """Another rule, step, write, extra input, change of shape, or a number in one of them."""
    inner = plan["plan"]
    step = {"rule": "ReplayStep", "target": forged_target(choose), "args": [], "kwargs": [], "index": None}
    kind = choose.randrange(9)
    if kind == 0:
        inner["outputs"][choose.randrange(len(inner["outputs"]))] = copy.deepcopy(choose.choice(_RULES))
        return "another rule of a result"
    if kind == 1:
        view = {"rule": "FromView", "base": choose.randrange(3), "of_input": choose.random() < 0.7, "steps": [step]}
        view["detach"] = choose.random() < 0.5
        inner["outputs"][choose.randrange(len(inner["outputs"]))] = view
        return f"a view by {step['target']}"
    if kind == 2:
        write = {"rule": "WriteBack", "input": choose.randrange(4), "slot": choose.randrange(3), "steps": []}
        write["kind"] = choose.choice(("untracked", "tracked", "hidden", "x"))
        inner["writes"].append(write)
        return "another write"
    if kind == 3:
        change = {
            "rule": "MetadataChange",
            "input": choose.randrange(3),
            "args": [choose.choice((0, [1 << 40], [2, 2]))],
        }
        change["target"] = choose.choice(
            ("torch.ops.aten.resize_.default", "torch.ops.aten.t_.default", step["target"])
        )
        inner["metadata"].append(change)
        return f"a change of shape by {change['target']}"
    if kind == 4:
        flat = {"rule": "FlatBytes", "leader": choose.randrange(3), "dtype": choose.choice(("float32", "uint8"))}
        inner["extras"].append({**flat, "length": forged_number(choose), "back": forged_number(choose)})
        inner["extras_at"] = choose.choice((inner["extras_at"], forged_number(choose)))
        return "another extra input"
    if kind == 5:
        flag = {"rule": "GradientFlag", "input": choose.randrange(4), "requires_grad": True, "before": True}
        inner["flags"].append(flag)
        return "another flag"
    views = [path for path in places(inner) if path and path[-1] == "target"]
    if kind == 6 and views:
        path = choose.choice(views)
        _at(inner, path[:-1])["target"] = step["target"]
        return f"a step by {step['target']}"
    return _change_tree(inner, choose)


# --- bytes ------------------------------------------------------------------------------------------------------------


def _changed_text(content: bytes, choose: random.Random) -> bytes:
    if choose.random() < 0.2:
        depth = choose.choice((50, 119, 120, 121, 900, 5000, 200_000))
        return choose.choice((b"[", b'{"a":')) * depth + (content if choose.random() < 0.5 else b"")
    if choose.random() < 0.2:
        return content.replace(b":1", b":" + choose.choice((b"9" * 5000, b"NaN", b"1e999", b"-0", b'"\\ud800"')), 1)
    changed = bytearray(content)
    for _ in range(choose.randrange(1, 5)):
        at = choose.randrange(len(changed) + 1)
        new = bytes(choose.choices(b'0123456789"{}[],:-aex_.\\\n\xff', k=choose.randrange(4)))
        changed[at : at + choose.randrange(4)] = new
    return bytes(changed)


def _changed_tensors(content: bytes, choose: random.Random) -> bytes:
    """Other numbers, another length, or another head of a safetensors file."""
    changed = bytearray(content)
    length = min(int.from_bytes(content[:8], "little"), len(content))  # it may have been changed before
    kind = choose.randrange(6)
    if kind < 3 and len(content) > 8 + length:
        at = choose.randrange(8 + length, len(content))
        changed[at] = choose.randrange(256)
    elif kind == 3:
        changed[:8] = choose.choice((0, 1, max(0, length - 1), length + 64, 1 << 31, (1 << 64) - 1)).to_bytes(
            8, "little"
        )
    elif kind == 4:
        return bytes(changed[: choose.randrange(len(changed) + 1)])
    else:
        changed[8 : 8 + length] = _changed_text(content[8 : 8 + length], choose)[:length].ljust(length)
    return bytes(changed)


# --- the container ----------------------------------------------------------------------------------------------------

_Container = Callable[[dict[str, bytes], random.Random], tuple[str, bytes]]


def _in_another_order(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    pairs = list(members.items())
    choose.shuffle(pairs)
    return "members in another order", packed(dict(pairs))


def _with_another(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    name = choose.choice(("x", "programs/forward.9.json", "__main__.py", "frozen.json.bak", "x.pth", "data.pkl"))
    return f"another member {name}", packed({**members, name: choose.choice((b"", b"import os", b"\x80\x04."))})


def _without_one(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    gone = choose.choice(list(members))
    return f"no {gone}", packed({name: content for name, content in members.items() if name != gone})


def _mixed_up(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    a, b = choose.sample(list(members), 2)
    return f"{a} holds {b}", packed({**members, a: members[b]})


def _damaged(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    content = bytearray(packed(members))
    begin = choose.choice((0, len(content) - 400))
    for _ in range(choose.randrange(1, 4)):
        content[choose.randrange(begin, len(content))] = choose.randrange(256)
    return "damaged bytes", bytes(content)


def _cut(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    content = packed(members)
    return "cut off", content[: choose.choice((0, 1, 21, 22, 64, len(content) - 1, choose.randrange(len(content))))]


def _with_lies(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    """A number of the directory is another one."""
    content = bytearray(packed(members))
    entries = [at for at in range(len(content) - 46) if content[at : at + 4] == b"PK\1\2"]
    at = choose.choice([choose.choice(entries), len(content) - 22])
    offset = choose.randrange(4, 44 if at in entries else 20)
    struct.pack_into("<H", content, at + offset, choose.choice((0, 1, 8, 0xFF, 0x7FFF, 0xFFFF)))
    return f"byte {offset} of an entry of the directory", bytes(content)


def _with_a_false_manifest(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    listed = {n: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in members.items()}
    manifest: Any = {"format": "dovetail artifact", "version": 1, "members": listed}
    for _ in range(choose.randrange(1, 3)):
        _tried(_change_tree, manifest, choose)
    return "another manifest", _laid_out([*members.items(), (_MANIFEST, _dumped(manifest))])


def _with_one_twice(members: dict[str, bytes], choose: random.Random) -> tuple[str, bytes]:
    listed = {n: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in members.items()}
    manifest = _dumped({"format": "dovetail artifact", "version": 1, "members": listed})
    pairs = [*members.items()]
    pairs.insert(choose.randrange(len(pairs)), choose.choice(pairs))
    return "one member twice", _laid_out([*pairs, (_MANIFEST, manifest)])


_CONTAINERS: tuple[_Container, ...] = (
    _in_another_order,
    _with_another,
    _without_one,
    _mixed_up,
    _damaged,
    _cut,
    _with_lies,
    _with_a_false_manifest,
    _with_one_twice,
)
