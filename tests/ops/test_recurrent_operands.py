"""What recurrent layers trust their operands to be is looked at before they run on those of a file."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.errors import RefusedOperands
from dovetail.ops.preconditions import checked
from dovetail.ops.prims import over_parameters

_BAD: list[tuple[int, Any]] = [
    (0, lambda x: x[:0]),
    (0, lambda x: x[0]),
    (0, lambda x: x.double()),
    (1, lambda states: states[:1]),
    (1, lambda states: []),
    (1, lambda states: [states[0][:1], states[1]]),
    (1, lambda states: [states[0], states[1][..., :0]]),
    (2, lambda weights: weights[:-1]),
    (2, lambda weights: weights[::-1]),
    (4, lambda layers: 10**9),
    (4, lambda layers: -1),
    (7, lambda bidirectional: False),
    (8, lambda batch_first: True),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("form", [{}, {"bias": False}, {"proj_size": 2}, {"proj_size": 2, "bias": False}], ids=str)
def test_operands_are_those_of_a_layer(form: dict[str, Any], wraps: bool) -> None:
    op = torch.ops.aten.lstm.input
    run = checked(over_parameters(op) if wraps else op)
    assert run is not None
    layer = torch.nn.LSTM(4, 3, 2, bidirectional=True, **form)
    states = [torch.zeros(4, 2, form.get("proj_size", 3)), torch.zeros(4, 2, 3)]
    weights = [weight.detach() for weight in layer._flat_weights]
    good = [torch.randn(5, 2, 4), states, weights, form.get("bias", True), 2, 0.0, False, True, False]
    assert len(run(*good)) == 3
    for place, change in _BAD:
        with pytest.raises(RefusedOperands):
            run(*good[:place], change(good[place]), *good[place + 1 :])
    with pytest.raises(RefusedOperands, match="has dropout"):
        run(*good[:5], 0.5, True, *good[7:])
