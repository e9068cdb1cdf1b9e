"""Products of 8-bit integers by panels as machine code: as close as their levels, in tiles of both sizes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.execute.native.int8_rows import int8_call, multiplies_int8_panels
from dovetail.execute.native.machine import has_dot_products, unavailable
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.tile_text import NARROW, WIDE, Tile
from dovetail.ops import prims
from dovetail.ops.packed import ACTIVATIONS, applied
from dovetail.ops.quantized import PACK_INT8_PANELS, int8_panel_linear
from dovetail.torch_compat.onednn_low_precision import multiplies_int8
from tests.rotation import rotated

needs_code = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")
needs_products = pytest.mark.skipif(not multiplies_int8_panels(), reason="no instructions for such products here")
TILES = [
    pytest.param(
        tile,
        id=name,
        marks=pytest.mark.skipif(bool(unavailable()) or not has_dot_products(tile.lanes), reason="no instructions"),
    )
    for name, tile in (("narrow", NARROW), ("wide", WIDE))
]
_LARGEST_SLOPE, _OWN_ERROR = 1.2, 2e-6  # of an activation


def _weights(weight: Tensor) -> tuple[Any, Any, Any]:
    scales: Any = prims.ROW_SCALES(weight)
    levels: Any = prims.QUANTIZE_WEIGHT(weight, scales)
    return levels, scales, prims.WEIGHT_SUMS(levels, scales)


def _check(tile: Tile, activation: str, x: Tensor, outputs: int, *, has_bias: bool) -> None:
    """The product of levels, exactly, but for the rounding of the last steps."""
    weight, bias = torch.randn(outputs, x.shape[-1]), torch.randn(outputs) if has_bias else None
    levels, scales, sums = _weights(weight)
    ranges: Any = prims.ROW_RANGES(x)
    q: Any = prims.QUANTIZE_ROWS(x, ranges)
    found = int8_call(int8_panel_linear(activation), tile)(q, PACK_INT8_PANELS(levels), ranges, scales, sums, bias)
    assert found.shape == (*x.shape[:-1], outputs)
    step, least = ranges.double().split(1, -1)
    parts = (
        step * (q.double() @ levels.double().t()) * scales,
        least * sums,
        torch.zeros(()) if bias is None else bias,
    )
    exact, sizes = sum(parts), sum(part.abs() for part in parts)
    bound = _LARGEST_SLOPE * 6 * 2**-24 * sizes + (_OWN_ERROR if activation != "none" else 0)
    assert ((found.double() - applied(activation, exact.clone())).abs() <= bound).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "has_bias"),
    rotated(
        [
            *product(
                [(1,), (2,), (5,), (11,), (12,), (13,), (25,), (2, 3), (96,), (97,), (200,)],
                [4, 8, 60, 256, 600],
                [1, 8, 31, 32, 33, 64, 100],
                [True, False],
            )
        ],
        24,
    ),
)
def test_sizes(tile: Tile, rows: tuple[int, ...], inputs: int, outputs: int, has_bias: bool) -> None:
    _check(tile, "none", torch.randn(*rows, inputs) * 3 + 1, outputs, has_bias=has_bias)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(tile: Tile, activation: str) -> None:
    _check(tile, activation, torch.randn(7, 300), 45, has_bias=True)


@pytest.mark.parametrize("tile", TILES)
def test_sums_of_the_largest_levels_are_exact(tile: Tile) -> None:
    x = torch.full((2, 4096), 255.0)
    x[:, 0] = 0  # so that a level is one
    weight = torch.full((3, 4096), 127.0)
    weight[1] = -127
    levels, scales, sums = _weights(weight)
    ranges: Any = prims.ROW_RANGES(x)
    call = int8_call(int8_panel_linear("none"), tile)
    found = call(prims.QUANTIZE_ROWS(x, ranges), PACK_INT8_PANELS(levels), ranges, scales, sums, None)
    assert torch.equal(found, (x.double() @ weight.double().t()).float())


@pytest.mark.parametrize("tile", TILES)
def test_rows_stand_alone_and_say_where_no_number_is(tile: Tile) -> None:
    x, (levels, scales, sums) = torch.randn(9, 64), _weights(torch.randn(40, 64))
    panels, call = PACK_INT8_PANELS(levels), int8_call(int8_panel_linear("relu"), tile)

    def made(x: Tensor) -> Tensor:
        ranges = int8_call(prims.ROW_RANGES)(x)
        found: Tensor = call(int8_call(prims.QUANTIZE_ROWS)(x, ranges), panels, ranges, scales, sums, None)
        return found

    clean = made(x)
    for row in range(9):
        assert torch.equal(clean[row], made(x[row : row + 1])[0])
    x[1, 7], x[3, 9], x[4, 0] = float("nan"), float("inf"), -float("inf")
    found = made(x)
    assert found[[1, 3, 4]].isnan().all()
    assert torch.equal(found[[0, 2, 5, 6, 7, 8]], clean[[0, 2, 5, 6, 7, 8]])


@needs_code
@pytest.mark.parametrize(
    "x",
    [
        *(torch.randn(rows, columns) * 5 for rows, columns in ((1, 1), (3, 7), (5, 16), (2, 33), (40, 384))),
        torch.randn(2, 3, 20) + 1000,
        torch.randn(6, 70) * torch.tensor([1e-38, 1e-3, 1.0, 1e3, 1e37, 0.0])[:, None],
        torch.full((3, 20), -2.5),
        torch.randn(20, 9).t(),
        torch.randn(0, 8),
    ],
    ids=lambda x: str(tuple(x.shape)),
)
def test_rounding_has_the_bits_of_the_primitives(x: Tensor) -> None:
    if not x.numel():
        assert int8_call(prims.QUANTIZE_ROWS)(x, torch.zeros(0, 2)).shape == x.shape
        return
    ranges: Any = prims.ROW_RANGES(x)
    assert torch.equal(int8_call(prims.ROW_RANGES)(x), ranges)
    assert torch.equal(int8_call(prims.QUANTIZE_ROWS)(x, ranges), prims.QUANTIZE_ROWS(x, ranges))  # type: ignore[arg-type]


@needs_code
def test_ranges_say_where_no_number_is() -> None:
    x = torch.randn(4, 37)
    x[0, 36], x[1, 3], x[2, 20] = float("nan"), float("inf"), -float("inf")
    found, expected = int8_call(prims.ROW_RANGES)(x), prims.ROW_RANGES(x)
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())  # type: ignore[attr-defined]
    assert found[:, 0].isfinite().tolist() == [False, False, False, True]


@needs_products
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_give_the_same_bits(threads: int) -> None:
    x, (levels, scales, sums) = torch.randn(300, 512), _weights(torch.randn(500, 512))
    former, found = torch.get_num_threads(), []
    panels, call = PACK_INT8_PANELS(levels), int8_call(int8_panel_linear("gelu"))
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            ranges = int8_call(prims.ROW_RANGES)(x)
            found.append(call(int8_call(prims.QUANTIZE_ROWS)(x, ranges), panels, ranges, scales, sums, None))
    finally:
        torch.set_num_threads(former)
    assert torch.equal(*found)


# --- frozen programs --------------------------------------------------------------------------------------------------

needs_int8 = pytest.mark.skipif(
    not (multiplies_int8() and multiplies_int8_panels()), reason="no exact products of 8-bit integers here"
)


def _model(inputs: int = 256) -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Linear(inputs, 600), nn.GELU(), nn.Linear(600, 256), nn.LayerNorm(256))
    return nn.Sequential(*layers).eval()


def _names(frozen: Any) -> list[str]:
    ((variant, *_),) = (method.variants for method in frozen._running.methods.values())
    return [getattr(node.target, "name", "") for node in variant.runner.graph.forward.program.nodes]


def _near(found: Tensor, expected: Tensor) -> None:
    expected = expected.detach()
    assert ((found - expected).norm() / expected.norm()).item() < 0.02


@needs_int8
@pytest.mark.parametrize("executors", [("auto", "aten"), ("native", "aten"), ("aten",)])
def test_a_frozen_model(tmp_path: Path, executors: tuple[str, ...]) -> None:
    model, x = _model(), torch.randn(3, 256)
    frozen = dovetail.freeze(model, (x,), passes="int8", executors=executors)
    for rows in (1, 3, 17):
        x = torch.randn(rows, 256)
        _near(frozen(x), model(x))
    frozen.save(tmp_path / "a.dovetail")
    loaded = dovetail.load(tmp_path / "a.dovetail", executors=executors)
    assert torch.equal(loaded(x), frozen(x))
    _near(dovetail.load(tmp_path / "a.dovetail", executors=("aten",), prepack=False)(x), model(x))
    assert ("int8_panel_linear" in _names(frozen)) == (executors != ("aten",))
    other = nn.Sequential(nn.Linear(256, 600), nn.GELU(), nn.Linear(600, 256), nn.LayerNorm(256)).eval()
    frozen.swap_weights(other.state_dict())
    _near(frozen(x), other(x))


@needs_int8
def test_a_network_is_one_call_that_gives_what_its_nodes_give() -> None:
    """But for a norm, which is a loop over rows where sizes are known."""
    model, x = _model(), torch.randn(5, 256)
    frozen: Any = dovetail.freeze(model, (x,), passes="int8", dynamic_shapes="static")
    symbolic = dovetail.freeze(model, (x,), passes="int8")
    ((variant,),) = (method.variants for method in frozen._running.methods.values())
    code = variant.runner.graph.forward
    (group,) = code.executors.groups.values()
    assert (group.first, group.last) == (0, len(code.program.nodes) - 1)
    torch.testing.assert_close(frozen(x), symbolic(x), rtol=1e-5, atol=1e-6)


@needs_int8
def test_inputs_that_are_no_groups_stay_with_onednn() -> None:
    model, x = _model(254), torch.randn(3, 254)
    frozen = dovetail.freeze(model, (x,), passes="int8", dynamic_shapes="static")
    assert "int8_linear_gelu" in _names(frozen)
    assert "int8_panel_linear" in _names(frozen)
    _near(frozen(x), model(x))


class _Count(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen += 1
        return func(*args, **(kwargs or {}))


@needs_int8
def test_modes_see_operators() -> None:
    model, x = _model(), torch.randn(3, 256)
    frozen = dovetail.freeze(model, (x,), passes="int8")
    with _Count() as mode:
        made = frozen(x)
    assert mode.seen > 4
    torch.testing.assert_close(made, frozen(x), rtol=1e-4, atol=1e-4)
