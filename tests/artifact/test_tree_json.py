"""Structures of arguments and results: described, written, read, filled again; no class comes from a file."""

from __future__ import annotations

import copy
import json
import pickle
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as torch_pytree
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutput

from dovetail.artifact.json_text import json_bytes, read_json
from dovetail.artifact.named_result import NamedResult
from dovetail.artifact.tree import Tree, put_together, qualified_name, take_apart, tree_of
from dovetail.artifact.tree_json import tree_from_json, tree_to_json
from dovetail.errors import NotSerializable
from dovetail.frontends import structure


class Point(NamedTuple):
    x: Any
    y: Any = 2


@dataclass
class Pair:
    first: Any
    second: Any = None
    more: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert not isinstance(self.first, str), "its code runs when it is called"


@dataclass(frozen=True)
class Frozen:
    a: Any
    items: Any


CLASSES = {qualified_name(cls): cls for cls in (Point, Pair, Frozen, CausalLMOutput, BaseModelOutputWithPooling)}


def _again(tree: Tree) -> Tree:
    return tree_from_json(read_json(json_bytes(tree_to_json(tree))))


def _with_attribute() -> Pair:
    pair = Pair(1, 2, [3])
    pair.own = 4  # type: ignore[attr-defined]
    return pair


EXAMPLES = [
    1,
    None,
    [],
    {},
    (),
    torch.Size((1, 2)),
    [1, (2, {"b": 3, "a": [None]}), torch.Size((3,))],
    {1: 2, "1": 3, 2.5: 4, None: 5, False: 6},
    OrderedDict(b=1, a=OrderedDict()),
    defaultdict(list, {"x": [1], "y": 2}),
    defaultdict(None, {"x": 1}),
    deque([1, [2]], maxlen=3),
    deque([1, 2]),
    Point(1, [2, 3]),
    Pair(1, Point(2, 3), [Frozen(4, 5)]),
    _with_attribute(),
    CausalLMOutput(logits=1, hidden_states=(2, 3)),
    {"out": BaseModelOutputWithPooling(last_hidden_state=1)},
]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_structures_come_back(example: Any) -> None:
    tree = tree_of(example)
    assert _again(tree) == tree
    leaves = take_apart(example, _again(tree))
    assert tree.leaves() == len(leaves)
    rebuilt = put_together(leaves, _again(tree), CLASSES)
    assert type(rebuilt) is type(example)
    assert rebuilt == example
    assert take_apart(rebuilt, tree) == leaves


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_leaves_are_in_the_order_of_the_compiler(example: Any) -> None:
    leaves, spec = structure.flatten(example)
    numbered = structure.unflatten(list(range(len(leaves))), spec)
    assert take_apart(numbered, tree_of(numbered)) == list(range(len(leaves)))
    assert take_apart(example, tree_of(example)) == leaves


def test_what_torch_operators_return() -> None:
    result = torch.randn(3, 4).max(0)
    tree = _again(tree_of(result))
    rebuilt = put_together(take_apart(result, tree), tree)
    assert type(rebuilt) is torch.return_types.max
    assert rebuilt.indices is result.indices


def test_unknown_classes_come_back_as_named_results() -> None:
    made = put_together([1, (2,)[0], 3], _again(tree_of(CausalLMOutput(logits=0, hidden_states=(0, 0)))))
    assert isinstance(made, NamedResult)
    assert repr(made) == "transformers.modeling_outputs.CausalLMOutput(logits=1, hidden_states=(2, 3))"
    assert (made.logits, made["logits"], made[0], made[-1], made[:1]) == (1, 1, 1, (2, 3), (1,))
    assert (list(made), len(made), made.to_tuple(), "logits" in made) == (
        ["logits", "hidden_states"],
        2,
        (1, (2, 3)),
        True,
    )
    assert dict(made.items()) == {"logits": 1, "hidden_states": (2, 3)}
    with pytest.raises(AttributeError, match="cannot be changed"):
        made.logits = 2
    with pytest.raises(AttributeError, match="cannot be changed"):
        del made.logits
    with pytest.raises(AttributeError, match="has no 'loss'; it has logits, hidden_states"):
        made.loss  # noqa: B018
    with pytest.raises(KeyError):
        made["loss"]
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert repr(again) == repr(made)
    x, y = put_together([1, 2], _again(tree_of(Point(0, 0))))
    assert (x, y) == (1, 2)
    frozen = put_together([1, 2], _again(tree_of(Frozen(0, 0))))
    assert frozen.items == 2
    assert take_apart(frozen, tree_of(Frozen(0, 0))) == [1, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "the whole is a list of 1, not a dict of 2 with 'a', 'b'"),
        ({"a": [1, 2]}, "the whole is a dict of 1, not a dict of 2"),
        ({"a": [1, 2], "c": Point(1, 2)}, "with 'a', 'b'"),
        ({"a": [1, 2, 3], "b": Point(1, 2)}, r"\['a'\] is a list of 3, not a list of 2"),
        ({"a": (1, 2), "b": Point(1, 2)}, r"\['a'\] is a tuple of 2, not a list of 2"),
        ({"a": [1, 2], "b": (1, 2)}, r"\['b'\] is a tuple of 2, not a .*Point with 'x', 'y'"),
        ({"a": [1, 2], "b": Point(1, (2,))}, None),
        ({"b": Point(3, 4), "a": [1, 2]}, "the whole has its keys in another order: 'b', 'a', not 'a', 'b'"),
        (OrderedDict(a=[1, 2], b=Point(1, 2)), "is a OrderedDict of 2"),
    ],
)
def test_other_structures_are_named(value: Any, message: str | None) -> None:
    tree = tree_of({"a": [0, 0], "b": Point(0, 0)})
    if message is None:
        assert take_apart(value, tree)[:2] == [1, 2]
        return
    with pytest.raises(ValueError, match=message):
        take_apart(value, tree)


