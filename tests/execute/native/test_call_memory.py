"""Memory that machine code takes is let go when a call ends, whatever of its results is read."""

from __future__ import annotations

import pytest
import torch

from dovetail.inspect.memory import measure_peak
from tests.execute.native.programs import aten, calls_counted, compiled, drawn_program
from tests.execute.native.segments import Segment, drawn_segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")


def test_what_only_unread_rows_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, draft = calls_counted(monkeypatch), Segment()
    x = draft.input(torch.randn(8, 16))
    kept = draft.call(aten.mul.Tensor, x, 2.0)
    summed = draft.call(aten.sum.dim_IntList, x, [0], True)
    draft.call(aten.mul.Tensor, kept, draft.call(aten.expand.default, summed, [8, -1]))
    code = compiled(draft.program([kept]))
    arguments = draft.arguments()
    report = measure_peak(lambda: code(list(arguments)))
    assert answers == [0]
    assert report.end_bytes == 8 * 16 * 4


@pytest.mark.parametrize("seed", rotated(range(200), of=20))
def test_nothing_is_left_behind(seed: int) -> None:
    draft, program = drawn_program(seed) if seed % 2 else drawn_segment(seed)
    arguments, code = draft.arguments(), compiled(program)
    assert measure_peak(lambda: len(code(list(arguments)))).end_bytes == 0
