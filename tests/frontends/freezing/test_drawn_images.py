"""Random nets over images, frozen: results of eager mode, whatever was in the memory that calls take.

Three seeds stay: a kernel of torch's that is not for one channel, and strides of images of one pixel.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

import dovetail
from dovetail.errors import FrozenCallMismatch
from tests.fresh_memory import HUGE, filled_with
from tests.image_programs import Drawn, images
from tests.rotation import rotated

_ERRORS, _SMALLEST = 4.0, 4e-6  # of eager mode's own; next to the largest element


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    former = torch.get_num_threads()
    yield
    torch.set_num_threads(former)


@pytest.mark.parametrize("passes", ["bitwise", "fast"])
@pytest.mark.parametrize("seed", sorted({*rotated(range(400), of=40), 1006, 1257, 2106, 400361}))
def test_results_of_drawn_nets(seed: int, passes: str) -> None:
    net, channels_last, count = Drawn(seed).eval(), seed % 3 == 0, 1 + seed // 3 % 3
    exactly = copy.deepcopy(net).double()
    torch.set_num_threads(1 + 2 * (seed % 2))
    with torch.no_grad():
        frozen = dovetail.freeze(net, (images(net, count, seed, channels_last=channels_last),), passes=passes)
        for at, number in enumerate((count, count, 1, 4)):
            x = images(net, number, seed * 7 + at, channels_last=channels_last)
            with filled_with(HUGE):
                wanted = net(x)
                try:
                    found = frozen(x)
                except FrozenCallMismatch:  # `specialized` says so
                    assert frozen.specialized
                    continue
            if passes == "bitwise":
                assert torch.equal(found, wanted)
                continue
            exact = exactly(x.double())
            own = (wanted.double() - exact).abs().max()
            most = _ERRORS * own + _SMALLEST * exact.abs().max().clamp(min=1)
            assert (found.double() - exact).abs().max() <= most
