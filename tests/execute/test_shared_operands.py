"""Calls whose kernels look at which operands share memory: what they take is what they take in their program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.execute.needs import Needs
from dovetail.execute.operator_calls import CallMaker
from dovetail.execute.shared_operands import Sharing, Span, scaled_offset, shared_operands
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ops.prims import in_grad_mode

aten = torch.ops.aten


def _value(name: str, tensor: Tensor, storage: int) -> Value:
    meta = TensorMeta(
        tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, storage
    )
    return Value(name, meta)


def _states(kind: str) -> tuple[Tensor, Tensor]:
    if kind == "one tensor":
        zeros = torch.zeros(3, 24)
        return zeros, zeros
    if kind == "two views":
        both = torch.zeros(50, 3, 24)
        return both[0], both[49]
    return torch.zeros(3, 24), torch.zeros(3, 24)


def _layer_and_backward(kind: str) -> tuple[list[Node], tuple[Any, ...]]:
    """A recurrent layer and its backward, as nodes, and the backward's operands. kind: how states share memory."""
    x, weights = torch.randn(5, 3, 8), (torch.randn(96, 8), torch.randn(96, 24), torch.randn(96), torch.randn(96))
    states = _states(kind)
    rest = (False, [], 2, 24, 1, True, False, True, True)
    with torch.enable_grad():
        made = aten.mkldnn_rnn_layer(x, *weights, *states, *rest)
    given = [_value(f"w{k}", one, k) for k, one in enumerate((x, *weights))]
    keys = [tensor.untyped_storage()._cdata for tensor in states]
    held = [_value(f"s{k}", one, 10 + keys.index(keys[k])) for k, one in enumerate(states)]
    held = [held[0], held[0]] if states[0] is states[1] else held
    outputs = [_value(f"y{k}", one, 20 + k) for k, one in enumerate(made)]
    outputs[3] = _value("work", made[3][:0], 23)
    layer = Node(
        in_grad_mode(aten.mkldnn_rnn_layer.default), (*given, *held, *rest), outputs=tuple(outputs), unpack=True
    )
    grad = torch.randn(5, 3, 24)
    tail = (None, None, False, 2, 24, 1, True, True, False, [], True)
    operands = (x, *weights, *states, *made[:3], grad, *tail, made[3])
    values = (*given, *held, *outputs[:3], _value("g", grad, 30), *tail, outputs[3])
    results = aten.mkldnn_rnn_layer_backward(*operands)
    grads = tuple(_value(f"d{k}", one, 40 + k) for k, one in enumerate(results))
    return [layer, Node(aten.mkldnn_rnn_layer_backward.default, values, outputs=grads, unpack=True)], operands


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="it is oneDNN's layer")
@pytest.mark.parametrize("kind", ["one tensor", "two views", "apart"])
def test_states_that_share_memory(kind: str) -> None:
    nodes, operands = _layer_and_backward(kind)
    needs = Needs({})
    needs.measure(nodes)
    report = measure_peak(aten.mkldnn_rnn_layer_backward, *operands)
    assert not needs.unknown
    assert needs.need_of(nodes[1]).scratch_bytes == report.peak_bytes - report.end_bytes


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="it is oneDNN's layer")
def test_states_that_lie_in_one_block() -> None:
    apart, together = _layer_and_backward("apart")[0], _layer_and_backward("one tensor")[0]
    states = frozenset(value.tensor.storage for value in apart[1].operands()[5:7])
    needs = [Needs({}), Needs({}, in_one=states), Needs({})]
    for one, nodes in zip(needs, (apart, apart, together), strict=True):
        one.measure(nodes)
    plain, placed, shared = (
        one.need_of(nodes[1]).scratch_bytes for one, nodes in zip(needs, (apart, apart, together), strict=True)
    )
    assert plain < placed == shared


@pytest.mark.parametrize("first_read", [True, False])
def test_results_that_nobody_reads_count_while_the_call_runs(first_read: bool) -> None:
    """Whichever call is met first: they are two."""
    values, places = torch.randn(6, 31 + first_read).sort()
    x = _value("x", values, 0)
    outputs = (_value("v", values, 1), _value("p", places, 2))
    both = Node(aten.sort.default, (x,), outputs=outputs, unpack=True)
    one = Node(aten.sort.default, (x,), outputs=(outputs[0], None), unpack=True)
    needs = Needs({})
    for node in (both, one) if first_read else (one, both):
        needs.measure([node])
    more = needs.need_of(one).scratch_bytes - needs.need_of(both).scratch_bytes
    assert more == places.nbytes


def test_where_operands_lie() -> None:
    whole = torch.zeros(40)
    a, b, c, d = (
        _value(name, view, 7)
        for name, view in zip("abcd", (whole[:8], whole[4:12], whole[30:34], whole[34:]), strict=True)
    )
    lone = _value("e", torch.zeros(4), 8)
    node = Node(aten.cat.default, ([d, c, lone, b, a, a],), outputs=(_value("y", whole, 9),))
    spans = {
        v: Span(v.tensor.storage, 4 * int(v.tensor.offset), 4 * int(v.tensor.offset) + 4 * int(v.tensor.shape[0]))
        for v in node.operands()
    }
    assert shared_operands(node, spans) == {
        a: Sharing(0, 0, 0),
        b: Sharing(0, 0, 16),
        c: Sharing(0, 1, 0),
        d: Sharing(0, 2, 0),
    }
    call = CallMaker({}, {}).call_of(node)
    assert call is not None
    made = call.operands()[0][0]
    smaller = call.scaled({8: 2}).operands()[0][0]
    assert smaller[3].data_ptr() - smaller[4].data_ptr() == 16  # as many numbers further
    places = [tensor.data_ptr() for tensor in made]
    storages = [tensor.untyped_storage()._cdata for tensor in made]
    assert len(set(storages)) == 2
    assert storages[2] not in (storages[:2] + storages[3:])
    assert places[3] - places[4] == 16
    assert places[4] == places[5]
    assert all(bool((tensor == 0.5).all()) for tensor in made)


@pytest.mark.parametrize(
    ("offset", "old", "new", "expected"),
    [
        (256, [(16, 768), (256, 1)], [(4, 768), (256, 1)], 256),  # a part of each row, with fewer rows
        (256, [(16, 768), (256, 1)], [(16, 384), (128, 1)], 128),  # with shorter rows
        (3 * 768, [(2, 768), (768, 1)], [(2, 96), (96, 1)], 3 * 96),  # some rows further
        (5, [(4, 0), (8, 1)], [(2, 0), (8, 1)], 5),
    ],
)
def test_offsets_at_other_sizes(
    offset: int, old: list[tuple[int, int]], new: list[tuple[int, int]], expected: int
) -> None:
    assert scaled_offset(offset, old, new) == expected
