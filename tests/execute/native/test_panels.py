"""Products by panels as machine code: within the error of any order of additions, in tiles of both sizes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.execute.native.panels import multiplies_panels, panel_call
from dovetail.execute.native.tile_text import NARROW, WIDE, Tile
from dovetail.ops.packed import ACTIVATIONS, applied
from dovetail.ops.panels import PACK_PANELS, PanelLinear
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")

TILES = [
    pytest.param(NARROW, id="narrow"),
    pytest.param(
        WIDE,
        id="wide",
        marks=pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="AVX2"),
    ),
]
_LARGEST_SLOPE = 1.2  # of an activation
_OWN_ERROR = 2e-6  # of an activation where |x| <= 20


def _check(tile: Tile, activation: str, rows: tuple[int, ...], inputs: int, outputs: int, *, has_bias: bool) -> None:
    x, weight = torch.randn(*rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
    bias = torch.randn(outputs) if has_bias else None
    found = panel_call(PanelLinear(activation), tile)(x, PACK_PANELS(weight), outputs, bias)  # type: ignore[arg-type]
    assert found.shape == (*rows, outputs)
    assert found.is_contiguous()
    exact = nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    sizes = x.abs().double() @ weight.abs().double().t() + (0 if bias is None else bias.abs().double())
    unit = torch.finfo(torch.float32).eps / 2
    bound = _LARGEST_SLOPE * (inputs + 2) * unit * sizes + (_OWN_ERROR if activation != "none" else 0)
    assert ((found.double() - applied(activation, exact)).abs() <= bound).all()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "has_bias"),
    rotated(
        [
            *product(
                [(1,), (2,), (5,), (11,), (12,), (13,), (25,), (2, 3), (96,), (97,), (200,)],
                [1, 3, 64, 65, 255, 256, 257, 600],
                [1, 8, 31, 32, 33, 64, 100],
                [True, False],
            )
        ],
        12,
    ),
)
def test_sizes(tile: Tile, rows: tuple[int, ...], inputs: int, outputs: int, has_bias: bool) -> None:
    _check(tile, "none", rows, inputs, outputs, has_bias=has_bias)


@pytest.mark.parametrize("tile", TILES)
def test_chunks_of_rows(tile: Tile) -> None:
    for rows in (95, 96, 97, 112, 113, 197, 208, 209, 305):
        _check(tile, "none", (rows,), 17, 40, has_bias=True)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("outputs", [64, 65, 95, 96, 255, 256, 257, 319, 550])
def test_one_row_by_several_panels(tile: Tile, outputs: int) -> None:
    for inputs, has_bias, activation in ((1, True, "none"), (63, False, "gelu"), (300, True, "relu6")):
        _check(tile, activation, (1,), inputs, outputs, has_bias=has_bias)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(tile: Tile, activation: str) -> None:
    _check(tile, activation, (7,), 300, 45, has_bias=True)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_numbers_that_are_special_become_what_eager_makes_of_them(tile: Tile, activation: str) -> None:
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 88.5, -88.5, 1e-30, -1e-30, 1e30, -1e30, 4.0, -6.0]
    x = torch.tensor(special)[:, None]
    weight = torch.eye(1)
    found = panel_call(PanelLinear(activation), tile)(x, PACK_PANELS(weight), 1, None)  # type: ignore[arg-type]
    expected = applied(activation, x.clone())
    if activation == "gelu":
        assert found[1] == torch.inf  # some of torch's kernels make NaN of it
        found[1] = expected[1]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 40])
def test_threads_give_the_same_bits(threads: int, rows: int) -> None:
    x, weight, bias = torch.randn(rows, 300), torch.randn(1000, 300), torch.randn(1000)
    call, panels = panel_call(PanelLinear("gelu")), PACK_PANELS(weight)
    former = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = call(x, panels, 1000, bias)  # type: ignore[arg-type]
        torch.set_num_threads(threads)
        assert torch.equal(call(x, panels, 1000, bias), expected)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(former)


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_operators() -> None:
    x, weight = torch.randn(3, 40), torch.randn(50, 40)
    with _Names() as mode:
        made = panel_call(PanelLinear("none"))(x, PACK_PANELS(weight), 50, None)  # type: ignore[arg-type]
    assert "mm" in mode.seen or "addmm" in mode.seen or "linear" in mode.seen
    torch.testing.assert_close(made, x @ weight.t())


def test_operands_that_lie_otherwise() -> None:
    weight = torch.randn(50, 40)
    call, panels = panel_call(PanelLinear("none")), PACK_PANELS(weight)
    for x in (torch.randn(40, 6).t(), torch.randn(6, 80)[:, ::2], torch.randn(1, 40).expand(6, 40), torch.randn(0, 40)):
        torch.testing.assert_close(call(x, panels, 50, None), x @ weight.t())  # type: ignore[arg-type]


def test_operands_that_do_not_fit() -> None:
    x, weight = torch.randn(3, 40), torch.randn(50, 40)
    call, panels = panel_call(PanelLinear("none")), PACK_PANELS(weight)
    for given in ((x, panels, 51, torch.randn(50)), (x, panels, 65, None), (x[:, 1:], panels, 50, None)):
        with pytest.raises(ValueError, match=r"multiplied by|a bias of"):
            call(*given)  # type: ignore[arg-type]
    bias = torch.randn(100)[::2]
    torch.testing.assert_close(call(x, panels, 50, bias), nn.functional.linear(x, weight, bias))  # type: ignore[arg-type]
    call(x, panels, 50, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiplied by"):
        call(x[:, 1:], panels, 50, None)  # type: ignore[arg-type]


# --- frozen programs --------------------------------------------------------------------------------------------------


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(300, 517), nn.GELU(), nn.Linear(517, 300, bias=False), nn.LayerNorm(300)).eval()


def _near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("executors", [("auto", "aten"), ("native", "aten"), ("aten",)])
def test_a_frozen_model(tmp_path: Path, executors: tuple[str, ...]) -> None:
    model, x = _model(), torch.randn(3, 300)
    frozen = dovetail.freeze(model, (x,), passes="fast", executors=executors)
    for rows in (1, 3, 17):
        x = torch.randn(rows, 300)
        _near(frozen(x), model(x))
    frozen.save(tmp_path / "a.dovetail")
    loaded = dovetail.load(tmp_path / "a.dovetail", executors=executors)
    assert torch.equal(loaded(x), frozen(x))
    _near(dovetail.load(tmp_path / "a.dovetail", executors=("aten",), prepack=False)(x), model(x))


def test_weights_are_held_once_and_come_back(tmp_path: Path) -> None:
    model, x = _model(), torch.randn(3, 300)
    frozen = dovetail.freeze(model, (x,), passes="fast", discard_originals=True)
    own = sum(weight.numel() for weight in _model().parameters()) * 4
    assert frozen.constant_bytes() <= own * 1.08  # columns of the last panels
    frozen.save(tmp_path / "a.dovetail")
    loaded = dovetail.load(tmp_path / "a.dovetail")
    assert torch.equal(loaded(x), frozen(x))


def test_other_weights() -> None:
    model, other, x = _model(), _model(), torch.randn(3, 300)
    frozen = dovetail.freeze(model, (x,), passes="fast")
    frozen.swap_weights(other.state_dict())
    _near(frozen(x), other(x))
