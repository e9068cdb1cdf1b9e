"""Channels of images that are put side by side as rows: each element in its place, by some threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.channel_parts import channel_parts_text
from dovetail.execute.native.machine import driver, function_of, has_vectors
from dovetail.execute.native.panels import multiplies_panels
from dovetail.execute.native.rows import table_row
from dovetail.ops.channel_parts import CAT_CHANNELS

pytestmark = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("pixels", "widths"), [(1, (1, 2)), (35, (16, 16)), (40, (3, 17, 8)), (9, (70,))])
def test_sizes(lanes: int, pixels: int, widths: tuple[int, ...]) -> None:
    if not has_vectors(lanes):
        pytest.skip("the processor has no such vectors")
    function = function_of(channel_parts_text(lanes), "channel_parts", ())
    assert function is not None
    channels, place = sum(widths), 0
    for threads in (1, 2):
        memory, parts, place = torch.full((pixels * channels + 1,), 7.0), [torch.randn(pixels, w) for w in widths], 0
        for part in parts:
            more = torch.tensor([pixels, channels, part.shape[1], place]).numpy().tobytes()
            table = table_row(function, 1 << 16, [memory.data_ptr(), part.data_ptr()], (), more)
            assert not driver()(table, 1, threads, 0)
            place += part.shape[1]
        assert torch.equal(memory[:-1].view(pixels, channels), torch.cat(parts, 1))
        assert memory[-1] == 7


class _Joined(nn.Module):
    def __init__(self, dim: int, *, is_last: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.dim, self.is_last = (
            nn.Conv2d(3, 32, 3, padding=1),
            nn.Conv2d(3, 32, 1),
            dim,
            is_last,
        )
        self.third = nn.Conv2d(96 if dim in (1, -3) else 32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        joined = torch.cat([a, b, a], self.dim)
        made: Tensor = joined if self.is_last else self.third(joined)
        return made


@pytest.mark.parametrize(
    ("dim", "is_last", "is_chosen"), [(1, False, True), (-3, False, True), (1, True, False), (2, False, False)]
)
@pytest.mark.parametrize("batch", [1, 2])
def test_programs(dim: int, is_last: bool, is_chosen: bool, batch: int) -> None:
    model, x = _Joined(dim, is_last=is_last).eval(), torch.randn(batch, 3, 20, 24)
    for executors in (("auto", "aten"), ("native", "aten"), ("aten",)):
        frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static", executors=executors)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5, check_stride=True)
        ((variant,),) = (method.variants for method in frozen._running.methods.values())
        nodes = variant.runner.graph.forward.program.nodes
        assert any(node.target is CAT_CHANNELS for node in nodes) == (is_chosen and executors != ("aten",))
    assert torch.equal(dovetail.freeze(model, (x,))(x), model(x))
