"""Frozen modules and memory that is shared: by tensors of the model, with arguments, with results."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


def _mismatch(reason: str) -> Any:
    return pytest.raises(dovetail.DovetailError, match=f"(?s)DT-FREEZE-003.*{reason}")


class GivesPart(nn.Module):
    """Hands out a buffer, and reads another one that lies in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(6))
        self.register_buffer("part", self.whole[2:])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.whole, self.part + x


@pytest.mark.parametrize("way", ["frozen", "copied", "loaded", "swapped"])
def test_state_that_shares_memory_is_kept_together(way: str, tmp_path: Path) -> None:
    frozen: Any = dovetail.freeze(GivesPart(), (torch.zeros(4),), dynamic_shapes="static")
    if way == "copied":
        frozen = copy.deepcopy(frozen)
    if way == "loaded":
        frozen.save(tmp_path / "model.dovetail")
        frozen = dovetail.load(tmp_path / "model.dovetail")
    if way == "swapped":
        frozen.swap_weights(GivesPart().state_dict())
    frozen(torch.zeros(4))[0].fill_(7)
    assert frozen(torch.ones(4))[1].tolist() == [8, 8, 8, 8]


def test_expanded_state_keeps_its_strides() -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.ones(1, 3).expand(3, 3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.rows.t(), self.rows * x

    model = Expanded()
    x = torch.rand(3, 3)
    for found, wanted in zip(dovetail.freeze(model, (x,))(x), model(x), strict=True):
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


def test_an_input_of_which_memory_is_returned_must_lie_like_the_example() -> None:
    class Returns(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[:2], x + 1

    frozen = dovetail.freeze(Returns(), (torch.rand(4, 4),))
    x = torch.rand(4, 4)
    assert frozen(x)[0].data_ptr() == x.data_ptr()
    with _mismatch("returns memory of it"):
        frozen(x.t())


class Writes(nn.Module):
    """Writes its argument, and reads a weight that is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x @ self.weight.exp()


def test_weights_are_no_arguments_to_write() -> None:
    model = Writes()
    frozen = dovetail.freeze(model, (torch.rand(3, 3),), dynamic_shapes="static")
    with _mismatch("weight of the model share memory"):
        frozen(model.weight.detach())
    assert frozen.check_stale() == ()
    x = torch.rand(3, 3)
    with torch.no_grad():
        wanted = model(x.clone())
    assert torch.equal(frozen(x), wanted)


def test_calls_that_look_like_earlier_ones_are_looked_at_as_closely() -> None:
    """A call that is known by what it looks like may bring a weight of the model, or one tensor twice."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3, 3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x.add_(1)
            return (x + 2 * y) @ self.weight

    model = Both()
    frozen = dovetail.freeze(model, (torch.rand(3, 3), torch.rand(3, 3)), dynamic_shapes="static")
    for _ in range(3):
        x, y = torch.rand(3, 3), torch.rand(3, 3)
        with torch.no_grad():
            wanted = model(x.clone(), y)
        before, version = x.clone(), x._version
        assert torch.equal(frozen(x, y), wanted)
        assert torch.equal(x, before + 1)
        assert x._version == version + 1
    with _mismatch("x, which it writes, and y share memory"):
        frozen(x, x)
    with _mismatch("x, which it writes, and y share memory"):
        frozen(x, x.view(3, 3))
    with _mismatch("weight of the model share memory"):
        frozen(model.weight.detach(), y)
    model.weight.data = torch.ones(3, 3)
    frozen.refresh()
    assert torch.equal(frozen(x.clone(), y), (x + 1 + 2 * y) @ torch.ones(3, 3))
    with _mismatch("weight of the model share memory"):
        frozen(model.weight.detach(), y)
    assert torch.equal(frozen(x, y), (x + 2 * y) @ torch.ones(3, 3))


class Grows(nn.Module):
    """Writes a buffer that it also hands out, and reads its argument afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.total.add_(1)
        return self.total, x * 2


def test_state_is_no_argument_while_it_is_written() -> None:
    frozen = dovetail.freeze(Grows(), (torch.zeros(3),), dynamic_shapes="static")
    total, _ = frozen(torch.zeros(3))
    with _mismatch("total of the module, which it writes, and x share memory"):
        frozen(total)
    assert frozen(total.clone())[1].tolist() == [2, 2, 2]
    assert total.tolist() == [2, 2, 2]


def test_one_tensor_for_two_arguments_and_then_two() -> None:
    class Subtracts(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x - 2 * y

    x, y = torch.rand(3), torch.rand(3)
    frozen = dovetail.freeze(Subtracts(), (x, x))
    for a, b in ((x, x), (x, y), (y, x), (y, y), (x, y)):
        assert torch.equal(frozen(a, b), a - 2 * b)
        assert torch.equal(frozen(y=b, x=a), a - 2 * b)


def test_frozen_in_inference_mode_and_called_outside() -> None:
    model, x = Grows(), torch.rand(3)
    with torch.inference_mode():
        frozen = dovetail.freeze(model, (x,), dynamic_shapes="static")
        frozen.swap_weights(Grows().state_dict())
    for count in (1.0, 2.0):
        assert frozen(x)[0].tolist() == [count] * 3


def test_overlapping_and_conjugated_weights(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("windows", torch.arange(5.0).as_strided((3, 3), (1, 1)))
            self.register_buffer("conjugated", torch.randn(3, dtype=torch.complex64).conj())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.windows, self.conjugated * x

    model, x = Odd(), torch.rand(2, 3)
    for options in ({}, {"on_stale": "ignore"}, {"keep_sources": "memory"}, {"keep_sources": "file"}):
        frozen = dovetail.freeze(model, (x,), **options)  # type: ignore[arg-type]
        frozen.save(tmp_path / "model.dovetail")
        for call in (frozen, dovetail.load(tmp_path / "model.dovetail")):
            assert all(torch.equal(a, b) for a, b in zip(call(x), model(x), strict=True))
        frozen.swap_weights(model.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(frozen(x), model(x), strict=True))