def test_classes_that_have_changed() -> None:
    class Other(NamedTuple):
        x: Any

    @dataclass
    class Bare:
        a: Any
        b: Any

    for example in (Point(1, 2), Frozen(1, 2), CausalLMOutput(logits=1)):
        tree = tree_of(example)
        for cls in (Other, Bare, int):
            with pytest.raises(ValueError, match="has other fields than the"):
                put_together([1] * tree.leaves(), tree, {tree.name: cls})
    with pytest.raises(ValueError, match="the structure has 2 leaves, not 1"):
        put_together([1], tree_of([1, 2]))


class _Box:
    def __init__(self, item: Any) -> None:
        self.item = item


def test_what_cannot_be_written() -> None:
    torch_pytree.register_pytree_node(
        _Box, lambda b: ([b.item], None), lambda xs, _: _Box(next(iter(xs))), serialized_type_name="dovetail.tests.Box"
    )
    try:
        with pytest.raises(NotSerializable, match="_Box, which only its own code can flatten"):
            tree_of([_Box(1)], "the results")
    finally:
        torch_pytree._deregister_pytree_node(_Box)
    assert tree_of([_Box(1)]).leaves() == 1
    with pytest.raises(NotSerializable, match=r"a key of a dictionary is \(1, 2\)"):
        tree_of({(1, 2): 3})
    with pytest.raises(NotSerializable, match="the default of a dictionary is made by <function"):
        tree_of(defaultdict(lambda: 1))
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotSerializable, match="recursion"):
        tree_of(loop)
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(NotSerializable, match="nested deeper"):
        json_bytes(tree_to_json(tree_of(deep)))


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"kind": "other"},
        {"kind": "leaf", "children": [{"kind": "leaf"}]},
        {"kind": "leaf", "name": "x"},
        {"kind": "leaf", "more": 1},
        {"kind": "list", "children": []},
        {"kind": "list", "keys": ["a"], "children": [{"kind": "leaf"}]},
        {"kind": "list", "limit": 3},
        {"kind": "dict", "keys": ["a"]},
        {"kind": "dict", "keys": ["a", "a"], "children": [{"kind": "leaf"}, {"kind": "leaf"}]},
        {"kind": "dict", "keys": [1, True], "children": [{"kind": "leaf"}, {"kind": "leaf"}]},
        {"kind": "dict", "keys": [{"tuple": []}], "children": [{"kind": "leaf"}]},
        {"kind": "dict", "keys": [{"value": "x"}], "children": [{"kind": "leaf"}]},
        {"kind": "default dict", "name": "eval"},
        {"kind": "default dict"},
        {"kind": "deque", "limit": 0, "children": [{"kind": "leaf"}]},
        {"kind": "deque", "limit": True, "children": [{"kind": "leaf"}]},
        {"kind": "size", "children": [{"kind": "list"}]},
        {"kind": "return type", "name": "__class__"},
        {"kind": "return type", "name": "no_such"},
        {"kind": "return type", "name": "max", "children": [{"kind": "leaf"}]},
        {"kind": "return type", "name": "pytree_register_structseq"},
        {"kind": "object", "name": "os.system", "keys": ["__class__"], "children": [{"kind": "leaf"}]},
        {"kind": "object", "name": "os.system", "keys": ["a b"], "children": [{"kind": "leaf"}]},
        {"kind": "object", "name": "a\nb", "keys": ["a"], "children": [{"kind": "leaf"}]},
        {"kind": "object", "name": 3},
        {"kind": "named tuple", "keys": ["a"], "children": [{"kind": "leaf"}]},
    ],
    ids=json.dumps,
)
def test_forged_structures(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        tree_from_json(data)


def test_sizes_hold_numbers() -> None:
    tree = tree_from_json({"kind": "size", "children": [{"kind": "leaf"}, {"kind": "leaf"}]})
    assert type(put_together([2, 3], tree)) is torch.Size
    assert put_together([2, "x"], tree) == (2, "x")  # of a forged file


def test_names_of_classes_are_only_shown() -> None:
    data = {"kind": "object", "name": "os.system", "keys": ["command"], "children": [{"kind": "leaf"}]}
    assert repr(put_together(["true"], tree_from_json(data))) == "os.system(command='true')"
