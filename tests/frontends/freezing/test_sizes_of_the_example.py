"""Frozen programs for the sizes of the example, beside those for any: where passes for this machine were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.ir.fixed_sizes import with_sizes
from dovetail.ir.program import meta_symbols


class _Net(nn.Module):
    """Convolutions, pools, layers and views of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(32, 10)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        inner = self.norm(self.first(x)).relu()
        x = self.second(inner)
        if scale is not None:
            x = x * scale[:, None, None, None]
        pooled = x.mean((2, 3))
        self.calls.add_(1)
        return {"logits": self.head(pooled), "image": x[:, :4], "flat": inner.reshape(inner.shape[0], -1)}


def _names(frozen: Any, method: str = "forward") -> list[str]:
    return [variant.guard.program.folded.program.name for variant in frozen._running.methods[method].variants]


def _check(frozen: Any, model: nn.Module, images: int, *, with_scale: bool = True) -> None:
    x, scale = torch.randn(images, 3, 20, 20), torch.rand(images)
    given = (x, scale) if with_scale else (x,)
    before = model.calls.clone()  # type: ignore[operator]
    with torch.no_grad():
        wanted, found = model(*given), frozen(*given)
    model.calls.copy_(before)  # type: ignore[operator, arg-type]
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
        assert found[name].shape == tensor.shape


@pytest.mark.parametrize("executors", [("auto", "aten"), ("aten",)])
def test_calls_of_the_example_run_a_program_of_their_own(executors: tuple[str, ...], tmp_path: Path) -> None:
    model = _Net().eval()
    frozen: Any = dovetail.freeze(
        model, (torch.randn(4, 3, 20, 20), torch.rand(4)), passes="fast", executors=executors, on_stale="ignore"
    )
    assert _names(frozen)[0] == "forward_of_example"
    assert len(_names(frozen)) > 1
    program = frozen._running.methods["forward"].variants[0].guard.program.folded.program
    assert not any(symbol for value in program.values() for symbol in meta_symbols(value.meta))
    frozen.save(tmp_path / "net.dovetail")
    loaded: Any = dovetail.load(tmp_path / "net.dovetail", executors=executors)
    assert _names(loaded) == _names(frozen)
    for images in (4, 1, 7, 4, 2):
        _check(frozen, model, images)
        _check(loaded, model, images)
    x, scale = torch.randn(4, 3, 20, 20), torch.rand(4)
    assert all(torch.equal(a, b) for a, b in zip(frozen(x, scale).values(), loaded(x, scale).values(), strict=True))
    method = frozen._running.methods["forward"]
    for images, name in ((4, "forward_of_example"), (5, "forward"), (1, "forward_1")):
        assert method.name_for((torch.randn(images, 3, 20, 20), torch.rand(images)), {}) == name


@pytest.mark.parametrize(
    ("options", "images"),
    [({"passes": "bitwise"}, 4), ({"passes": "fast", "dynamic_shapes": "static"}, 4), ({"passes": "fast"}, 1)],
)
def test_others_have_no_such_program(options: dict[str, Any], images: int) -> None:
    model = _Net().eval()
    frozen: Any = dovetail.freeze(model, (torch.randn(images, 3, 20, 20),), **options)
    assert "forward_of_example" not in _names(frozen)
    _check(frozen, model, images, with_scale=False)


def test_state_that_they_write_is_one() -> None:
    model = _Net().eval()
    frozen: Any = dovetail.freeze(model, (torch.randn(3, 3, 20, 20),), passes="fast")
    for images in (3, 5, 3, 1):
        frozen(torch.randn(images, 3, 20, 20))
    assert frozen.state_dict()["calls"].item() == 4


def test_other_weights_reach_them() -> None:
    model = _Net().eval()
    frozen: Any = dovetail.freeze(model, (torch.randn(3, 3, 20, 20),), passes="fast", keep_sources="memory")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.01)
    frozen.refresh()
    for images in (3, 5, 1):
        _check(frozen, model, images, with_scale=False)


def test_symbols_without_numbers_are_refused() -> None:
    frozen: Any = dovetail.freeze(nn.Linear(3, 2), (torch.randn(4, 3),))
    program = frozen._running.methods["forward"].variants[0].guard.program.folded.program
    (symbol, *_) = [symbol for value in program.values() for symbol in meta_symbols(value.meta)]
    fixed = with_sizes(program, {symbol: 6})
    assert fixed.inputs[0].tensor.shape == (6, 3)
    assert [node.target for node in fixed.nodes] == [node.target for node in program.nodes]
    with pytest.raises(KeyError):
        with_sizes(program, {})
