"""Primitives of products of 8-bit integers by panels: the weight that they hold, what they give, what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.ops import packing, prims
from dovetail.ops.facts import facts_of
from dovetail.ops.quantized import PACK_INT8_PANELS, int8_panel_linear, plain_levels
from dovetail.torch_compat.fakes import new_fake_mode
from dovetail.torch_compat.onednn_low_precision import multiplies_int8


@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("inputs", [4, 12, 64])
def test_panels_hold_the_weight(outputs: int, inputs: int) -> None:
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    panels: Any = PACK_INT8_PANELS(weight)
    assert panels.shape == (-(-outputs // 32), inputs // 4, 32, 4)
    assert torch.equal(plain_levels(panels, outputs), weight)
    with new_fake_mode() as mode:
        fake: Any = PACK_INT8_PANELS(mode.from_tensor(weight))
    assert (fake.shape, fake.dtype, fake.stride()) == (panels.shape, panels.dtype, panels.stride())


def test_what_is_not_laid_out() -> None:
    for weight in (torch.zeros(8, 6, dtype=torch.int8), torch.zeros(8, 8)):
        with pytest.raises(ValueError, match="not laid out in panels of int8"):
            PACK_INT8_PANELS(weight)


def _operands(rows: tuple[int, ...] = (3,), inputs: int = 16, outputs: int = 8) -> list[Any]:
    x, weight = torch.randn(*rows, inputs), torch.randn(outputs, inputs)
    scales: Any = prims.ROW_SCALES(weight)
    levels: Any = prims.QUANTIZE_WEIGHT(weight, scales)
    ranges: Any = prims.ROW_RANGES(x)
    few = PACK_INT8_PANELS(levels)
    return [
        prims.QUANTIZE_ROWS(x, ranges),
        few,
        ranges,
        scales,
        prims.WEIGHT_SUMS(levels, scales),
        torch.randn(outputs),
    ]


@pytest.mark.skipif(not multiplies_int8(), reason="this processor has no exact products of 8-bit integers")
def test_the_primitive_runs_by_itself() -> None:
    for rows in ((3,), (2, 5)):
        q, few, *rest = _operands(rows)
        plain = plain_levels(few, 8)
        for activation in ("none", "gelu", "tanh"):
            found: Any = int8_panel_linear(activation)(q, few, *rest)
            assert torch.equal(found, prims.int8_linear(activation)(q, plain, *rest))  # type: ignore[arg-type]


def test_operands_that_do_not_fit_are_refused() -> None:
    q, few, ranges, scales, sums, bias = _operands()
    run: Any = int8_panel_linear("none")
    for bad in (
        (q[:, :8], few, ranges, scales, sums, bias),
        (q.float(), few, ranges, scales, sums, bias),
        (q, few.float(), ranges, scales, sums, bias),
        (q, few, ranges[:2], scales, sums, bias),
        (q, few, ranges, scales[:4], sums, bias),
        (q, few, ranges, scales, sums.double(), bias),
        (q, few, ranges, scales, sums, bias[:3]),
    ):
        with pytest.raises(ValueError, match=r"8-bit integers do not take|not multiplied by|takes as many"):
            run(*bad)


def test_what_is_known_of_them() -> None:
    target = int8_panel_linear("gelu")
    assert facts_of(target).is_pure
    assert packing.is_packing(PACK_INT8_PANELS)
    assert not packing.unpacks(PACK_INT8_PANELS)
    assert packing.takes_packed(target)
    assert packing.reads_panels(target)
    assert packing.rounds_rows(prims.ROW_RANGES)
    assert not packing.rounds_rows(target)
    with pytest.raises(ValueError, match="no activation 'swish'"):
        int8_panel_linear("swish")
