"""Primitives over packed weights: what they give, with oneDNN and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.artifact.target_text import read_target, target_text
from dovetail.ops import packed, packing, prims
from dovetail.ops.facts import facts_of
from dovetail.torch_compat import onednn
from dovetail.torch_compat.fakes import new_fake_mode
from tests.rounding import in_float64

F = torch.nn.functional

EAGER: dict[str, Any] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
}

SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, 1e30, -1e30, 88.0, -88.0, 3.0, -3.0, 6.0, 1e-30)


@pytest.fixture(params=["as it is", "without oneDNN"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without oneDNN":
        monkeypatch.setattr(onednn, "has_onednn", lambda: False)


def test_each_activation_is_known() -> None:
    assert set(EAGER) == packed.ACTIVATIONS
    for make in (packed.packed_linear, packed.packed_conv):
        with pytest.raises(ValueError, match="no activation 'swish'; there are gelu"):
            make("swish")


def _assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.isnan().equal(expected.isnan())
    known = ~expected.isnan()
    assert torch.allclose(found[known], expected[known], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("activation", EAGER)
def test_special_numbers_pass_as_in_eager(activation: str) -> None:
    """A bias is what the product gives for zeros."""
    bias = torch.tensor(SPECIAL)
    if activation == "gelu":
        bias = bias[~bias.isinf()]  # of which eager makes one thing or another, by their place in the tensor
    weight = torch.zeros(len(bias), 2)
    expected = EAGER[activation](bias)
    made: Any = packed.packed_linear(activation)(torch.zeros(3, 2), packed.PACK_LINEAR(weight, 3), bias)
    _assert_close(made, expected.expand(3, -1))
    geometry = ([0, 0], [1, 1], [1, 1], 1)
    kernel = packed.PACK_CONV(weight[:, :, None, None], *geometry)
    image: Any = packed.packed_conv(activation)(torch.zeros(1, 2, 2, 2), kernel, bias, *geometry)
    _assert_close(image[0, :, 0, 0], expected)
    added: Any = packed.packed_conv(activation)(torch.zeros(1, 2, 2, 2), kernel, None, *geometry,
                                                bias[None, :, None, None].expand(1, -1, 2, 2))  # fmt: skip
    _assert_close(added[0, :, 1, 0], expected)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (0, 7), (7,), (1, 1, 7)])
def test_linear_of_any_rows(shape: tuple[int, ...]) -> None:
    weight, bias, x = torch.randn(4, 7), torch.randn(4), torch.randn(shape)
    made: Any = packed.packed_linear("none")(x, packed.PACK_LINEAR(weight, 2), bias)
    in_float64(F.linear, x, weight, bias).assert_holds(made)
    assert made.is_contiguous()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", [(2, 4, 6, 5), (1, 4, 3, 3), (0, 4, 3, 3), (2, 4, 3, 4, 5)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolution_lies_as_fakes_say(size: tuple[int, ...], groups: int, channels_last: bool) -> None:
    space = len(size) - 2
    geometry = ([1] * space, [2] * space, [1] * space, groups)
    weight, bias, x = torch.randn(8, 4 // groups, *[3] * space), torch.randn(8), torch.randn(size)
    if channels_last:
        x = x.contiguous(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[space])
    padding, stride, dilation, _ = geometry

    def plain(x: Tensor, weight: Tensor, bias: Tensor, addend: Tensor) -> Tensor:
        made = torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * space, groups)
        return torch.relu(made + addend)

    addend = torch.randn(plain(x, weight, bias, torch.zeros(())).shape)
    made: Any = packed.packed_conv("relu")(
        x, packed.PACK_CONV(weight, *geometry, [3, *size[1:]]), bias, *geometry, addend
    )
    in_float64(plain, x, weight, bias, addend).assert_holds(made)
    mode = new_fake_mode()
    with mode:
        fakes = [torch.empty_strided(t.shape, t.stride()) for t in (x, weight, bias, addend)]
        kernel = packed.PACK_CONV(fakes[1], *geometry, [3, *size[1:]])
        described: Any = packed.packed_conv("relu")(fakes[0], kernel, fakes[2], *geometry, fakes[3])
    assert described.stride() == made.stride()


def test_facts_and_text() -> None:
    for prim in (prims.PACK_LINEAR, prims.PACK_CONV, prims.packed_linear("gelu"), prims.packed_conv("none")):
        assert facts_of(prim).is_pure
        assert read_target(target_text(prim)) is prim
    assert packing.is_packing(prims.PACK_CONV)
    assert packing.takes_packed(prims.packed_conv("relu"))
    assert not packing.takes_packed(prims.PACK_LINEAR)
