"""Values that are the same in every call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.analysis.constant_values import constant_values
from dovetail.ir.sizes import symbol
from tests.passes.programs import Builder

aten = torch.ops.aten


def _names(b: Builder, *constants: str) -> set[str]:
    return {value.name for value in constant_values(b.program(), constants)}


def test_what_is_computed_from_constants_alone() -> None:
    b = Builder("x", "w", "v")
    x, w, v = b.inputs
    b.call("view", aten.t.default, w, view_of=w)
    total = b.call("total", aten.add.Tensor, w, v)
    b.call("mixed", aten.add.Tensor, total, x)
    b.call("number", aten.full.default, [4], 1.0)
    assert _names(b, "w", "v") == {"w", "v", "view", "total"}
    assert _names(b, "w") == {"w", "view"}
    assert _names(b) == set()


@pytest.mark.parametrize(
    ("target", "args"),
    [(aten.bernoulli.p, (0.5,)), (aten.rand_like.default, ()), (max, ()), (aten._assert_async.default, ())],
)
def test_draws_and_effects_are_left_out(target: Any, args: tuple[object, ...]) -> None:
    b = Builder("w")
    b.call("drawn", target, b.inputs[0], *args)
    assert _names(b, "w") == ({"w", "drawn"} if target is max else {"w"})


def test_memory_that_is_written_is_left_out() -> None:
    b = Builder("w", "v")
    w, v = b.inputs
    b.call("view", aten.t.default, w, view_of=w)
    b.call("copied", aten.clone.default, w)
    b.call("written", aten.add_.Tensor, w, 1, view_of=w)
    b.call("other", aten.clone.default, v)
    assert _names(b, "w", "v") == {"v", "other"}


def test_sizes_that_are_symbols_are_left_out() -> None:
    b = Builder("w")
    b.call("expanded", aten.expand.default, b.inputs[0], [symbol("s0"), 4], shape=(symbol("s0"), 4))
    assert _names(b, "w") == {"w"}
