"""Few small nodes run one by one, for a call of machine code has a price."""

from __future__ import annotations

import pytest
import torch

import dovetail
from dovetail.execute.native.costs import LARGE
from tests.execute.native.programs import aten, calls_counted, compiled
from tests.execute.native.segments import Segment

pytest.importorskip("llvmlite")


@pytest.mark.usefixtures("real_costs")
@pytest.mark.parametrize("elements", [16, LARGE])
def test_two_nodes_pay(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft = Segment()
    x = draft.input(torch.randn(elements))
    made = draft.call(aten.add.Tensor, draft.call(aten.add.Tensor, x, x), x)
    program = draft.program([made])
    assert torch.equal(compiled(program)(draft.arguments())[0], compiled(program, native=False)(draft.arguments())[0])
    assert answers == [0]


@pytest.mark.usefixtures("real_costs")
def test_a_view_of_a_part_that_does_not_pay_runs() -> None:
    """What is not a cluster in the end reads no view that only clusters would know."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, 1)
        turned = w.t()
        return torch.relu(first @ turned) + torch.relu(second @ turned)

    x, w = torch.randn(4, 16), torch.randn(8, 8)
    with torch.no_grad():
        assert torch.equal(dovetail.compile(function)(x, w), function(x, w))
