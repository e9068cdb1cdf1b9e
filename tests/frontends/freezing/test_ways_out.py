"""What the errors of frozen programs tell a user to try works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError
from tests.ways_out import refused

X = torch.tensor([0.5, -1.0, 2.0])


def test_wants_gradients() -> None:
    model, x = nn.Linear(3, 2), X.clone().requires_grad_()
    frozen = dovetail.freeze(model, (X,))
    with refused("DT-FREEZE-004", "torch.no_grad(), detach the input, or freeze with on_grad='original'"):
        frozen(x)
    with torch.no_grad():
        assert torch.equal(frozen(x), model(x))
    assert torch.equal(frozen(x.detach()), model(X))
    dovetail.freeze(model, (X,), on_grad="original")(x).sum().backward()
    assert x.grad is not None


def test_stale() -> None:
    model = nn.Linear(3, 2)
    frozen = {kind: dovetail.freeze(model, (X,), on_stale=kind) for kind in ("error", "refresh", "ignore")}
    before = model(X).detach()
    with torch.no_grad():
        model.weight.mul_(2)
    with refused("DT-FREEZE-005", "frozen.refresh(), freeze again, or freeze with on_stale='refresh' or 'ignore'"):
        frozen["error"](X)
    frozen["error"].refresh()
    assert torch.equal(frozen["error"](X), model(X))
    assert torch.equal(dovetail.freeze(model, (X,))(X), model(X))
    assert torch.equal(frozen["refresh"](X), model(X))
    assert torch.equal(frozen["ignore"](X), before)


def test_discarded() -> None:
    for keep in (None, "memory"):
        model = nn.Linear(3, 2)
        checkpoint, wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model(X)
        frozen = dovetail.freeze(model, (X,), discard_originals=True, keep_sources=keep)
        with refused("DT-FREEZE-006", "assign=True"):
            model(X)
        weights = checkpoint if keep is None else frozen.source_state_dict()
        model.load_state_dict(weights, assign=True, strict=keep is None)
        assert torch.equal(model(X), wanted)


def test_weights_that_do_not_fit() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    frozen = dovetail.freeze(model, (X,), keep_sources="memory")
    with refused("DT-FREEZE-007", "did you mean 'weight'?"):
        frozen.swap_weights({"wieght": other.weight})
    with pytest.raises(DovetailError, match=r"(?s)'weight' is a torch\.sparse_coo tensor.*give plain strided tensors"):
        frozen.swap_weights({"weight": other.weight.detach().to_sparse()})
    frozen.swap_weights({"weight": other.weight, "bias": other.bias})
    assert torch.equal(frozen(X), other(X))
    with refused("DT-FREEZE-007", "give a state dict"):
        frozen.swap_weights([other.weight])  # type: ignore[arg-type]
    model = nn.Linear(3, 2)
    frozen = dovetail.freeze(model, (X,))
    model.weight = nn.Parameter(torch.rand(5, 3))
    model.bias = nn.Parameter(torch.rand(5))
    with refused("DT-FREEZE-007", "freeze the new model"):
        frozen.refresh()
    assert torch.equal(dovetail.freeze(model, (X,))(X), model(X))


class _Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.down = nn.Parameter(torch.rand(3, 3)), nn.Parameter(torch.rand(2, 3))
        self.up = nn.Parameter(torch.rand(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + self.up @ self.down)


def test_no_sources() -> None:
    model, other = _Adapted(), _Adapted()
    frozen = dovetail.freeze(model, (X,))
    with refused("DT-FREEZE-008", "keep_sources='memory' or 'file'"):
        frozen.source_state_dict()
    with refused("DT-FREEZE-008", "or give all weights"):
        frozen.swap_weights({"up": other.up})
    frozen.swap_weights(other.state_dict())
    assert torch.equal(frozen(X), other(X))
    for keep in ("memory", "file"):
        kept = dovetail.freeze(model, (X,), keep_sources=keep)
        assert kept.source_state_dict().keys() == model.state_dict().keys()
        kept.swap_weights({name: tensor for name, tensor in other.state_dict().items() if name != "weight"})
        twin = _Adapted()
        twin.load_state_dict({**other.state_dict(), "weight": model.weight.detach()})
        assert torch.equal(kept(X), twin(X))


def test_fixed() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).eval()
    frozen = dovetail.freeze(model, (X,))
    with refused("DT-FREEZE-009", "do it with the model, then freeze the model again"):
        frozen.double()
    model.double()
    assert torch.equal(dovetail.freeze(model, (X.double(),))(X.double()), model(X.double()))


def test_another_torch(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.frontends.freezing.saving.installed_torch_version", lambda: "2.99.0")
        dovetail.freeze(model, (X,)).save(tmp_path / "model.dovetail")
    with refused("DT-FREEZE-010", "or load with any_torch=True"):
        dovetail.load(tmp_path / "model.dovetail")
    assert torch.equal(dovetail.load(tmp_path / "model.dovetail", any_torch=True)(X), model(X))


class _Scales(nn.Module):
    def forward(self, x: Tensor, by: Any) -> Tensor:
        return x * (by if isinstance(by, int) else by.number)


class _By:
    number = 3


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
def test_not_exportable(tmp_path: Path) -> None:
    frozen = dovetail.freeze(_Scales(), (X, _By()))
    with refused("DT-FREEZE-011", "pass numbers, strings, None, dtypes and devices next to tensors"):
        frozen.export()
    plain = dovetail.freeze(_Scales(), (X, 3))
    plain.export()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.export.export", _fails)
        with refused("DT-FREEZE-011", "save it with frozen.save(path)"):
            plain.export()
    plain.save(tmp_path / "model.dovetail")
    assert torch.equal(dovetail.load(tmp_path / "model.dovetail")(X, 3), X * 3)


def _fails(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("torch cannot do that")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("form", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_argument_is_refused_by_name(form: str) -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, x: Tensor) -> Tensor:
            return a @ x

    with pytest.raises(
        DovetailError, match=r"(?s)DT-FREEZE-001.*a.* is a sparse matrix.*let the model hold the matrix"
    ):
        dovetail.freeze(Product(), (getattr(torch.eye(4), form)(), torch.rand(4, 3)))
