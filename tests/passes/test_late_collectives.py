"""Collectives that take memory wait until they are needed, and their order stands."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.ir.program import Node, Value
from dovetail.ops import collectives as ops
from dovetail.ops.prims import functional_form
from dovetail.passes.late_collectives import late_collectives
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def _gathered(b: Builder, name: str, shard: Value) -> Value:
    """A gather of a shard into memory of its own."""
    whole = b.call(f"{name}_empty", aten.cat.default, [shard, shard], shape=(8,))
    return b.call(name, functional_form(ops.GATHER_OWN, (0,)), whole, 0, 4, "0", shape=(8,))


def _reduced(b: Builder, name: str, value: Value) -> Value:
    return b.call(name, functional_form(ops.ALL_REDUCE, (0,)), value, "SUM", "0")


def _lines(b: Builder, *outputs: Value) -> tuple[list[str], int]:
    made, report = late_collectives(b.program(*outputs), lambda _: 0)
    return [line.replace(".default", "").split(" = ")[0] for line in body(made)[:-1]], report.moved


def test_a_gather_waits_for_its_reader() -> None:
    b = Builder("shard", "x")
    whole = _gathered(b, "w", b.inputs[0])
    y = b.call("y", aten.sin.default, b.inputs[1])
    part = b.call("part", aten.slice.Tensor, whole, 0, 0, 4, view_of=whole)
    z = b.call("z", aten.cos.default, y)
    last = b.call("last", aten.mul.Tensor, z, part)
    assert _lines(b, last) == (["y", "z", "w_empty", "w", "part", "last"], 1)


def test_collectives_keep_their_order() -> None:
    b = Builder("shard", "x")
    whole = _gathered(b, "w", b.inputs[0])
    y = b.call("y", aten.sin.default, b.inputs[1])
    total = _reduced(b, "total", y)
    z = b.call("z", aten.cos.default, total)
    last = b.call("last", aten.mul.Tensor, z, whole, shape=(8,))
    assert _lines(b, last) == (["y", "w_empty", "w", "total", "z", "last"], 1)


def test_what_takes_no_memory_stays() -> None:
    """A sum takes the place of what is summed up."""
    b = Builder("x")
    held = b.call("held", aten.sin.default, b.inputs[0])
    total = _reduced(b, "total", b.call("y", aten.cos.default, held))
    z = b.call("z", aten.cos.default, b.inputs[0])
    w = b.call("w", aten.mul.Tensor, held, z)
    assert _lines(b, b.call("last", aten.mul.Tensor, w, total)) == (["held", "y", "total", "z", "w", "last"], 0)


def test_what_computes_on_values_does_not_come_along() -> None:
    """It would keep them alive."""
    b = Builder("x")
    held = b.call("held", aten.sin.default, b.inputs[0])
    other = b.call("other", aten.neg.default, held)
    whole = _gathered(b, "w", b.call("made", aten.cos.default, held))
    y = b.call("y", aten.cos.default, b.inputs[0])
    last = b.call("last", aten.mul.Tensor, whole, y, shape=(8,))
    assert _lines(b, last, other)[0] == ["held", "other", "made", "w_empty", "w", "y", "last"]


def test_a_higher_peak_is_not_taken() -> None:
    b = Builder("shard", "x")
    whole = _gathered(b, "w", b.inputs[0])
    y = b.call("y", aten.sin.default, b.inputs[1])
    program = b.program(b.call("last", aten.mul.Tensor, whole, y, shape=(8,)))
    assert late_collectives(program, lambda p: int(p is not program))[0] is program


def test_a_write_is_not_passed() -> None:
    b = Builder("shard", "x")
    whole: Any = _gathered(b, "w", b.inputs[0])
    b.nodes.append(Node(aten.copy_.default, (b.inputs[0], b.inputs[1]), outputs=()))
    y = b.call("y", aten.sin.default, b.inputs[1])
    last = b.call("last", aten.mul.Tensor, whole, y, shape=(8,))
    assert _lines(b, last)[0] == ["w_empty", "w", "copy_(shard, x)", "y", "last"]
