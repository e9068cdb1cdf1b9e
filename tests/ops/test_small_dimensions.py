"""Fakes have the strides that kernels give, where sizes of 1 make images lie in two memory formats at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dovetail.torch_compat.fake_layouts import RightLayouts
from dovetail.torch_compat.fakes import new_fake_mode

aten = torch.ops.aten

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hardswish": lambda x, _: F.hardswish(x),
    "hardtanh": lambda x, _: F.hardtanh(x),
    "relu6": lambda x, _: F.relu6(x),
    "rrelu": lambda x, _: F.rrelu(x),
    "zeros_like": lambda x, _: torch.zeros_like(x),
    "ones_like": lambda x, _: torch.ones_like(x),
    "rand_like": lambda x, _: torch.rand_like(x),
    "batch_norm": lambda x, _: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "batch_norm in training": lambda x, _: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x, _: F.instance_norm(x),
    "softmax": lambda x, _: F.softmax(x, 1),
    "log_softmax": lambda x, _: F.log_softmax(x, 1),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.0),
    "masked_fill by a tensor": lambda x, y: x.masked_fill(y > 0, torch.tensor(0.0)),
    "roll": lambda x, _: x.roll(1, 2),
    "roll in two dimensions": lambda x, _: x.roll((1, -2), (3, 1)),
    "roll in a row": lambda x, _: x.roll(1),
    "flip": lambda x, _: x.flip(2),
    "sort": lambda x, _: x.sort(2)[0],
    "tril": lambda x, _: x.tril(),
    "nan_to_num": lambda x, _: torch.nan_to_num(x),
    "frexp": lambda x, _: torch.frexp(x)[0],
    "full_like": lambda x, _: torch.full_like(x, 2.0),
    "complex": torch.complex,
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "lerp by a tensor": lambda x, y: torch.lerp(x, y, x),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "binary_cross_entropy_backward": lambda x, y: aten.binary_cross_entropy_backward(x, y, y * 0, None, 0),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.1, False),
    "log_sigmoid_backward": lambda x, y: aten.log_sigmoid_backward(x, y, y),
    "mish_backward": aten.mish_backward,
    "rrelu_with_noise_backward": lambda x, y: aten.rrelu_with_noise_backward(x, y, y, 0.1, 0.3, False, False),
    "soft_margin_loss_backward": lambda x, y: aten.soft_margin_loss_backward(x, x, y, 1),
    "ldexp by whole numbers": lambda x, y: aten.ldexp.Tensor(x, y.int()),
    "ldexp by expanded numbers": lambda x, y: aten.ldexp.Tensor(x, y[:1, :1].long().expand(x.shape)),
    "isinf of complex numbers": lambda x, y: aten.isinf(torch.complex(x, y)),
    "softmax_backward": lambda x, y: aten._softmax_backward_data(x, y, 1, torch.float32),
}


def _images() -> Iterator[Tensor]:
    for batch, channels, height, width in itertools.product((1, 5), (1, 4), (1, 6), (1, 8)):
        image = torch.rand(batch, channels, height, width)
        yield image
        yield image.to(memory_format=torch.channels_last)
        yield torch.rand(batch, channels, width, height).mT
        yield torch.rand(channels, batch, height, width).transpose(0, 1)
        if channels == 1:
            yield image.as_strided(image.shape, (height * width, 1, width, 1))


@pytest.mark.parametrize("name", list(CALLS))
def test_fakes_lie_as_results_of_kernels_do(name: str) -> None:
    call, wrong = CALLS[name], []
    images = list(_images())
    for number, x in enumerate(images):
        for y in (x, *(other for other in images[number % 3 :: 7] if other.shape == x.shape)):
            mode = new_fake_mode()
            twins = [mode.from_tensor(one) for one in (x, y)]
            with torch.no_grad():
                try:
                    real = call(x, y)
                except ValueError:  # a norm of one number
                    continue
                with mode, RightLayouts():
                    fake = call(*twins)
            if fake.stride() != real.stride():
                wrong.append((x.shape, x.stride(), y.stride(), real.stride(), fake.stride()))
    assert not wrong
