"""Weights that backward reads are gathered once, or again, as the peak has it."""

from __future__ import annotations

import pytest
import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.ir.program import Phase, Program, Value
from dovetail.ops import collectives as ops
from dovetail.ops.prims import functional_form
from dovetail.passes.gather_once import gather_once
from tests.passes.programs import Builder

aten = torch.ops.aten
_LAYERS = 3


def _layer(b: Builder, name: str, phase: Phase, x: Value, shard: Value, group: str = "0") -> Value:
    """A product with a weight that is gathered, and copied out."""
    whole = b.call(f"{name}_empty", aten.cat.default, [shard, shard], shape=(8,), phase=phase)
    gathered = b.call(
        f"{name}_whole", functional_form(ops.GATHER_OWN, (0,)), whole, 0, 4, group, shape=(8,), phase=phase
    )
    weight = b.call(f"{name}_weight", aten.clone.default, gathered, shape=(8,), phase=phase)
    return b.call(name, aten.mul.Tensor, x, weight, shape=(8,), phase=phase)


def _program(*, writes: bool = False, other_group: bool = False) -> Program:
    b = Builder("x", *(f"shard_{number}" for number in range(_LAYERS)))
    x, *shards = b.inputs
    x = b.call("first", aten.repeat.default, x, [2], shape=(8,))
    for number, shard in enumerate(shards):
        x = _layer(b, f"y_{number}", Phase.FORWARD, x, shard, "1" if other_group and number else "0")
    for number in reversed(range(_LAYERS)):
        given = shards[number]
        if writes:
            given = b.call(f"new_{number}", aten.neg.default, given, phase=Phase.BACKWARD)
        x = _layer(b, f"g_{number}", Phase.BACKWARD, x, given, "1" if other_group and number else "0")
    return b.program(x)


def _peak(program: Program) -> int:
    return simulate_peak(program).peak_bytes


def _gathers(program: Program) -> int:
    return sum(ops.collective_of(node) is not None for node in program.nodes)


@pytest.mark.parametrize("kept", range(_LAYERS + 1))
def test_as_much_is_kept_as_a_limit_has_room_for(kept: int) -> None:
    """The layers that backward reads first are the cheapest to keep."""
    program = _program()
    limit = 2 * _LAYERS - kept
    made, report = gather_once(program, lambda p: 2 * _LAYERS - _gathers(p), kept)
    assert (report.kept, report.repeated, _gathers(made)) == (kept, _LAYERS, limit)
    names = [value.name for node in made.nodes for value in node.results()]
    assert [n for n in range(_LAYERS) if f"g_{n}_weight" in names] == list(range(_LAYERS - kept))


def test_what_raises_the_peak_is_not_kept() -> None:
    program = _program()
    made, report = gather_once(program, _peak)
    assert 1 <= report.kept < _LAYERS
    assert _peak(made) == report.peak_bytes <= report.was_bytes == _peak(program)


def test_what_was_written_is_gathered_again() -> None:
    program = _program(writes=True)
    assert gather_once(program, _peak, 1 << 30)[0] is program


def test_only_the_group_that_ranks_agree_on_first_counts() -> None:
    _, report = gather_once(_program(other_group=True), _peak, 1 << 30)
    assert (report.kept, report.repeated) == (1, 1)
