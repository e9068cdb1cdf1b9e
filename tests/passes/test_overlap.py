"""Collectives start early and are waited for late, within the peak, and nothing touches what is under way."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.reads import is_view
from dovetail.ir.program import Node, Program, Value
from dovetail.ops import collectives as ops
from dovetail.ops.facts import written_values
from dovetail.passes.overlap import OverlapReport, overlap
from tests.harness.effect_operators import OPERATORS as checks
from tests.passes.programs import Builder, body
from tests.rotation import rotated

aten = torch.ops.aten
ROOM = 1 << 30


def _do(b: Builder, target: Any, *args: Any) -> None:
    b.nodes.append(Node(target, args, outputs=()))


def _lines(b: Builder, *outputs: Value, most: int = ROOM) -> list[str]:
    program = b.program(*outputs)
    made, report = overlap(program, {}, None, most)
    assert report.peak_bytes == simulate_peak(made).peak_bytes
    assert report.was_bytes == simulate_peak(program).peak_bytes
    _verify(program, made)
    lines = [line.replace("torch.ops.dovetail.", "").replace(".default", "") for line in body(made)]
    return [line.replace("_testing", "").split(" = ")[0] for line in lines[:-1]]


def _verify(before: Program, after: Program) -> None:
    """Nothing touches what is under way, and what has an order keeps it."""
    waits = {node.operands()[0]: at for at, node in enumerate(after.nodes) if node.target is ops.WAIT}
    for at, node in enumerate(after.nodes):
        if not ops.is_started(node):
            continue
        end = waits.pop(node.results()[0])
        written = {value.tensor.storage for value in written_values(node)}
        read = {value.tensor.storage for value in node.operands()} - written
        for other in after.nodes[at + 1 : end]:
            touched = {v.tensor.storage for v in other.operands() if v.is_tensor} if not is_view(other) else set()
            assert written.isdisjoint(touched)
            assert read.isdisjoint(value.tensor.storage for value in written_values(other))
    assert not waits
    collectives = [
        [ops.collective_of(node) for node in one.nodes if ops.collective_of(node)] for one in (before, after)
    ]
    assert collectives[0] == collectives[1]
    kept = [node for node in after.nodes if ops.collective_of(node) is None and node.target is not ops.WAIT]
    assert sorted(map(id, kept)) == sorted(id(node) for node in before.nodes if ops.collective_of(node) is None)
    _same_versions(before, after)


def _same_versions(before: Program, after: Program) -> None:
    """Each node reads what was written by the nodes by which it was before."""
    assert _reads(before) == _reads(after)


def _reads(program: Program) -> dict[Any, Any]:
    """For each node that is not a wait: who wrote each storage that it touches last."""
    last: dict[int, Any] = {}
    found: dict[Any, Any] = {}
    count = 0
    for node in program.nodes:
        if node.target is ops.WAIT:
            continue
        key: Any = id(node)
        if ops.collective_of(node) is not None:
            key = ("collective", count)
            count += 1
        operands = [value.tensor.storage for value in node.operands() if value.is_tensor]
        if not is_view(node):
            found[key] = tuple(last.get(storage) for storage in operands)
        written = [
            *written_values(node),
            *(v for v in node.results() if not is_view(node) and not ops.is_started(node)),
        ]
        for value in written:
            last[value.tensor.storage] = key
    return found


def test_updates_wait_until_computation_is_over() -> None:
    b = Builder("p", "q", "x")
    p, q, x = b.inputs
    for name, weight in (("g", p), ("h", q)):
        x = b.call(f"{name}_in", aten.mm.default, x, x)
        made = b.call(name, aten.sin.default, x)
        _do(b, ops.ALL_REDUCE, made, "SUM", "0")
        _do(b, aten.sub_.Tensor, weight, made)
    last = b.call("last", aten.cos.default, x)
    assert _lines(b, last) == [
        *("g_in", "g", "under_way_2", "h_in", "h", "under_way_7", "last"),
        *("wait_(under_way_2, [g], [], '0')", "wait_(under_way_7, [h], [], '0')"),
        *("sub_.Tensor(p, g)", "sub_.Tensor(q, h)"),
    ]


def test_nothing_is_written_before_a_collective_that_may_fail_where_there_is_room() -> None:
    b = Builder("p", "q", "x")
    for name, weight in (("g", b.inputs[0]), ("h", b.inputs[1])):
        made = b.call(name, aten.sin.default, b.inputs[2])
        _do(b, ops.ALL_REDUCE, made, "SUM", "0")
        _do(b, aten.sub_.Tensor, weight, made)
    early, late = (_lines(b, most=most) for most in (0, ROOM))
    assert early.index("sub_.Tensor(p, g)") < early.index("h"), "one gradient at a time"
    assert late[-2:] == ["sub_.Tensor(p, g)", "sub_.Tensor(q, h)"]


def _two_layers() -> tuple[Builder, Value]:
    """Weights are gathered before each layer."""
    b = Builder("p", "q", "x")
    hidden = b.inputs[2]
    for number, shard in enumerate(b.inputs[:2]):
        whole = b.call(f"whole_{number}", aten.empty.memory_format, [8], shape=(8,))
        _do(b, ops.GATHER_INTO, whole, shard, "0")
        hidden = b.call(f"layer_{number}", aten.dot.default, hidden, whole, shape=())
        hidden = b.call(f"sine_{number}", aten.sin.default, hidden, shape=())
    return b, hidden


def test_weights_are_gathered_ahead_where_there_is_room() -> None:
    b, hidden = _two_layers()
    waits = [
        f"wait_(under_way_{at}, [whole_{number}], [{shard}], '0')"
        for number, (at, shard) in enumerate([(1, "p"), (6, "q")])
    ]
    lines = _lines(b, hidden)
    assert lines[:5] == ["whole_0", "under_way_1", "whole_1", "under_way_6", waits[0]]
    assert lines.index(waits[1]) == lines.index("layer_1") - 1


def test_the_peak_is_kept() -> None:
    b, hidden = _two_layers()
    program = b.program(hidden)
    made, report = overlap(program, {}, None)
    assert simulate_peak(made).peak_bytes == simulate_peak(program).peak_bytes == report.peak_bytes
    assert "whole_1" not in _lines(b, hidden, most=0)[:3], "there is no room for it"


def test_what_is_waited_for_at_once_stays_one_operator() -> None:
    b = Builder("x")
    made = b.call("made", aten.sin.default, b.inputs[0])
    _do(b, ops.ALL_REDUCE, made, "SUM", "0")
    last = b.call("last", aten.cos.default, made)
    assert _lines(b, last) == ["made", "all_reduce_(made, 'SUM', '0')", "last"]


def test_what_is_sent_is_not_written_meanwhile() -> None:
    b = Builder("x", "y")
    x, y = b.inputs
    whole = b.call("whole", aten.empty.memory_format, [8], shape=(8,))
    _do(b, ops.GATHER_INTO, whole, x, "0")
    read = b.call("read", aten.cos.default, x)
    _do(b, aten.add_.Tensor, x, y)
    last = b.call("last", aten.sin.default, y)
    wait = "wait_(under_way_1, [whole], [x], '0')"
    assert _lines(b, whole, read, last) == ["whole", "under_way_1", "read", "last", wait, "add_.Tensor(x, y)"]


def test_effects_and_draws_keep_their_order_and_checks_come_before_writes() -> None:
    b = Builder("p", "x")
    p, x = b.inputs
    first = b.call("first", aten.bernoulli.p, x, 0.5)
    _do(b, ops.ALL_REDUCE, first, "SUM", "0")
    drawn = b.call("drawn", aten.bernoulli.p, first, 0.5)
    other = b.call("other", aten.rand.default, [4])
    _do(b, checks.note.default, other)
    _do(b, checks.demand.default, drawn)
    _do(b, aten.add_.Tensor, p, x)
    whole = b.call("whole", aten.empty.memory_format, [8], shape=(8,))
    _do(b, ops.GATHER_INTO, whole, x, "0")
    lines = _lines(b, whole)
    assert [line for line in lines if line in ("first", "drawn", "other")] == ["first", "drawn", "other"]
    order = ("note", "demand", "add_", "gather_into_")
    note, demand, write, gather = (next(at for at, line in enumerate(lines) if what in line) for what in order)
    assert note < demand < min(write, gather)


def test_a_program_without_collectives_is_kept() -> None:
    b = Builder("x")
    program = b.program(b.call("made", aten.sin.default, b.inputs[0]))
    assert overlap(program, {}, None, ROOM) == (program, OverlapReport())


def _random(seed: int) -> Program:
    choose = random.Random(seed)
    b = Builder("p", "q", "x", "y")
    values, groups = list(b.inputs), ("0", "1")
    for number in range(choose.randint(8, 40)):
        kind, value = choose.random(), choose.choice(values)
        if kind < 0.35:
            values.append(b.call(f"v{number}", aten.add.Tensor, value, choose.choice(values)))
        elif kind < 0.45:
            values.append(b.call(f"view{number}", aten.alias.default, value, view_of=value))
        elif kind < 0.6:
            _do(b, aten.mul_.Tensor, value, choose.choice(values))
        elif kind < 0.85:
            _do(b, ops.ALL_REDUCE, value, "SUM", choose.choice(groups))
        elif kind < 0.95:
            target, part = value, choose.choice(values)
            if target.tensor.storage != part.tensor.storage:
                _do(b, ops.BROADCAST, target, 0, choose.choice(groups))
                _do(b, ops.EXCHANGE, target, part, [], [], choose.choice(groups))
        else:
            _do(b, ops.BARRIER, "0")
    return b.program(*{id(value): value for value in choose.choices(values, k=3)}.values())


@pytest.mark.parametrize("block", rotated(list(range(20)), 4))
def test_random_programs_mean_the_same(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        program = _random(seed)
        for most in (-1, 64, ROOM):
            made, report = overlap(program, {}, None, most)
            _verify(program, made)
            peaks = [simulate_peak(one).peak_bytes for one in (made, program)]
            assert peaks == [report.peak_bytes, report.was_bytes] or not report.collectives, seed
            assert peaks[0] <= max(peaks[1], most), seed
