"""Primitives of products of 8-bit integers: how far they are from products of real numbers, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.artifact.target_text import read_target, target_text
from dovetail.ops import packed, packing, prims, quantized
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.fakes import new_fake_mode
from dovetail.torch_compat.onednn_low_precision import multiplies_int8

needs_int8 = pytest.mark.skipif(not multiplies_int8(), reason="this processor has no exact products of 8-bit integers")


def _weights(weight: Tensor) -> tuple[Any, Any, Any]:
    scales: Any = prims.ROW_SCALES(weight)
    levels: Any = prims.QUANTIZE_WEIGHT(weight, scales)
    return levels, scales, prims.WEIGHT_SUMS(levels, scales)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none", *, pack: bool = True) -> Any:
    levels, scales, sums = _weights(weight)
    ranges: Any = prims.ROW_RANGES(x)
    held = prims.PACK_INT8(levels, x.shape[0]) if pack else levels
    rounded = prims.QUANTIZE_ROWS(x, ranges)
    return prims.int8_linear(activation)(rounded, held, ranges, scales, sums, bias)


def _bound(x: Tensor, weight: Tensor) -> Tensor:
    """How far a product may be from the exact one: half a level for each operand, and the rounding of sums."""
    step = (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)).double() / 255
    scale = weight.abs().amax(1).double() / 127
    size = x.double().abs() + step
    sums = size.sum(1, keepdim=True)
    return step / 2 * weight.double().abs().sum(1) + scale / 2 * sums + 1e-5 * (size @ weight.double().abs().t()) + 1e-9


CASES = {
    "normal": lambda: torch.randn(5, 70),
    "far from zero": lambda: torch.randn(5, 70) + 40,
    "very far from zero": lambda: 1000 + torch.randn(5, 70) / 1000,
    "rows of other sizes": lambda: torch.randn(6, 70) * torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6, 0.0])[:, None],
    "many rows": lambda: torch.randn(2000, 70),
    "one row": lambda: torch.randn(1, 70),
    "no row": lambda: torch.randn(0, 70),
    "equal elements": lambda: torch.full((3, 70), -2.5),
    "zeros": lambda: torch.zeros(3, 70),
    "by columns": lambda: torch.randn(70, 9).t(),
}


@needs_int8
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_as_close_as_its_levels(case: str, bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = CASES[case](), torch.randn(48, 70) * torch.rand(48, 1)
    added = torch.randn(48) if bias else None
    found = _product(x, weight, added)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if added is None else added.double())
    assert found.dtype is torch.float32
    assert found.stride() == (48, 1)
    assert ((found - exact).abs() <= _bound(x, weight) + 1e-6 * exact.abs()).all()
    assert torch.equal(found, _product(x, weight, added, pack=False))


@needs_int8
def test_rows_do_not_depend_on_others() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(9, 64), torch.randn(32, 64), torch.randn(32)
    x[3] *= 1000
    whole = _product(x, weight, bias)
    for row in range(9):
        assert torch.equal(whole[row], _product(x[row : row + 1], weight, bias)[0])


@needs_int8
def test_rows_that_are_not_finite_give_no_number_and_leave_others_alone() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64), torch.randn(32, 64)
    clean = _product(x, weight, None)
    x[1, 7], x[3, 9], x[4, 0] = float("nan"), float("inf"), float("-inf")
    found = _product(x, weight, None)
    assert not found[[1, 3, 4]].isfinite().any()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


@needs_int8
def test_sums_of_the_largest_levels_are_exact() -> None:
    inner = 4096
    x = torch.full((2, inner), 255.0)
    x[:, 0] = 0  # so that a level is one
    weight = torch.full((3, inner), 127.0)
    weight[1] = -127
    assert torch.equal(_product(x, weight, None), (x.double() @ weight.double().t()).float())


@needs_int8
@pytest.mark.parametrize("activation", sorted(packed.ACTIVATIONS))
def test_activations(activation: str) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3000, 24) * 3, torch.randn(40, 24), torch.randn(40)
    plain = _product(x, weight, bias)
    found = _product(x, weight, bias, activation)
    torch.testing.assert_close(found, packed.applied(activation, plain.clone()), rtol=1e-6, atol=1e-7)


def test_as_fakes_and_as_text() -> None:
    mode = new_fake_mode()
    x, weight = torch.randn(6, 20).t().contiguous().t(), torch.randn(8, 20)
    with mode:
        fakes = [mode.from_tensor(tensor) for tensor in (x, weight)]
        for pack in (True, False):
            made = _product(fakes[0], fakes[1], None, pack=pack)
            assert (made.shape, made.dtype, made.stride()) == ((6, 8), torch.float32, (8, 1))
    metas = [tensor.to("meta") for tensor in (x, weight)]
    for pack in (True, False):  # what descriptions in files are held against, without fakes of Dynamo's
        described = _product(metas[0], metas[1], None, pack=pack)
        assert (described.shape, described.dtype, described.stride()) == ((6, 8), torch.float32, (8, 1))
    names = (prims.ROW_RANGES, prims.ROW_SCALES, prims.QUANTIZE_ROWS, prims.QUANTIZE_WEIGHT, prims.WEIGHT_SUMS)
    for prim in (*names, prims.PACK_INT8, prims.int8_linear("gelu"), prims.int8_linear("none")):
        assert read_target(target_text(prim)) is prim
        assert facts_of(prim).is_pure
    assert packing.is_packing(prims.PACK_INT8)
    assert not packing.unpacks(prims.PACK_INT8)
    assert packing.takes_packed(prims.int8_linear("none"))
    assert quantized.computes_in_int8(prims.int8_linear("none"))
    assert not quantized.computes_in_int8(prims.packed_linear("none"))
    with pytest.raises(ValueError, match="no activation 'swish'"):
        prims.int8_linear("swish")


@needs_int8
def test_operands_that_do_not_fit_are_refused() -> None:
    """A file may say anything; the kernel reads as many scales as the weight has rows."""
    x, weight = torch.randn(3, 16), torch.randn(8, 16)
    levels, scales, sums = _weights(weight)
    ranges: Any = prims.ROW_RANGES(x)
    rounded: Any = prims.QUANTIZE_ROWS(x, ranges)
    run: Any = prims.int8_linear("none")
    for bad in (
        (rounded[:, :8], levels, ranges, scales, sums),
        (rounded, levels, ranges, scales[:4], sums),
        (rounded, levels[:4], ranges, scales, sums),
        (x, levels, ranges, scales, sums),
        (rounded, weight, ranges, scales, sums),
        (rounded, levels, ranges, scales.double(), sums),
        (rounded[0, 0], levels, ranges, scales, sums),
    ):
        for weight_of in (bad[1], prims.PACK_INT8(levels, 3)):
            if bad[1] is not levels and weight_of is not bad[1]:
                continue
            with pytest.raises(ValueError, match=r"8-bit|does not take"):
                run(bad[0], weight_of, *bad[2:])
    with pytest.raises(ValueError, match="are not packed"):
        prims.PACK_INT8(weight, 3)
