"""Models of the zoo, frozen: the same bits as eager under `no_grad`, at a second batch size, and after a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from tests.models.zoo import MORE, ZOO, Batch, Entry
from tests.rotation import rotated

SEED = 11
ENTRIES = tuple(entry for entry in ZOO + MORE if entry.name != "mixtral")
FREE = ("gpt2", "vit", "resnet", "mlp")
FAST = ("resnet", "mlp", "convnext", "bert", "recommender")
STATIC: Any = "static"

pytestmark = pytest.mark.usefixtures("alone")


def outputs(call: Any, batch: Batch) -> dict[str, Tensor]:
    """What a model gives, tensors by name; some draw in inference as well."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        found = call(**batch)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Same names, and per name the same dtype, strides and bits."""
    assert found.keys() == wanted.keys()
    assert wanted
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].stride()) == (tensor.dtype, tensor.stride()), name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("entry", rotated(ENTRIES, 4), ids=str)
def test_frozen_models_give_eagers_bits(entry: Entry, tmp_path: Path) -> None:
    model = entry.model().eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = entry.batches(2)
    wishes = None if entry.name in FREE else STATIC
    frozen = dovetail.freeze(model, {"forward": ((), batches[0])}, dynamic_shapes=wishes)
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    if wishes is None:
        assert not frozen.specialized
        batches += [{name: tensor[:rows] for name, tensor in batches[1].items()} for rows in (2, 1)]
    for batch in batches:
        wanted = outputs(model, batch)
        assert_same(outputs(frozen, batch), wanted)
        assert_same(outputs(loaded, batch), wanted)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    model_bytes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _held(model)}
    assert frozen.constant_bytes() <= 1.01 * sum(model_bytes.values()) + 4096  # tables that the code makes


def _held(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.name in FAST], ids=str)
def test_fast_passes_stay_within_eagers_error(entry: Entry) -> None:
    model = entry.model().eval()
    (batch,) = entry.batches(1)
    frozen = dovetail.freeze(model, {"forward": ((), batch)}, passes="fast", dynamic_shapes="static")
    found, eager = outputs(frozen, batch), outputs(model, batch)
    double = {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}
    exact = outputs(model.double(), double)
    mine = sum(float((found[name] - tensor).square().sum()) for name, tensor in exact.items())
    allowed = sum(float((eager[name] - tensor).square().sum()) for name, tensor in exact.items())
    assert mine**0.5 <= 2 * allowed**0.5


class MobileBlock(nn.Module):
    """Depthwise and pointwise convolutions with squeeze and excitation."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.Hardswish(inplace=True),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Hardsigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """f32[batch, channels, h, w] to the same."""
        y = self.body(x)
        return x + y * self.squeeze(y)


class Running(nn.Module):
    """Batch norm in training mode, and a buffer that counts calls in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("history", torch.zeros(3, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f32[batch, 4] to its norm, and the mean of the last three calls."""
        y = self.norm(x)
        self.history.copy_(torch.cat([self.history[1:], y.mean(0, keepdim=True)]))
        self.calls += 1
        return y, self.history.sum(0) / self.calls.clamp(max=3)


def test_a_mobile_block_at_other_sizes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), MobileBlock(), MobileBlock()).eval()
    frozen = dovetail.freeze(model, (torch.randn(2, 3, 10, 10),))
    for rows in (2, 3, 1):
        x = torch.randn(rows, 3, 10, 10)
        with torch.no_grad():
            wanted = model(x)
        assert torch.equal(frozen(x), wanted)
        assert frozen(x).stride() == wanted.stride()


@pytest.mark.parametrize("trains", [True, False])
def test_buffers_that_are_written_over_several_calls(trains: bool, tmp_path: Path) -> None:
    model, twin = Running().train(trains), Running().train(trains)
    frozen = dovetail.freeze(model, (torch.randn(5, 4),))
    frozen.save(tmp_path / "model.dovetail")
    for call in (frozen, dovetail.load(tmp_path / "model.dovetail")):
        twin.load_state_dict(model.state_dict())
        for rows in (5, 3, 4, 2):
            x = torch.randn(rows, 4)
            with torch.no_grad():
                wanted = twin(x)
            for mine, theirs in zip(call(x), wanted, strict=True):
                assert torch.equal(mine, theirs)
    assert model.calls == 0


class Routed(nn.Module):
    """Tokens go to one of two experts; how many go where depends on their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """f32[tokens, 4] to the same."""
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            if rows.numel():
                out[rows] = expert(x[rows])
        return out


def test_routing_by_numbers_is_refused_by_name() -> None:
    model = Routed()
    with pytest.raises(dovetail.DovetailError) as refused:
        dovetail.freeze(model, (torch.randn(6, 4),))
    assert "test_freeze_models.py" in str(refused.value)  # the line is named
    assert {type(parameter) for parameter in model.parameters()} == {nn.Parameter}
    assert model(torch.ones(2, 4)).shape == (2, 4)


class Masked(nn.Module):
    """Attention with a mask that is a buffer, and one that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("causal", torch.ones(5, 5, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """f32[batch, 5, 8] and bool[batch, 5] to f32[batch, 5, 8]."""
        return self.attention(x, x, x, key_padding_mask=padding, attn_mask=self.causal, need_weights=False)[0]


def test_attention_with_masks() -> None:
    model = Masked().eval()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    x = torch.randn(3, 5, 8)
    frozen = dovetail.freeze(model, (x, padding), dynamic_shapes="static")
    with torch.no_grad():
        wanted = model(x, padding)
    assert torch.equal(frozen(x, padding), wanted)
