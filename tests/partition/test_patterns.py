"""Which nodes a pattern names, and which values of the option `policy` are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.errors import BadOptionValue
from dovetail.ir.program import Node, Origin
from dovetail.partition.patterns import matches, patterns_of
from dovetail.partition.policy import Mark, Policy
from tests.partition.joint_programs import value

NODE = Node(
    torch.ops.aten.gelu.default,
    (value("x", 4, 0),),
    outputs=(value("y", 4, 1),),
    origin=Origin(module="model.layers.0.mlp.1"),
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("aten.gelu", True),
        ("aten.gelu.default", True),
        ("aten.*", True),
        ("*", True),
        ("aten.gel", False),
        ("gelu", False),
        ("layers.*.mlp", True),
        ("layers.0", True),
        ("model.layers.0.mlp.1", True),
        ("mlp", True),
        ("layers.mlp", False),
        ("layers.*.*.*.x", False),
        ("layers.1", False),
        ("layer", False),
    ],
)
def test_what_a_pattern_names(pattern: str, expected: bool) -> None:
    assert matches(pattern, NODE) == expected


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["aten.gelu"], "it is a mapping"),
        ({3: "SAVE"}, "3 is no pattern"),
        ({"": "SAVE"}, "'' is no pattern"),
        ({"aten.gelu": "save"}, "'save' says nothing"),
        ({"aten.gelu": True}, "True says nothing"),
    ],
)
def test_other_values_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(BadOptionValue, match=reason):
        patterns_of(given)


def test_what_marks_mean() -> None:
    for mark, allowed in ((Mark.SAVE, False), (Mark.MUST_SAVE, False), (Mark.RECOMPUTE, True)):
        assert Policy("all", {NODE: mark}).allows(NODE) == allowed
    assert Policy("all", {NODE: Mark.SAVE}).under_need().allows(NODE)
    assert not Policy("all", {NODE: Mark.MUST_SAVE}).under_need().allows(NODE)
    assert Policy(marks={NODE: Mark.RECOMPUTE}).cost(NODE, 7) == 0
    assert Policy().cost(NODE, 7) == 7
