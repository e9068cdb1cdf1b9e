"""What people were bitten by where models are frozen: special values, state, stale weights, memory that grows."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn

import dovetail


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_times_zero_keeps_what_is_no_number(value: float) -> None:
    class Zeroes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([value, 1.0, -1.0]))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 0, (self.weight * 0 + x) * 1

    model = Zeroes()
    x = torch.tensor([value, -2.0, 3.0])
    with torch.no_grad():
        wanted = model(x)
    for found, other in zip(dovetail.freeze(model, (x,))(x), wanted, strict=True):
        assert torch.equal(found.isnan(), other.isnan())
        assert torch.equal(found.nan_to_num(), other.nan_to_num())
        assert torch.equal(found.nan_to_num().signbit(), other.nan_to_num().signbit())


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.c.add_(1)
        return x + self.c * 2


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("passes", ["bitwise", "fast"])
def test_a_written_buffer_is_no_constant(is_exported: bool, passes: str) -> None:
    x = torch.zeros(1)
    model = torch.export.export(Counts(), (x,)) if is_exported else Counts()
    frozen = dovetail.freeze(model, (x,), passes=passes, dynamic_shapes="static")
    assert [frozen(x).item() for _ in range(3)] == [2, 4, 6]


def test_a_bias_that_changes_after_the_first_call_is_an_error() -> None:
    model = nn.Linear(3, 3)
    x = torch.rand(2, 3)
    frozen = dovetail.freeze(model, (x,))
    frozen(x)
    with torch.no_grad():
        model.bias.add_(10)
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-005.*bias.*refresh"):
        frozen(x)
    frozen.refresh()
    assert torch.equal(frozen(x), model(x).detach())


def test_a_frozen_model_without_originals_takes_other_sizes_and_has_a_state() -> None:
    model, twin = nn.Linear(3, 3), nn.Linear(3, 3)
    twin.load_state_dict(model.state_dict())
    parameters = [weakref.ref(parameter) for parameter in model.parameters()]
    frozen = dovetail.freeze(model, (torch.rand(2, 3),), discard_originals=True, keep_sources="memory")
    gc.collect()
    assert all(parameter() is None for parameter in parameters)
    for rows in (2, 4, 1):
        x = torch.rand(rows, 3)
        assert torch.equal(frozen(x), twin(x).detach())
    assert frozen.state_dict()
    assert torch.equal(frozen.source_state_dict()["weight"], twin.weight.detach())
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-006.*source_state_dict"):
        model(torch.rand(2, 3))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-006.*weight of Linear in Linear"):
        model.state_dict()


def test_it_freezes_with_gradients_on_and_says_what_it_does_then() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.rand(2, 3)
    assert torch.is_grad_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frozen = dovetail.freeze(model, (x,))
    assert not list(frozen.parameters())
    assert torch.equal(frozen(x), model(x).detach())
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-004.*on_grad"):
        frozen(x.requires_grad_())


class Quantized(nn.Module):
    """Low-bit weights with a scale, and a number that is stretched over a large matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 127, (512, 512), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(512, 1))
        self.register_buffer("shift", torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        wide = x @ (self.weight * self.scale)
        return wide + self.shift.expand(1024, 1024)[:1, :512]


def test_constants_do_not_grow() -> None:
    model = Quantized().eval()
    x = torch.rand(2, 512)
    own = sum(buffer.untyped_storage().nbytes() for buffer in model.buffers())
    for passes in ("bitwise", "fast"):
        frozen = dovetail.freeze(model, (x,), passes=passes)
        assert frozen.constant_bytes() <= 1.01 * own
        assert torch.equal(frozen(x), model(x))


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


def _laid_out(dtype: torch.dtype, layout: str) -> Tensor:
    base = torch.randint(0, 2, (4, 6)).to(dtype)
    return {
        "contiguous": base[:, :3].contiguous(),
        "strided": base[:, ::2],
        "offset": base[:, 2:5],
        "expanded": base[:1, :3].expand(4, 3),
        "overlapping": base.flatten().as_strided((4, 3), (2, 1)),
    }[layout]


@pytest.mark.parametrize("layout", ["contiguous", "strided", "offset", "expanded", "overlapping"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_of_every_dtype_and_layout(dtype: torch.dtype, layout: str) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", _laid_out(dtype, layout))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x * self.weight, self.weight[1:], self.weight, self.weight.t() == 1

    model = Reads()
    x = torch.rand(4, 3)
    frozen = dovetail.freeze(model, (x,), dynamic_shapes="static")
    for _ in range(3):
        found, wanted = frozen(x), model(x)
        for mine, theirs in zip(found, wanted, strict=True):
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()
            assert mine.dtype == theirs.dtype
        assert found[1].untyped_storage().data_ptr() == found[2].untyped_storage().data_ptr()
