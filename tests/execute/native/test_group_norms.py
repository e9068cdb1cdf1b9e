"""Groups of channels with channels last, normalised: as near to float64 as torch's kernel for planes, in programs of
known and of free sizes, with and without machine code.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native.group_norms import group_norm_call
from dovetail.execute.native.panels import multiplies_panels
from dovetail.ops.group_norms import GROUP_NORM
from tests.fresh_memory import HUGE, filled_with
from tests.rotation import rotated

_WHERE = pytest.mark.skipif(not multiplies_panels(), reason="no machine code can be made here")


def _error(found: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> float:
    affine = [None if each is None else each.double() for each in (weight, bias)]
    exact = nn.functional.group_norm(x.double(), groups, *affine, eps)
    return float((found.double() - exact).abs().max())


@_WHERE
@pytest.mark.parametrize(
    ("channels", "groups", "images", "size", "mean"),
    rotated(
        [
            *(
                (channels, groups, images, size, mean)
                for (channels, groups), images, size, mean in product(
                    [(2, 1), (3, 3), (8, 2), (16, 16), (24, 4), (36, 3), (64, 8), (64, 32), (96, 6), (130, 10)],
                    [1, 3],
                    [(1, 2), (5, 7), (40, 33)],
                    [0.0, 1.0, 50.0],
                )
            )
        ],
        16,
    ),
)
def test_sizes(channels: int, groups: int, images: int, size: tuple[int, int], mean: float) -> None:
    x = (torch.randn(images, channels, *size) + mean).to(memory_format=torch.channels_last)
    weight, bias, call = torch.randn(channels), torch.randn(channels), group_norm_call()
    former = torch.get_num_threads()
    for affine in ((weight, bias), (None, None), (weight, None), (None, bias)):
        own, found = _error(GROUP_NORM.run(x, *affine, groups, 1e-5), x, *affine, groups, 1e-5), []
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                with filled_with(HUGE):
                    found.append(call(x, *affine, groups, 1e-5))
        finally:
            torch.set_num_threads(former)
        assert torch.equal(*found)
        assert found[0].is_contiguous(memory_format=torch.channels_last)
        scale = 1.0 + float(weight.abs().max())
        assert _error(found[0], x, *affine, groups, 1e-5) <= 4 * own + 4e-6 * scale


@_WHERE
def test_numbers_that_are_not_finite_and_others_that_do_not_fit() -> None:
    call, x = group_norm_call(), torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    x[0, 3, 2, 2], x[1, 0, 0, 0] = torch.nan, torch.inf
    expected = GROUP_NORM.run(x, None, None, 4, 1e-5)
    assert torch.equal(call(x, None, None, 4, 1e-5).isnan(), expected.isnan())
    for other in (x.contiguous(), x.double(), x[:, :, ::2], x[:0]):
        weight = torch.randn(8, dtype=other.dtype)
        found = call(other, weight, None, 2, 1e-3)
        torch.testing.assert_close(found, nn.functional.group_norm(other, 2, weight, None, 1e-3), equal_nan=True)
    with pytest.raises(RuntimeError):
        call(x, None, None, 3, 1e-5)


class _Blocks(nn.Module):
    """Values far from zero next to their spread, of which torch's kernel for channels last leaves few digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.norm, self.last = nn.GroupNorm(4, 32), nn.GroupNorm(8, 32, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.sigmoid(0.01 * self.first(x)))
        made: Tensor = self.last(3 + 0.02 * torch.sigmoid(self.second(x))) + x
        return made


@pytest.mark.parametrize("executors", [("auto", "aten"), ("aten",)])
@pytest.mark.parametrize("count", [1, 2])
def test_frozen_models_are_as_exact_as_eager_mode(executors: tuple[str, ...], count: int) -> None:
    torch.manual_seed(count)
    model = _Blocks().eval()
    exactly = copy.deepcopy(model).double()
    frozen: Any = dovetail.freeze(model, (torch.randn(count, 3, 17, 20),), passes="fast", executors=executors)
    bitwise: Any = dovetail.freeze(model, (torch.randn(count, 3, 17, 20),), executors=executors)
    for images in (count, 1, 3):
        x = torch.randn(images, 3, 17, 20)
        with torch.no_grad():
            exact, eager = exactly(x.double()), model(x)
            own = float((eager.double() - exact).abs().max())
            assert float((frozen(x).double() - exact).abs().max()) <= 4 * own
            assert torch.equal(bitwise(x), eager)


@_WHERE
def test_calls_by_themselves_have_the_kernel() -> None:
    """Of programs whose sizes are free, by either executor."""
    for executors in (("auto", "aten"), ("native", "aten")):
        frozen: Any = dovetail.freeze(
            _Blocks().eval(), (torch.randn(2, 3, 17, 20),), passes="fast", executors=executors
        )
        code = frozen._running.methods["forward"].variants[1].runner.graph.forward
        nodes = [node for node in code.program.nodes if node.target is GROUP_NORM]
        assert len(nodes) == 2
        assert {code.executors.owner(node).name for node in nodes} == {executors[0]}


@_WHERE
def test_they_are_rows() -> None:
    model, x = _Blocks().eval(), torch.randn(1, 3, 17, 20)
    frozen: Any = dovetail.freeze(model, (x,), passes="fast", dynamic_shapes="static")
    code = frozen._running.methods["forward"].variants[0].runner.graph.forward
    listings = "".join(group.listing() for group in code.executors.groups.values())
    assert listings.count("group_norm") >= 2
