"""Passes that change rounding: close to eager, packed for the machine, saved without that."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.ops import prims
from tests.rounding import in_float64


class Block(nn.Module):
    """A transformer's feed-forward part, large enough to be packed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.wide, self.narrow = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Residual(nn.Module):
    """Convolutions with batch norms around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.head = nn.Linear(32, 10)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.body(x)).mean((2, 3)))


MODELS: list[tuple[Any, tuple[int, ...]]] = [(Block, (4, 64, 128)), (Residual, (2, 3, 32, 32))]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max())


@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_close_to_eager_in_every_form(kind: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    frozen = dovetail.freeze(model, (torch.rand(shape),), passes="fast")
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    plain = dovetail.load(tmp_path / "model.dovetail", prepack=False)
    double = copy.deepcopy(model).double()
    for rows in (shape[0], shape[0] + 1, 1):
        x = torch.randn(rows, *shape[1:])
        with torch.no_grad():
            eager, exact = model(x), double(x.double())
        bound = 4 * _error(eager, exact) + 1e-6
        for form in (frozen, loaded, plain, copy.deepcopy(frozen)):
            found = form(x)
            assert found.stride() == eager.stride()
            assert _error(found, exact) <= bound
        assert torch.equal(frozen(x), loaded(x))


@pytest.mark.parametrize(("kind", "shape"), MODELS)
def test_discarded_weights_are_held_once(kind: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    bytes_before = sum(t.untyped_storage().nbytes() for t in model.state_dict().values())
    x = torch.randn(shape)
    shared = dovetail.freeze(copy.deepcopy(model), (x,), passes="fast")
    frozen = dovetail.freeze(model, (x,), passes="fast", discard_originals=True)
    assert frozen.constant_bytes() <= 1.01 * bytes_before
    assert torch.equal(frozen(x), shared(x))
    frozen.save(tmp_path / "model.dovetail")
    assert torch.equal(dovetail.load(tmp_path / "model.dovetail")(x), shared(x))
    for name, tensor in shared.state_dict().items():
        assert torch.equal(frozen.state_dict()[name], tensor)
        assert frozen.state_dict()[name].stride() == tensor.stride()


def test_swapped_weights_are_packed_anew() -> None:
    torch.manual_seed(0)
    model, other = Block().eval(), Block().eval()
    x = torch.randn(4, 64, 128)
    frozen = dovetail.freeze(model, (x,), passes="fast")
    frozen.swap_weights(other.state_dict())
    assert torch.equal(frozen(x), dovetail.freeze(other, (x,), passes="fast")(x))


def test_passes_by_name() -> None:
    model = Residual().eval()
    x = torch.randn(2, 3, 32, 32)
    text = str(dovetail.explain(dovetail.freeze(model, (x,), passes=["fold_batch_norms"])))
    assert "fold_batch_norms" in text
    assert "prepack" not in text
    assert "fold_batch_norms" not in str(dovetail.explain(dovetail.freeze(model, (x,))))
    skipped = dovetail.freeze(model, (x,), passes="fast", skip=("prepack", "channels_last"))
    assert "prepack" not in str(dovetail.explain(skipped))


def test_no_weight_is_copied_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).eval()
    x = torch.rand(2, 4, 8, 8)
    whole = dovetail.freeze(model, (x,), passes=["fold_batch_norms"])
    monkeypatch.setattr(prims, "_ELEMENTS_AT_ONCE", 40)
    by_rows = dovetail.freeze(model, (x,), passes=["fold_batch_norms"])
    assert torch.equal(whole(x), by_rows(x))
    names = [node.target for step in by_rows.compile_trace.lowerings[0].steps for node in step.program.nodes]  # type: ignore[union-attr]
    assert prims.TIMES_IN_FLOAT64 in names
    weight = model[0].weight.double() * (model[1].weight.double() / (model[1].running_var.double() + 1e-5).sqrt()).view(
        -1, 1, 1, 1
    )
    (folded,) = [t for t in by_rows.state_dict().values() if t.dim() == 4]
    torch.testing.assert_close(folded, weight.float(), rtol=1e-7, atol=0)


class SharedWeight(nn.Module):
    """One weight, in a convolution of each of two methods, which read it otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 64, 3, 3) * 0.05)

    def in_groups(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, groups=2).relu().mean((2, 3))

    def in_steps(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, stride=2, padding=1).relu().mean((2, 3))


class _Called(nn.Module):
    """A method of a model, as a model."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, x: Tensor) -> Any:
        return getattr(self.model, self.method)(x)


def test_a_weight_that_two_methods_read_otherwise_is_packed_for_each() -> None:
    torch.manual_seed(0)
    model = SharedWeight()
    calls = {"in_groups": ((torch.randn(2, 128, 28, 28),), {}), "in_steps": ((torch.randn(2, 64, 28, 28),), {})}
    frozen = dovetail.freeze(model, calls, passes=["prepack"])  # type: ignore[arg-type]
    assert frozen.compile_trace is not None
    steps = [
        step for lowering in frozen.compile_trace.lowerings for step in lowering.steps if step.name == "fold_constants"
    ]
    packings = [node for step in steps for node in step.program.nodes if node.target is prims.PACK_CONV]
    assert len({repr(node.args[1:-1]) for node in packings}) == 2
    for rows in (2, 1, 3):
        for name, ((example,), _) in calls.items():
            x = torch.randn(rows, *example.shape[1:])
            in_float64(_Called(model, name), x).assert_holds(getattr(frozen, name)(x))
    plain = frozen.constant_bytes() - model.weight.untyped_storage().nbytes()
    assert plain == 2 * model.weight.untyped_storage().nbytes()


@pytest.mark.parametrize("passes", ["fast", ["prepack"], ["panels"]])
def test_packed_weights_are_no_part_of_what_a_call_takes(passes: Any) -> None:
    model, x = Block().eval(), torch.randn(4, 128)
    weights = sum(weight.numel() for weight in model.parameters()) * 4
    small = weights + weights // 4  # a weight once more would not fit
    frozen = dovetail.freeze(model, (x,), passes=passes, memory_limit=small, dynamic_shapes="static")
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)
