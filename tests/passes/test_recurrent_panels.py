"""Recurrent layers over panels: which ones, and what is left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.panels import multiplies_panels
from dovetail.passes.recurrent_panels import RecurrentReport


def _frozen(model: nn.Module, *args: Any, mode: bool = False, **options: Any) -> Any:
    return dovetail.freeze(model.train(mode), args, passes=["recurrent_panels"], dynamic_shapes="static", **options)


def _names(frozen: Any) -> list[str]:
    (variant,) = frozen._methods["forward"].variants
    return [str(getattr(node.target, "name", node.target)) for node in variant.guard.program.folded.program.nodes]


def _count(frozen: Any, kind: str) -> int:
    return _names(frozen).count(f"{kind}_layer")


class _Called(nn.Module):
    """The same layer twice, over what `how` makes of its weights."""

    def __init__(self, layer: nn.Module, how: str) -> None:
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x: Tensor) -> Any:
        out, state = self.layer(x)
        if self.how == "twice":
            out, state = self.layer(out, state)
        if self.how == "reads":
            out = out + self.layer.weight_hh_l0.sum()  # type: ignore[operator]
        return out


@pytest.mark.parametrize(
    ("kind", "options", "name", "layers"),
    [
        (nn.LSTM, {}, "lstm", 1),
        (nn.GRU, {"num_layers": 3, "bidirectional": True}, "gru", 3),
        (nn.RNN, {"num_layers": 2, "nonlinearity": "relu", "bias": False}, "rnn_relu", 2),
        (nn.RNN, {"batch_first": True, "dropout": 0.5, "num_layers": 2}, "rnn_tanh", 2),
    ],
)
def test_layers(kind: Any, options: dict[str, Any], name: str, layers: int) -> None:
    model, x = kind(32, 32, **options), torch.randn(5, 3, 32)
    frozen = _frozen(model, x)
    assert _count(frozen, name) == layers
    with torch.no_grad():
        expected = model(x)
    found = frozen(x)
    parts = [(found[0], expected[0])]
    lasts = [each if isinstance(each, tuple) else (each,) for each in (found[1], expected[1])]
    for mine, its in [*parts, *zip(*lasts, strict=True)]:
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=2e-6)
        assert mine.stride() == its.stride()
        assert mine.untyped_storage().data_ptr() == mine.data_ptr()


@pytest.mark.parametrize(
    ("model", "mode", "name"),
    [
        (nn.LSTM(32, 32, proj_size=8), False, "lstm"),
        (nn.GRU(32, 32, 2, dropout=0.5), True, "gru"),
        (nn.LSTM(32, 32, dtype=torch.float64), False, "lstm"),
        (nn.LSTM(32, 3), False, "lstm"),
        (_Called(nn.GRU(32, 32), "reads"), False, "gru"),
    ],
    ids=["projections", "dropout", "double", "small", "read"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_what_is_left(model: nn.Module, mode: bool, name: str) -> None:
    x = torch.randn(5, 3, 32, dtype=next(model.parameters()).dtype)
    frozen = _frozen(model, x, mode=mode)
    assert _count(frozen, name) == 0
    if not mode:
        with torch.no_grad():
            torch.testing.assert_close(frozen(x), model(x))


def test_a_layer_that_runs_twice_has_its_weights_once() -> None:
    model, x = _Called(nn.GRU(32, 32), "twice"), torch.randn(5, 3, 32)
    frozen = _frozen(model, x)
    assert _count(frozen, "gru") == 2
    assert _names(frozen).count("pack_panels") == 2
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=2e-6)


def test_views_of_results_lie_in_them() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(32, 32, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out, (h, _) = self.layer(x)
            return out[:, -1], h[0].mul_(2)

    model, x = Model(), torch.randn(5, 3, 32)
    frozen = _frozen(model, x)
    with torch.no_grad():
        for mine, its in zip(frozen(x), model(x), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=2e-6)
            assert mine.stride() == its.stride()


def test_a_report_says_what_was_done() -> None:
    report = RecurrentReport(("p", "q"), ("p", "q"), ("y",), (("z", "PROJECTIONS: it has some"),))
    assert str(report) == "2 weights in panels for 1 recurrent layers, left 1"


@pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")
def test_a_call_takes_no_more_memory_than_eager() -> None:
    model, x = nn.LSTM(64, 128, num_layers=2, bidirectional=True).eval(), torch.randn(50, 8, 64)
    frozen = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static")
    peaks = []
    with torch.no_grad():
        for call in (model, frozen):
            call(x)
            peaks.append(_peak_bytes(call, x))
    assert peaks[1] <= peaks[0]


def _peak_bytes(call: Any, x: Tensor) -> int:
    with torch.profiler.profile(profile_memory=True) as profile:
        call(x)
    held, peak = 0, 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
