"""Largest elements of parts of images as rows: torch's bits, for vectors of both sizes and some threads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.machine import driver, function_of, has_vectors
from dovetail.execute.native.max_pools import max_pool_text
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.rows import table_row
from dovetail.ops.max_pools import MAX_POOL
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")

_NUMBERS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding", "ceil_mode"),
    rotated(
        [
            *product(
                [(1, 3, 9, 11), (2, 16, 8, 6), (3, 40, 5, 7), (1, 17, 30, 31)],
                [(2, 2), (3, 3), (1, 4), (5, 2)],
                [(2, 2), (1, 3)],
                [(0, 0), (1, 1)],
                [False, True],
            )
        ],
        16,
    ),
)
def test_sizes(
    lanes: int,
    image: tuple[int, int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    ceil_mode: bool,
) -> None:
    if not has_vectors(lanes):
        pytest.skip("the processor has no such vectors")
    if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        pytest.skip("torch refuses it")
    function = function_of(max_pool_text(lanes), "max_pool", ())
    assert function is not None
    x = torch.randint(-3, 4, image).float().to(memory_format=torch.channels_last)
    places = torch.randint(0, x.numel(), (len(_NUMBERS),))
    x.permute(0, 2, 3, 1).view(-1)[places] = torch.tensor(_NUMBERS)
    expected = nn.functional.max_pool2d(x, kernel, stride, padding, 1, ceil_mode)
    images, channels, rows, columns = expected.shape
    memory = torch.full((expected.numel() + 1,), 7.0)
    more = torch.tensor([images, rows, columns, channels, *image[2:], *kernel, *stride, *padding]).numpy().tobytes()
    for threads in (1, 2):
        table = table_row(function, 1 << 16, [memory.data_ptr(), x.data_ptr()], (), more)
        assert not driver()(table, 1, threads, 0)
        found = memory[:-1].view(images, rows, columns, channels).permute(0, 3, 1, 2)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit(), expected.signbit())
        assert memory[-1] == 7


class _Pooled(nn.Module):
    def __init__(self, *, reads: bool, dilation: int = 1) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.pool, self.reads = nn.MaxPool2d(3, 2, 1, dilation, return_indices=True), reads

    def forward(self, x: Tensor) -> Any:
        x, indices = self.pool(self.first(x).relu())
        made = self.second(x)
        return (made, indices) if self.reads else made


@pytest.mark.parametrize(("reads", "dilation"), [(False, 1), (True, 1), (False, 2)])
@pytest.mark.parametrize("batch", [1, 3])
def test_programs(reads: bool, dilation: int, batch: int) -> None:
    model, x = _Pooled(reads=reads, dilation=dilation).eval(), torch.randn(batch, 3, 20, 24)
    for executors in (("auto", "aten"), ("native", "aten"), ("aten",)):
        frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static", executors=executors)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)
        ((variant,),) = (method.variants for method in frozen._running.methods.values())
        nodes = variant.runner.graph.forward.program.nodes
        is_chosen = not reads and dilation == 1 and executors != ("aten",)
        assert any(node.target is MAX_POOL for node in nodes) == is_chosen
    assert torch.equal(dovetail.freeze(model, (x,))(x)[0], model(x)[0])
