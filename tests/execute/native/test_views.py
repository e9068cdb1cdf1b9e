"""Views that only clusters read: addresses, without a call; and what happens where the nodes run one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

import dovetail
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Value
from tests.execute.native.programs import aten, calls_counted, compiled, outcome
from tests.execute.native.segments import Segment

pytest.importorskip("llvmlite")


def _half(draft: Segment, x: Value, weight: Value) -> Value:
    return draft.call(aten.relu_.default, draft.call(aten.mm.default, x, weight))


def _two_halves() -> tuple[Segment, list[Value]]:
    """Two clusters, with a node of eager's between them, that read one weight as three views of it."""
    draft = Segment()
    x, weight = draft.input(torch.randn(6, 5)), draft.input(torch.randn(4, 5))
    turned = draft.call(aten.t.default, weight)
    first = _half(draft, x, turned)
    sorted_ = draft.call(aten.flip.default, first, [1])
    again = draft.call(aten.t.default, turned)
    second = _half(draft, sorted_, again)
    return draft, [second, *draft.inputs]


def _as_eager(draft: Segment, outputs: list[Value]) -> Any:
    """The code, which gives the same as eager's operators, by itself and node by node."""
    program = draft.program(outputs)
    code, plain = compiled(program), compiled(program, native=False)
    assert outcome(code, draft.arguments()) == outcome(plain, draft.arguments())
    with BaseTorchFunctionMode():
        assert outcome(code, draft.arguments()) == outcome(plain, draft.arguments())
    return code


def _main_path(source: str) -> str:
    """The lines that run where all clusters do."""
    lines, kept, skipping = source.splitlines(), [], False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        skipping = (skipping and indent > 4) or line.strip() == "else:"
        kept += [] if skipping else [line]
    return "\n".join(kept)


def test_views_between_clusters_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    code = _as_eager(*_two_halves())
    assert answers == [0, 0]
    assert ".t()" not in _main_path(code.source)
    assert ".t()" in code.source


def test_what_a_view_shows_lives_as_long_as_it_is_read() -> None:
    """The storage dies where the view would have died, and not later."""
    draft = Segment()
    x, weight = draft.input(torch.randn(6, 5)), draft.input(torch.randn(40, 50))
    made = draft.call(aten.mul.Tensor, weight, 2.0)
    draft.call(aten.neg_.default, made)
    part = draft.call(aten.slice.Tensor, made, 0, 2, 7)
    few = draft.call(aten.slice.Tensor, part, 1, 3, 8)
    flipped = draft.call(aten.flip.default, x, [1])
    second = draft.call(aten.relu_.default, draft.call(aten.mm.default, flipped, few))
    large = draft.call(aten.flip.default, draft.call(aten.flip.default, weight, [0]), [1])
    outputs = [second, large, x, weight]
    code = _as_eager(draft, outputs)
    assert "slice" not in _main_path(code.source)
    program = draft.program(outputs)
    peaks = [measure_peak(each, draft.arguments()).peak_bytes for each in (code, compiled(program, native=False))]
    assert peaks[0] <= peaks[1]


def test_views_that_others_read_exist() -> None:
    """One is read by eager's operators, one is returned, and one is written to, which is returned as well."""
    draft = Segment()
    x, weight = draft.input(torch.randn(6, 5)), draft.input(torch.randn(4, 5))
    turned = draft.call(aten.t.default, weight)
    first = _half(draft, x, turned)
    part = draft.call(aten.slice.Tensor, first, 0, 0, 3)
    flipped = draft.call(aten.flip.default, turned, [0])
    written = draft.call(aten.neg_.default, part)
    second = _half(draft, draft.call(aten.t.default, flipped), flipped)
    shown = draft.call(aten.select.int, second, 0, 1)
    code = _as_eager(draft, [written, shown, *draft.inputs])
    assert ".t()" in _main_path(code.source)


def test_a_view_of_all_of_a_result_is_the_result() -> None:
    """As eager, whose gradients are no views: turned round twice, and nothing else of the memory is returned."""
    draft = Segment()
    x, y = draft.input(torch.randn(6, 5)), draft.input(torch.randn(5, 4))
    product = draft.call(aten.mm.default, x, y)
    draft.call(aten.mul_.Tensor, product, 2.0)
    turned = draft.call(aten.t.default, product)
    back = draft.call(aten.t.default, turned)
    draft.call(aten.neg_.default, y)
    code = _as_eager(draft, [back, x, y])
    assert ".t()" not in _main_path(code.source)
    (result, *_) = code(draft.arguments())
    assert not result._is_view()
    both = _as_eager(draft, [back, product, x, y])
    first, second, *_ = both(draft.arguments())
    assert first is not second


def test_inputs_that_shared_memory_once_are_read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program for a call in which they lie apart describes them as the recording did: on one storage."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        y.add_(x.reshape(-1))
        return y * y * 1

    def shared() -> tuple[Tensor, Tensor]:
        base = torch.arange(1.0, 4.0).requires_grad_() * 1
        return base[0:3], base

    def apart() -> tuple[Tensor, Tensor]:
        x, y = torch.arange(1.0, 6.0).requires_grad_() * 1, torch.arange(10.0, 13.0).requires_grad_() * 1
        return x.as_strided((3,), (1,), 2), y.as_strided((3,), (1,), 0)

    answers = calls_counted(monkeypatch)
    code = dovetail.compile(function)
    for make in (shared, apart, shared, apart):
        assert torch.equal(code(*make()), function(*make()))
    assert set(answers) == {0}


def test_nodes_on_two_inputs_at_one_place_that_is_written_are_left_to_aten() -> None:
    draft = Segment()
    whole = torch.randn(8)
    x, y = draft.input(whole[:4]), draft.input(whole[:4])
    draft.call(aten.mul_.Tensor, x, y)
    draft.call(aten.mul_.Tensor, x, y)
    code = compiled(draft.program([*draft.inputs]))
    assert "native_call" not in code.source
