"""Recurrent layers over panels as machine code: as exact as torch's, in tiles of both sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.recurrent_rows import recurrent_call
from dovetail.execute.native.tile_text import Tile
from dovetail.ops.panels import GATES, PACK_PANELS, RecurrentLayer, states_of
from tests.execute.native.test_panels import TILES, _Names
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")

_UNIT = 2.0**-24


class _Case:
    """Operands of a layer."""

    def __init__(self, kind: str, sizes: tuple[int, int, int], hidden: int, directions: int, *, has_bias: bool) -> None:
        steps, batch, inputs = sizes
        outputs = GATES[kind] * hidden
        self.kind, self.x = kind, torch.randn(steps, batch, inputs)
        widths = [inputs, hidden] * directions
        self.weights = [torch.randn(outputs, width) / width**0.5 for width in widths]
        self.biases = [torch.randn(outputs) for _ in widths] if has_bias else []
        self.states = [torch.randn(directions, batch, hidden) for _ in range(states_of(kind))]

    def run(self, tile: Tile | None = None) -> tuple[Tensor, ...]:
        """By machine code."""
        panels: Any = [PACK_PANELS(weight) for weight in self.weights]
        return recurrent_call(RecurrentLayer(self.kind), tile)(self.x, panels, self.biases, self.states)

    def by_torch(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """By torch's operator."""

        def all_to(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [tensor.to(dtype) for tensor in tensors]

        weights, biases, states = map(all_to, (self.weights, self.biases, self.states))
        flat = [each for at in range(0, len(weights), 2) for each in (*weights[at : at + 2], *biases[at : at + 2])]
        held: Any = states if self.kind == "lstm" else states[0]
        operator = getattr(torch.ops.aten, self.kind).input
        made: tuple[Tensor, ...] = operator(
            self.x.to(dtype), held, flat, bool(biases), 1, 0.0, False, len(states[0]) > 1, False
        )
        return made


def _check(case: _Case, tile: Tile) -> None:
    found, eager, exact = case.run(tile), case.by_torch(), case.by_torch(torch.float64)
    assert len(found) == len(exact)
    for mine, its, wanted in zip(found, eager, exact, strict=True):
        assert mine.shape == wanted.shape
        assert mine.is_contiguous()
        bound = 4 * (its.double() - wanted).abs().max() + 8 * _UNIT * wanted.abs().max()
        assert (mine.double() - wanted).abs().max() <= bound


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("kind", "sizes", "hidden", "directions", "has_bias"),
    rotated(
        [
            *product(
                GATES,
                [
                    (1, 1, 1),
                    (7, 1, 40),
                    (65, 1, 300),
                    (130, 2, 17),
                    (3, 13, 64),
                    (5, 70, 33),
                    (12, 12, 129),
                    (40, 5, 8),
                ],
                [1, 16, 31, 48, 64, 130],
                [1, 2],
                [True, False],
            )
        ],
        24,
    ),
)
def test_sizes(
    tile: Tile, kind: str, sizes: tuple[int, int, int], hidden: int, directions: int, has_bias: bool
) -> None:
    _check(_Case(kind, sizes, hidden, directions, has_bias=has_bias), tile)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("kind", GATES)
def test_sequences_that_lie_otherwise(tile: Tile, kind: str) -> None:
    case = _Case(kind, (9, 6, 20), 48, 2, has_bias=True)
    for x in (
        torch.randn(6, 9, 20).transpose(0, 1),
        torch.randn(9, 6, 40)[..., 5:25],
        torch.randn(18, 6, 20)[::2],
        torch.randn(9, 6, 40)[..., ::2],
        torch.randn(9, 1, 20).expand(9, 6, 20),
        torch.randn(20, 9, 6).permute(1, 2, 0),
    ):
        case.x = x
        _check(case, tile)
    case.states = [torch.randn(2, 1, 48).expand(2, 6, 48) for _ in case.states]
    _check(case, tile)


