"""What cannot be frozen is refused by name, with the way out, before anything runs; the rest is bit for bit eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver, quantize_dynamic

import dovetail
from dovetail.errors import NotFreezable, NotSerializable

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class _Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantize = torch.ao.nn.quantized.Quantize(0.1, 0, torch.quint8)

    def forward(self, x: Tensor) -> Tensor:
        return self.quantize(x).dequantize()


def _pruned() -> nn.Module:
    layer = nn.Linear(4, 4)
    torch.nn.utils.prune.random_unstructured(layer, "weight", amount=0.5)
    return layer


class _Unwrapped(nn.parallel.DistributedDataParallel):
    """As a wrapper looks from outside, without a process group."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "data parallel": (lambda: nn.DataParallel(nn.Linear(4, 4)), "several devices.*model.module"),
    "distributed data parallel": (lambda: _Unwrapped(nn.Linear(4, 4)), "several processes.*model.module"),
    "script": (lambda: torch.jit.script(nn.Linear(4, 4)), "TorchScript.*made from"),
    "weight norm": (lambda: torch.nn.utils.weight_norm(nn.Linear(4, 4)), "WeightNorm.*remove_weight_norm"),
    "spectral norm": (lambda: torch.nn.utils.spectral_norm(nn.Linear(4, 4)), "SpectralNorm.*remove_spectral_norm"),
    "pruned": (_pruned, "RandomUnstructured.*prune.remove"),
    "quantized": (_Quantized, "it works on quantized tensors.*before it is converted"),
    "prepared": (FakeQuantize, "it quantizes for training.*before it is prepared"),
    "observed": (MinMaxObserver, "it observes ranges.*before it is prepared"),
}
FROZEN: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: torch.nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    "compiled": lambda: nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager")),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(4, 4)),
    "weight norm taken away": lambda: torch.nn.utils.remove_weight_norm(torch.nn.utils.weight_norm(nn.Linear(4, 4))),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("is_inside", [False, True])
def test_what_is_refused_by_name_before_it_runs(name: str, is_inside: bool) -> None:
    make, match = REFUSED[name]
    ran = []
    model = make().eval()
    model = nn.Sequential(nn.ReLU(), model) if is_inside else model
    if not isinstance(model, torch.jit.ScriptModule):
        model.register_forward_pre_hook(lambda *_: ran.append(1))
    before = copy.deepcopy({key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)})
    place = "1" if is_inside else ""
    with pytest.raises(NotFreezable, match=f"(?s)DT-FREEZE-001.*{place}.* cannot be frozen: .*{match}"):
        dovetail.freeze(model, (X,))
    assert not ran
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_a_model_without_numbers() -> None:
    with pytest.raises(NotFreezable, match=r"(?s)0.weight.*meta device.*to_empty"):
        dovetail.freeze(nn.Sequential(nn.Linear(4, 4, device="meta")), (X,))


@pytest.mark.parametrize("name", list(FROZEN))
def test_what_freezes_bit_for_bit(tmp_path: Path, name: str) -> None:
    model = FROZEN[name]().eval()
    with torch.no_grad():
        expected = model(X)
    frozen = dovetail.freeze(model, (X,))
    frozen.save(tmp_path / "model.dovetail")
    for one in (frozen, dovetail.load(tmp_path / "model.dovetail")):
        assert torch.equal(one(X), expected)


def test_dynamically_quantized_layers_freeze_and_are_not_saved(tmp_path: Path) -> None:
    model = quantize_dynamic(nn.Sequential(nn.Linear(4, 4)).eval(), {nn.Linear}, dtype=torch.qint8)
    frozen = dovetail.freeze(model, (X,))
    assert torch.equal(frozen(X), model(X))
    with pytest.raises(NotSerializable, match="quantized"):
        frozen.save(tmp_path / "model.dovetail")
    assert not list(tmp_path.iterdir())
