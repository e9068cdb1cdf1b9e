"""Weights that change after freezing, other weights, and models whose weights were handed over."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadWeights
from tests.frontends.freezing.models import Classifier, Counter, Tied

X = torch.rand(2, 3, 8, 8)


def _eager(model: nn.Module, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


def _set_bias(model: Classifier) -> None:
    with torch.no_grad():
        model.head.bias.add_(10)


def _load(model: Classifier) -> None:
    model.load_state_dict(Classifier().state_dict())


def _load_assign(model: Classifier) -> None:
    model.load_state_dict(Classifier().state_dict(), assign=True)


def _new_parameter(model: Classifier) -> None:
    model.conv.weight = nn.Parameter(torch.rand_like(model.conv.weight))


def _new_data(model: Classifier) -> None:
    model.conv.weight.data = torch.rand_like(model.conv.weight)


def _train_a_step(model: Classifier) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()


CHANGES = [_set_bias, _load, _load_assign, _new_parameter, _new_data, _train_a_step]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_an_error_or_a_refresh_or_ignored(change: Any) -> None:
    model = Classifier().eval()
    wanted = _eager(model, X)
    strict = dovetail.freeze(model, (X,))
    ignoring = dovetail.freeze(model, (X,), on_stale="ignore")
    refreshing = dovetail.freeze(model, (X,), on_stale="refresh")
    assert strict.check_stale() == ()
    change(model)
    assert strict.check_stale()
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-005"):
        strict(X)
    assert torch.equal(ignoring(X), wanted)
    assert torch.equal(refreshing(X), _eager(model, X))
    assert refreshing.check_stale() == ()
    strict.refresh()
    assert torch.equal(strict(X), _eager(model, X))


def test_a_change_that_does_not_fit_leaves_the_program_as_it_is() -> None:
    model = Classifier().eval()
    frozen = dovetail.freeze(model, (X,))
    wanted = frozen(X)
    model.head.weight = nn.Parameter(torch.rand(5, 9))
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-007"):
        frozen.refresh()
    model.head.weight = None
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-007"):
        frozen.refresh()
    assert frozen.check_stale() == ("head.weight",)
    del model
    gc.collect()
    assert frozen.check_stale() == ()
    assert torch.equal(frozen(X), wanted)


def test_state_is_not_stale() -> None:
    model = Counter()
    frozen = dovetail.freeze(model, (torch.rand(2, 3),))
    model(torch.rand(2, 3))
    assert frozen.check_stale() == ()


def test_the_model_is_not_kept_alive() -> None:
    model = Classifier().eval()
    seen = weakref.ref(model)
    frozen = dovetail.freeze(model, (X,))
    wanted = _eager(model, X)
    del model
    gc.collect()
    assert seen() is None
    assert torch.equal(frozen(X), wanted)


def test_swapped_weights_equal_freezing_anew() -> None:
    model, other = Classifier().eval(), Classifier().eval()
    frozen = dovetail.freeze(model, (X,))
    frozen.swap_weights(other.state_dict())
    anew = dovetail.freeze(other, (X,))
    wanted = frozen(X)
    assert torch.equal(wanted, anew(X))
    for (name, mine), (other_name, theirs) in zip(frozen.state_dict().items(), anew.state_dict().items(), strict=True):
        assert name == other_name
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        other.head.bias.add_(1)  # it is not shared
        model.head.bias.add_(1)
    assert torch.equal(frozen(X), wanted)
    assert frozen.check_stale() == ()


def test_swapping_sets_state() -> None:
    model, other = Counter(), Counter()
    frozen = dovetail.freeze(model, (torch.rand(2, 3),))
    frozen(torch.rand(2, 3))
    other.calls.fill_(5)
    frozen.swap_weights(other.state_dict())
    x = torch.rand(2, 3)
    for found, wanted in zip(frozen(x), _eager(other, x), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"head.wieght": torch.rand(5, 8)}, "did you mean 'head.weight'"),
        ({"head.weight": torch.rand(5, 9)}, r"\[5, 9\]"),
        ({"head.weight": torch.rand(5, 8).double()}, "float64"),
        ({"head.weight": [1.0]}, "is a list"),
    ],
)
def test_weights_that_do_not_fit(weights: dict[str, Any], reason: str) -> None:
    model = Classifier().eval()
    frozen = dovetail.freeze(model, (X,), keep_sources="memory")
    wanted = frozen(X)
    with pytest.raises(dovetail.DovetailError, match=f"(?s)DT-FREEZE-007.*{reason}"):
        frozen.swap_weights(weights)
    assert torch.equal(frozen(X), wanted)


def test_tied_weights_stay_tied() -> None:
    model, other = Tied(), Tied()
    ids = torch.tensor([[1, 2, 3]])
    frozen = dovetail.freeze(model, (ids,))
    frozen.swap_weights(other.state_dict())
    assert torch.equal(frozen(ids), _eager(other, ids))
    frozen.swap_weights({"out.weight": model.out.weight})
    assert torch.equal(frozen(ids), _eager(model, ids))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-007.*one tensor in the model"):
        frozen.swap_weights({"out.weight": model.out.weight, "embedding.weight": other.out.weight})


class Lora(nn.Module):
    """A linear layer with an adapter that is added to its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 6))
        self.down, self.up = nn.Parameter(torch.rand(2, 6)), nn.Parameter(torch.rand(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + self.up @ self.down).t()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_part_of_the_weights_with_kept_sources(where: str) -> None:
    model, other = Lora(), Lora()
    x = torch.rand(3, 6)
    frozen = dovetail.freeze(model, (x,), keep_sources=where)
    assert torch.equal(frozen(x), _eager(model, x))
    adapter = {"down": other.down, "up": other.up}
    frozen.swap_weights(adapter)
    model.load_state_dict({**model.state_dict(), **{name: t.detach() for name, t in adapter.items()}})
    assert torch.equal(frozen(x), _eager(model, x))
    again = frozen.source_state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("discards", [False, True])
def test_weights_that_are_handed_out_are_copies(where: str, discards: bool, tmp_path: Path) -> None:
    """A model that gets them back can be trained: the program stays as it is, and so do its sources."""
    model, x = Lora(), torch.rand(3, 6)
    frozen = dovetail.freeze(model, (x,), keep_sources=where, discard_originals=discards)
    frozen.save(tmp_path / "lora.dovetail")
    for one in (frozen, dovetail.load(tmp_path / "lora.dovetail")):
        expected, sources = one(x), one.source_state_dict()
        trained = Lora()
        trained.load_state_dict(sources, assign=True, strict=False)
        assert torch.equal(_eager(trained, x), expected)
        before = {name: tensor.clone() for name, tensor in sources.items()}
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(1)
        assert torch.equal(one(x), expected)
        assert all(torch.equal(before[name], tensor) for name, tensor in one.source_state_dict().items())


def test_a_model_that_is_gone_is_not_refreshed_from() -> None:
    model, x = Lora(), torch.rand(3, 6)
    frozen = dovetail.freeze(model, (x,))
    with pytest.raises(dovetail.DovetailError, match=r"DT-FREEZE-007.* down is \[1\]"):
        frozen.swap_weights({**model.state_dict(), "down": torch.zeros(1)})
    del model
    gc.collect()
    with pytest.raises(dovetail.DovetailError, match=r"DT-FREEZE-007.* is gone"):
        frozen.refresh()
    assert frozen(x).shape[0] == 3


def test_without_sources_they_cannot_be_asked_for() -> None:
    frozen = dovetail.freeze(Lora(), (torch.rand(3, 6),))
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-008"):
        frozen.source_state_dict()


# --- discarded originals ----------------------------------------------------------------------------------------------


def test_a_discarded_model_says_so_and_comes_back() -> None:
    model = Classifier().eval()
    twin = Classifier().eval()
    twin.load_state_dict(model.state_dict())
    frozen = dovetail.freeze(model, (X,), discard_originals=True, keep_sources="memory")
    for rows in (2, 5, 1):
        x = torch.rand(rows, 3, 8, 8)
        assert torch.equal(frozen(x), _eager(twin, x))
    attempts = (
        lambda: model(X),
        model.state_dict,
        lambda: model.conv.weight + 1,
        lambda: torch.stack([model.conv.weight]),
        model.double,
        model.conv.weight.tolist,
        lambda: torch.optim.SGD(model.parameters(), lr=0.1).step(closure=None) or model(X),
    )
    for attempt in attempts:
        with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-006.*of .* in Classifier was discarded on 20"):
            attempt()
    assert sum(t.numel() for t in frozen.state_dict().values()) > 0
    assert "weight" in repr(model.conv.weight)
    assert model.conv.weight.shape == twin.conv.weight.shape
    model.load_state_dict(frozen.source_state_dict(), assign=True, strict=False)
    assert torch.equal(_eager(model, X), _eager(twin, X))


def test_discarded_memory_is_not_held_twice() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    places = [weakref.ref(p) for p in model.parameters()]
    frozen = dovetail.freeze(model, (torch.rand(2, 64),), discard_originals=True)
    gc.collect()
    assert all(place() is None for place in places)
    assert frozen.constant_bytes() == 4 * (64 * 64 + 64) * 4


def test_a_failure_discards_nothing() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight if bool(x.sum() > 0) else x

    model = Fails()
    weight = model.weight
    with pytest.raises(dovetail.DovetailError):
        dovetail.freeze(model, (torch.rand(3),), discard_originals=True)
    assert model.weight is weight
    assert torch.equal(model(torch.ones(3)), weight)


class _Expanded(nn.Module):
    """Its weights are views in which elements share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((1,), 2.0).expand(3))
        self.register_buffer("windows", torch.arange(4.0).unfold(0, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale) @ self.windows


def test_expanded_weights_are_swapped() -> None:
    frozen, other = dovetail.freeze(_Expanded(), (torch.randn(2, 3),)), _Expanded()
    other.scale, other.windows = torch.full((3,), 5.0), torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, -0.0]])
    x = torch.randn(2, 3)
    frozen.swap_weights(other.state_dict())
    assert torch.equal(frozen(x), other(x))


def test_expanded_weights_that_differ_along_the_expansion() -> None:
    frozen = dovetail.freeze(_Expanded(), (torch.randn(2, 3),))
    with pytest.raises(BadWeights, match="elements of it that share memory would differ"):
        frozen.swap_weights({"scale": torch.arange(3.0), "windows": torch.arange(4.0).unfold(0, 2, 1)})
