"""Calls that look like an earlier one take a short way, and only then: each gives what the model gives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError, FrozenCallMismatch, StaleWeights


class _Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor, y: Tensor | None = None, times: int = 2, name: str = "tanh") -> Tensor:
        out = self.tied(self.layer(x) * times)
        out = out if y is None else out - y
        return out.tanh() if name == "tanh" else out


@pytest.fixture
def frozen() -> Any:
    return dovetail.freeze(_Mixed(), (torch.randn(2, 3), torch.randn(2, 3)), on_stale="ignore")


X, Y = torch.randn(2, 3), torch.randn(2, 3)
SPELLINGS: dict[str, Callable[[Any], Tensor]] = {
    "by position": lambda f: f(X, Y),
    "by name": lambda f: f(x=X, y=Y),
    "the other way round": lambda f: f(y=Y, x=X),
    "exchanged by name": lambda f: f(y=X, x=Y),
    "half by name": lambda f: f(X, y=Y),
    "exchanged": lambda f: f(Y, X),
    "with a number": lambda f: f(X, Y, 2),
    "all": lambda f: f(X, Y, 2, name="tanh"),
    "one tensor twice": lambda f: f(X, X),
    "strides": lambda f: f(X.t().contiguous().t(), Y),
    "a view": lambda f: f(torch.stack([X, Y])[0], Y),
    "a parameter": lambda f: f(nn.Parameter(X), Y),
    "conjugate": lambda f: f(torch._neg_view(X), Y),
    "in inference mode": lambda f: _inference(lambda: f(X, Y)),
    "an inference tensor": lambda f: _inference(lambda: f(X.clone(), Y)),
    "with gradients on": lambda f: _with_gradients(lambda: f(X, Y)),
}


def _inference(call: Callable[[], Tensor]) -> Tensor:
    with torch.inference_mode():
        return call()


def _with_gradients(call: Callable[[], Tensor]) -> Tensor:
    with torch.enable_grad():
        return call().detach()


@pytest.mark.parametrize("first", SPELLINGS)
def test_every_spelling_after_every_other(first: str) -> None:
    model = _Mixed()
    frozen = dovetail.freeze(model, (X, Y))
    with torch.no_grad():
        for second, call in SPELLINGS.items():
            for name, again in ((first, SPELLINGS[first]), (second, call)):
                assert torch.equal(again(frozen), again(model)), (first, second, name)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # jvp is made with it
@pytest.mark.parametrize(
    "call",
    [
        lambda f: f(X, Y, 3),
        lambda f: f(X, Y, True),
        lambda f: f(X, Y, 2, "relu"),
        lambda f: f(X, None),
        lambda f: f(X.double(), Y),
        lambda f: f(X[0], Y[0]),
        lambda f: torch.func.vmap(lambda x: f(x, Y))(torch.randn(4, 2, 3)),
        lambda f: torch.func.vmap(lambda z: f(X, Y) + z)(torch.randn(4)),
        lambda f: torch.func.jvp(lambda x: f(x, Y), (X,), (Y,)),
        lambda f: f(X.clone().requires_grad_(), Y),
    ],
)
def test_what_differs_does_not_take_the_short_way(frozen: Any, call: Callable[[Any], Any]) -> None:
    with torch.enable_grad():
        for _ in range(2):
            frozen(X, Y)
        with pytest.raises(DovetailError):
            call(frozen)


def test_many_shapes_after_each_other() -> None:
    model = _Mixed()
    frozen = dovetail.freeze(model, (X, Y), dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    with torch.no_grad():
        for rows in (*range(2, 40), *range(2, 40), 2, 39, 2, 39):
            x, y = torch.randn(rows, 3), torch.randn(rows, 3)
            assert torch.equal(frozen(x, y), model(x, y))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_changes_are_seen_in_every_mode(mode: Any) -> None:
    """The first look in a mode is another one than those after it; tied weights are looked at twice."""
    changes: list[Callable[[_Mixed], Any]] = [
        lambda model: model.layer.weight.mul_(2),
        lambda model: model.tied.bias.copy_(torch.ones(3)),
        lambda model: setattr(model.layer.bias, "data", torch.ones(3)),
        lambda model: setattr(model.layer, "bias", nn.Parameter(model.layer.bias.detach())),
        lambda model: setattr(model.tied, "weight", nn.Parameter(model.layer.weight.detach().clone())),
        lambda model: setattr(model, "tied", nn.Linear(3, 3)),
        lambda model: model.add_module("other", nn.Identity()),
        lambda model: setattr(model.layer.weight, "data", model.layer.weight.data.t()),
    ]
    for change in changes:
        model = _Mixed()
        frozen = dovetail.freeze(model, (X, Y))
        for other in (torch.no_grad, mode, torch.inference_mode, mode):
            with other():
                for _ in range(3):
                    frozen(X, Y)
        with torch.no_grad():
            change(model)
        with mode(), pytest.raises(StaleWeights):
            frozen(X, Y)


def test_the_model_goes_away_in_parts() -> None:
    model = _Mixed()
    frozen = dovetail.freeze(model, (X, Y))
    expected = frozen(X, Y)
    layer = model.layer
    del model
    for _ in range(3):
        assert torch.equal(frozen(X, Y), expected)
    with torch.no_grad():
        layer.bias.add_(1)
    with pytest.raises(StaleWeights, match=r"layer\.bias"):
        frozen(X, Y)


def test_hooks_run() -> None:
    frozen = dovetail.freeze(_Mixed(), (X, Y))
    seen: list[str] = []
    frozen(X, Y)
    handle = frozen.register_forward_hook(lambda *_: seen.append("after"))
    frozen.register_forward_pre_hook(lambda *_: seen.append("before"))
    frozen(X, Y)
    handle.remove()
    frozen(X, Y)
    assert seen == ["before", "after", "before"]


def test_threads_share_one_module() -> None:
    model = _Mixed()
    frozen = dovetail.freeze(model, (X, Y), dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    wrong: list[int] = []

    def serve(seed: int) -> None:
        with torch.no_grad():
            for turn in range(150):
                rows = 2 + (seed * 7 + turn) % 30
                x, y = torch.full((rows, 3), float(turn)), torch.ones(rows, 3)
                if not torch.equal(frozen(x, y), model(x, y)):
                    wrong.append(rows)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class _Asks(nn.Module):
    """Does what nobody sees: asks which arguments are one."""

    def forward(self, a: Tensor, b: Tensor, parts: list[Tensor]) -> Tensor:
        return (a * 2 if a is b else a + b) + (1 if parts[0] is a else parts[0])


@pytest.mark.parametrize("sizes", [None, "static", {"a": {0: "n"}, "b": {0: "n"}, "parts": [{0: "n"}]}])
def test_which_arguments_are_one_tensor_may_decide(sizes: Any, tmp_path: Path) -> None:
    frozen = dovetail.freeze(_Asks(), (X, X, [Y]), dynamic_shapes=sizes)
    frozen.save(tmp_path / "asks.dovetail")
    for f in (frozen, dovetail.load(tmp_path / "asks.dovetail")):
        for _ in range(3):
            for a, b, c in ((X, X, Y), (X, Y, X.clone()), (Y, Y, X), (Y, X, Y.clone())):
                assert torch.equal(f(a, b, [c]), _Asks()(a, b, [c]))
    exported = frozen.export().module()
    assert torch.equal(exported(X, X, [Y]), _Asks()(X, X, [Y]))


class _OneOnly(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + 1 if a is b or b.sum() > 0 else a


def test_a_call_with_two_tensors_where_only_one_can_be_recorded() -> None:
    frozen = dovetail.freeze(_OneOnly(), (X, X))
    assert torch.equal(frozen(Y, Y), Y + 1)
    with pytest.raises(FrozenCallMismatch, match="b is not the same tensor as a"):
        frozen(X, Y)


def test_attention_over_one_tensor_takes_the_way_that_eager_takes(tmp_path: Path) -> None:
    model = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 6, 32)
    frozen = dovetail.freeze(model, (x, x, x))
    assert any("native_multi_head_attention" in str(node.target) for node in _program(frozen).nodes)
    frozen.save(tmp_path / "attention.dovetail")
    with torch.no_grad():
        expected = model(x, x, x)
    for found in (frozen(x, x, x), dovetail.load(tmp_path / "attention.dovetail")(x, x, x)):
        assert all(map(torch.equal, found, expected))
    y = torch.randn(2, 6, 32)
    with torch.no_grad():
        for wanted, found in zip(model(y, y, y), frozen(y, y, y), strict=True):
            assert torch.equal(wanted, found)


def _program(frozen: Any) -> Any:
    return frozen._methods["forward"].variants[0].guard.program.folded.program


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_autograd_is_as_before_a_call_and_after_one_that_raises(mode: bool) -> None:
    class Divided(nn.Module):
        def forward(self, x: Tensor, by: Tensor) -> Tensor:
            return torch.div(x, by, rounding_mode="floor")

    frozen, x = dovetail.freeze(Divided(), (torch.ones(3, dtype=torch.int64),) * 2), torch.arange(3)
    with torch.set_grad_enabled(mode):
        for _ in range(3):
            assert not frozen(x, x + 1).requires_grad
            assert torch.is_grad_enabled() is mode
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                frozen(x, x)
            assert torch.is_grad_enabled() is mode
