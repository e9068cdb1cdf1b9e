"""Liveness: last uses, and the simulated peak against a brute-force simulation."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.analysis.liveness import PeakReport, last_uses, simulate_peak
from dovetail.ir.program import Node, Program, Stage, TensorMeta, Value, values_in
from dovetail.ir.sizes import symbol

aten = torch.ops.aten
_CPU = torch.device("cpu")


def _value(name: str, size: Any, storage: int) -> Value:
    return Value(name, TensorMeta((size,), (1,), 0, torch.uint8, _CPU, storage))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random programs of bytes: each node reads some values, and makes new ones or views of what it reads."""
    inputs = tuple(_value(f"x{i}", draw(st.integers(1, 9)), i) for i in range(draw(st.integers(0, 2))))
    values, nodes, storages = list(inputs), [], len(inputs)
    for index in range(draw(st.integers(0, 8))):
        operands = tuple(draw(st.lists(st.sampled_from(values), max_size=3))) if values else ()
        made = []
        for item in range(draw(st.integers(0, 2))):
            if operands and draw(st.booleans()):
                base = operands[0]
                made.append(_value(f"v{index}_{item}", base.tensor.shape[0], base.tensor.storage))
            else:
                made.append(_value(f"v{index}_{item}", draw(st.integers(1, 9)), storages))
                storages += 1
        nodes.append(Node(aten.cat.default, operands, outputs=tuple(made), unpack=True))
        values += made
    outputs = tuple(draw(st.lists(st.sampled_from(values), max_size=2))) if values else ()
    return Program("random", Stage.FUNCTIONAL, inputs, tuple(nodes), outputs)


def _brute_force(program: Program) -> int:
    """At each node, add up the storages that are held: made by now, and read by a node from here on, or returned."""
    outside = {v.tensor.storage for v in program.inputs}
    returned = {v.tensor.storage for v in values_in(program.outputs)}
    sizes = {v.tensor.storage: v.tensor.shape[0] for n in program.nodes for v in n.results()}
    peak = 0
    for here in range(len(program.nodes)):
        made = {v.tensor.storage for n in program.nodes[: here + 1] for v in n.results()} - outside
        wanted = set(returned) | {v.tensor.storage for v in program.nodes[here].results()}
        for later in program.nodes[here:]:
            wanted |= {v.tensor.storage for v in later.operands()}
        # a view made later keeps its storage; it reads its base, so that is counted above
        peak = max(peak, sum(sizes[s] for s in made & wanted))  # type: ignore[misc]
    return peak


@settings(max_examples=300, deadline=None)
@given(programs())
def test_the_peak_is_that_of_a_brute_force_simulation(program: Program) -> None:
    report = simulate_peak(program)
    assert report.peak_bytes == _brute_force(program)
    assert (report.node == -1) == (report.peak_bytes == 0)


@settings(max_examples=200, deadline=None)
@given(programs())
def test_each_value_dies_once_after_its_last_reader(program: Program) -> None:
    dying = [(value, index) for index, values in last_uses(program).items() for value in values]
    made = [*program.inputs, *(v for n in program.nodes for v in n.results())]
    returned = set(values_in(program.outputs))
    assert sorted(v.name for v, _ in dying) == sorted(v.name for v in made if v not in returned)
    for value, index in dying:
        readers = [i for i, n in enumerate(program.nodes) if value in (*n.operands(), *n.results())]
        assert index == max(readers, default=-1)


def test_the_place_of_the_peak() -> None:
    x, a, b, c = (_value(name, size, i) for i, (name, size) in enumerate((("x", 100), ("a", 10), ("b", 30), ("c", 5))))
    nodes = (
        Node(aten.sin.default, (x,), outputs=(a,)),
        Node(aten.cat.default, ([a, x],), outputs=(b,)),
        Node(aten.sum.default, (b,), outputs=(c,)),
    )
    program = Program("f", Stage.FUNCTIONAL, (x,), nodes, (c,))
    assert simulate_peak(program) == PeakReport(40, 1)
    assert last_uses(program) == {1: (x, a), 2: (b,)}


def test_sizes_are_given_by_hints() -> None:
    a = _value("a", symbol("s0"), 0)
    program = Program("f", Stage.FUNCTIONAL, (), (Node(aten.ones.default, ([symbol("s0")],), outputs=(a,)),), (a,))
    assert simulate_peak(program, {"s0": 7}).peak_bytes == 7
    assert simulate_peak(program).peak_bytes == 1


def test_an_expanded_value_counts_the_bytes_it_has() -> None:
    wide = Value("w", TensorMeta((5, 3), (0, 1), 0, torch.float32, _CPU, 0))
    program = Program("f", Stage.FUNCTIONAL, (), (Node(aten.ones.default, ([3],), outputs=(wide,)),), (wide,))
    assert simulate_peak(program).peak_bytes == 12
