"""Images of one channel lie in two memory formats at once. Kernels choose by the stride of that one channel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail

_FORMATS = (torch.contiguous_format, torch.channels_last)


class _Net(nn.Module):
    def __init__(self, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 1, 3, padding=1, bias=False)
        self.second = nn.Conv2d(1, 8, 3, padding=1, padding_mode="reflect")
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.sigmoid(self.first(x)))))


_HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "as made": lambda x: x,
    "flattened": lambda x: x.flatten(1),
    "viewed": lambda x: x.view(x.shape[0], 8, -1).softmax(-1),
    "pooled": lambda x: nn.functional.max_pool2d(x, 2).flatten(2).transpose(1, 2),
    "averaged": lambda x: nn.functional.adaptive_avg_pool2d(x, 3).flatten(1),
}


def _images(count: int, memory_format: torch.memory_format) -> Tensor:
    return torch.randn(count, 1, 12, 12).to(memory_format=memory_format)


@pytest.mark.parametrize("name", _HEADS)
@pytest.mark.parametrize("passes", ["bitwise", "fast"])
@torch.no_grad()
def test_frozen_in_one_format_called_in_both(passes: str, name: str) -> None:
    """Results are those of the images in the example's format, strides included, whatever format a call has them in."""
    torch.manual_seed(1)
    model = _Net(_HEADS[name]).eval()
    for count, example in ((1, _FORMATS[0]), (3, _FORMATS[0]), (3, _FORMATS[1])):
        frozen = dovetail.freeze(model, (_images(count, example),), passes=passes)
        for images in (_images(other, given) for other in (1, 3, 4) for given in _FORMATS):
            as_in_example = images.as_strided(images.shape, _images(len(images), example).stride())
            wanted = model(as_in_example)
            found = frozen(images)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0 if passes == "bitwise" else 1e-5)
            assert found.stride() == wanted.stride()


@torch.no_grad()
def test_written_and_returned_images() -> None:
    """An image that a program writes, and one that it returns, stay what they are in another memory format."""

    class Writes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x.add_(1)[0], y[1:]

    frozen = dovetail.freeze(Writes(), (_images(3, _FORMATS[0]), _images(3, _FORMATS[0])))
    for given in _FORMATS:
        x, y = _images(4, given), _images(4, given)
        before = x.clone()
        first, rest = frozen(x, y)
        assert torch.equal(x, before + 1)
        assert first.data_ptr() == x.data_ptr()
        assert rest.data_ptr() == y[1:].data_ptr()
        assert torch.equal(first, x[0])


@pytest.mark.parametrize("door", ["compile", "torch.compile"])
@torch.no_grad()
def test_compiled_for_any_size(door: str) -> None:
    model = _Net(_HEADS["as made"]).eval()
    torch.compiler.reset()
    compiled = (
        dovetail.compile(model, dynamic=True)
        if door == "compile"
        else torch.compile(model, backend="dovetail", dynamic=True)
    )
    for images in (_images(count, given) for count in (3, 4, 1) for given in reversed(_FORMATS)):
        wanted = model(images)
        found = compiled(images)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()
    torch.compiler.reset()