@pytest.mark.parametrize("kind", GATES)
def test_numbers_that_are_special_become_what_eager_makes_of_them(kind: str) -> None:
    case = _Case(kind, (4, 7, 16), 32, 1, has_bias=True)
    for row, number in enumerate((float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 90.0, 1e-30)):
        case.x[1, row, 3] = number
    for mine, its in zip(case.run(), case.by_torch(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_threads_give_the_same_bits(kind: str, batch: int) -> None:
    case, former = _Case(kind, (20, batch, 64), 128, 2, has_bias=True), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(case.run())
    finally:
        torch.set_num_threads(former)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def test_a_row_does_not_depend_on_others() -> None:
    case = _Case("lstm", (11, 14, 40), 64, 1, has_bias=True)
    out = case.run()[0]
    case.x, case.states = case.x[:, 3:4], [state[:, 3:4] for state in case.states]
    assert torch.equal(case.run()[0], out[:, 3:4])


def test_modes_see_operators() -> None:
    case = _Case("gru", (3, 2, 8), 32, 1, has_bias=True)
    with _Names() as mode:
        made = case.run()
    assert mode.seen
    torch.testing.assert_close(made[0], case.by_torch()[0])


def test_operands_that_do_not_fit() -> None:
    case = _Case("lstm", (3, 2, 40), 32, 2, has_bias=True)
    call: Any = recurrent_call(RecurrentLayer("lstm"))
    panels: Any = [PACK_PANELS(weight) for weight in case.weights]
    x, biases, states = case.x, case.biases, case.states
    for _ in range(2):  # before and after a call that fits
        for given in (
            (x[..., 1:], panels, biases, states),
            (x[:, :1], panels, biases, states),
            (x[0], panels, biases, states),
            (x, panels[:2], biases, states),
            (x, panels, biases[:2], states),
            (x, panels, biases, states[:1]),
            (x, panels, biases, [states[0], states[1][:, :, 1:]]),
            (x.double(), panels, biases, states),
            (x, [panels[1], *panels[1:]], biases, states),
        ):
            with pytest.raises(ValueError, match=r"does not fit|does not have|has no|are of float32"):
                call(*given)
        call(x, panels, biases, states)
    with pytest.raises(RuntimeError, match="sequence length"):  # as torch says
        call(x[:0], panels, biases, states)


# --- frozen programs --------------------------------------------------------------------------------------------------


class _Tagger(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layers = kind(40, 64, num_layers=2, **options)
        self.head = nn.Linear(64 * (2 if self.layers.bidirectional else 1), 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.layers(x)[0])
        return made


@pytest.mark.parametrize("executors", [("auto", "aten"), ("native", "aten"), ("aten",)])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.LSTM, {"bidirectional": True, "batch_first": True}), (nn.GRU, {}), (nn.RNN, {"bias": False})],
    ids=["lstm", "gru", "rnn"],
)
def test_a_frozen_model(tmp_path: Any, executors: tuple[str, ...], kind: Any, options: dict[str, Any]) -> None:
    model = _Tagger(kind, **options).eval()
    shapes = {"x": {0: "first", 1: "second"}}
    x = torch.randn(3, 6, 40)
    frozen = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes=shapes, executors=executors)
    static = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static", executors=executors)
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail", executors=executors)
    plain = dovetail.load(tmp_path / "model.dovetail", executors=executors, prepack=False)
    with torch.no_grad():
        for shape in ((3, 6, 40), (9, 2, 40), (1, 4, 40), (4, 1, 40)):
            x = torch.randn(shape)
            for program in (frozen, loaded, plain, *([static] if shape == (3, 6, 40) else [])):
                torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=2e-6)
        again = _Tagger(kind, **options).eval()
        loaded.swap_weights(again.state_dict())
        torch.testing.assert_close(loaded(x), again(x), rtol=1e-5, atol=2e-6)


def test_a_layer_in_one_call() -> None:
    model, x = _Tagger(nn.LSTM, bidirectional=True).eval(), torch.randn(9, 1, 40)
    frozen = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static")
    ((variant,),) = (method.variants for method in frozen._running.methods.values())  # type: ignore[attr-defined]
    code = variant.runner.graph.forward
    inside = {at for group in code.executors.groups.values() for at in range(group.first, group.last + 1)}
    layers = [
        at for at, node in enumerate(code.program.nodes) if isinstance(getattr(node.target, "run", 0), RecurrentLayer)
    ]
    assert len(layers) == 2
    assert inside & set(layers)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(9, 1, 40)
            torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind: Any, bias: bool) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(24, 64, bias=bias)

        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            state: Any = (h, h * 2) if kind is nn.LSTMCell else h
            for step in x:
                state = self.cell(step, state)
            return state[0] + state[1] if kind is nn.LSTMCell else state

    model, x, h = Steps().eval(), torch.randn(3, 5, 24), torch.randn(5, 64)
    frozen = dovetail.freeze(model, (x, h), passes="fast", dynamic_shapes="static")
    texts = [str(getattr(node.target, "name", "")) for node in _nodes(frozen)]
    assert sum("_layer" in text for text in texts) == 3
    with torch.no_grad():
        torch.testing.assert_close(frozen(x, h), model(x, h), rtol=1e-5, atol=2e-6)


def _nodes(frozen: Any) -> list[Any]:
    return [
        node for variant in frozen._methods["forward"].variants for node in variant.guard.program.folded.program.nodes
    ]
