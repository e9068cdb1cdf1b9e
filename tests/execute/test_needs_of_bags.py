"""What operators over bags of positions take from the allocator: steps with `nn.EmbeddingBag` keep to what is said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak


class Bags:
    """A step over bags of words. starts: where each begins, None where they are rows."""

    def __init__(
        self, words: Tensor, starts: Tensor | None = None, weights: Tensor | None = None, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.bags = nn.EmbeddingBag(60, 8, **options)
        self.sgd = torch.optim.SGD([*self.bags.parameters(), *([weights] if weights is not None else [])], lr=0.1)
        self.batch = words, starts, weights

    def step(self, words: Tensor, starts: Tensor | None, weights: Tensor | None) -> Tensor:
        self.sgd.zero_grad()
        loss = self.bags(words, starts, weights).square().mean()
        loss.backward()
        self.sgd.step()
        return loss.detach()


_WORDS = torch.arange(42) % 31
_STARTS = torch.tensor([0, 3, 3, 20, 33])
_ENDS = torch.tensor([0, 3, 3, 20, 42])
_BAGS: dict[str, Callable[[], Bags]] = {
    **{
        f"{mode} of {name}": partial(Bags, *batch, mode=mode, **options)
        for mode in ("sum", "mean")
        for name, batch, options in (
            ("rows", (_WORDS.view(6, 7),), {}),
            ("parts", (_WORDS, _STARTS), {}),
            ("parts that end", (_WORDS, _ENDS), {"include_last_offset": True}),
            ("parts with padding", (_WORDS, _STARTS), {"padding_idx": 0}),
            ("parts in bfloat16", (_WORDS, _STARTS), {"dtype": torch.bfloat16}),
            ("short numbers", (_WORDS.int(), _STARTS.int()), {}),
            ("frequent words", (_WORDS, _STARTS), {"scale_grad_by_freq": True}),
        )
    },
    "weighted rows": lambda: Bags(_WORDS.view(6, 7), None, torch.rand(6, 7), mode="sum"),
    "weighted parts": lambda: Bags(_WORDS, _STARTS, torch.rand(42), mode="sum"),
    "weighted parts that end": lambda: Bags(_WORDS, _ENDS, torch.rand(42), mode="sum", include_last_offset=True),
    "learned weights": lambda: Bags(
        _WORDS, _ENDS, torch.rand(42).requires_grad_(), mode="sum", include_last_offset=True
    ),
    "max": lambda: Bags(_WORDS, _STARTS[:2], mode="max"),
}


def _floor_of_bags(name: str) -> int:
    bags = _BAGS[name]()
    with pytest.raises(MemoryLimitTooLow) as caught:
        dovetail.compile_step(bags.step, executors=("aten",), memory_limit="transient:1B")(*bags.batch)
    return int(caught.value.facts["floor_bytes"])


@pytest.mark.parametrize("name", _BAGS)
def test_bags_take_what_is_said(name: str) -> None:
    """Sums keep no list of bags, which their gradient makes then; a last offset is the end of the last bag."""
    bags, lowest = _BAGS[name](), _floor_of_bags(name)
    compiled = dovetail.compile_step(bags.step, executors=("aten",), memory_limit=f"transient:{lowest}B")
    for _ in range(2):
        compiled(*bags.batch)
    peak, told = measure_peak(compiled, *bags.batch).peak_bytes, compiled.explain()
    assert peak == told.peak_bytes <= lowest
    assert not told.unknown_needs


def test_the_gradient_of_a_maximum_over_bags_takes_no_more_than_is_said() -> None:
    """What it takes hangs on how many bags hold something: all of them may."""
    bags = Bags(_WORDS, _STARTS, mode="max")
    compiled = dovetail.compile_step(bags.step, executors=("aten",))
    for _ in range(2):
        compiled(*bags.batch)
    assert measure_peak(compiled, *bags.batch).peak_bytes < compiled.explain().peak_bytes
