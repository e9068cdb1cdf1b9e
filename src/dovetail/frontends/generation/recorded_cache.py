"""A key-value cache of transformers over buffers of ours, for one call that is recorded.

Layers follow `StaticCache` of transformers: the keys and values that attention gets, and the sizes of its masks, are
the same, so a program has the bits of `generate` with such a cache. Lengths are tensors here, one for each row, where
transformers has one for all rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer of a cache. length: tokens that it has room for. window: it keeps the last ones only."""

    heads: int
    key_width: int
    value_width: int
    length: int
    dtype: torch.dtype
    window: bool


class RecordedLayer:
    """What the attention of one layer asks of its cache, in one call."""

    is_compileable = True
    is_initialized = True

    def __init__(
        self, shape: LayerShape, update: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], seen: int, before: int = 0
    ) -> None:
        """update: takes new keys and values in, and gives those that are attended to. seen: of those, in prefill.

        before: how many tokens came before. Recorded calls have it as a tensor of their own.
        """
        self.is_sliding = shape.window
        self.max_cache_len = shape.length
        self._update = update
        self._seen = seen
        self._before = before

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take new keys and values in."""
        return self._update(keys, values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys are attended to, and where they begin."""
        return self._seen, 0

    def get_seq_length(self) -> int:
        """How many tokens came before. Of recorded calls only prefill asks, which starts with an empty cache."""
        return self._before

    def get_max_length(self) -> int:
        """How many tokens there is room for."""
        return self.max_cache_len

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the buffers exist."""


def transformers_caches() -> Any:
    """The module of transformers with its caches. Whoever gives one of its models has imported it."""
    return importlib.import_module("transformers.cache_utils")


def common_preparation() -> Any:
    """What models of transformers have for `prepare_inputs_for_generation` unless they have their own."""
    return importlib.import_module("transformers.generation").GenerationMixin.prepare_inputs_for_generation


@cache
def _layer_class() -> Any:
    """The class that transformers takes for a layer of a cache."""
    return type("RecordedCacheLayer", (RecordedLayer, transformers_caches().CacheLayerMixin), {})


def cache_of(
    layers: Sequence[tuple[LayerShape, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], int]], before: int = 0
) -> Any:
    """A cache of transformers with these layers; for each its shape, what takes keys in, and how many are seen."""
    made = _layer_class()
    return transformers_caches().Cache(layers=[made(*one, before) for one in layers])


def put_first(buffer: Tensor, new: Tensor) -> Tensor:
    """Empty a buffer but for new rows at its start."""
    buffer.zero_()
    buffer.narrow(2, 0, new.shape[2]).copy_(new)
    return buffer


def put_last(buffer: Tensor, new: Tensor) -> Tensor:
    """Keep the last of more rows than a buffer has room for; all of them are attended to."""
    buffer.copy_(new.narrow(2, new.shape[2] - buffer.shape[2], buffer.shape[2]))
    return new


def put_at(buffer: Tensor, new: Tensor, place: Tensor) -> Tensor:
    """Write the new row of each sequence to its place in a buffer of shape [batch, heads, length, width]."""
    batch, heads, length, width = buffer.shape
    if batch == 1:
        return buffer.index_copy_(2, place, new)
    firsts = torch.arange(batch * heads, device=buffer.device) * length
    rows = (firsts.view(batch, heads) + place[:, None]).flatten()
    buffer.view(batch * heads * length, width).index_copy_(0, rows, new.reshape(batch * heads, width))
    return buffer


def push(buffer: Tensor, new: Tensor) -> Tensor:
    """Drop the first row of a full buffer, and append a new one."""
    buffer.copy_(torch.cat((buffer.narrow(2, 1, buffer.shape[2] - 1), new), 2))
    return buffer


def put_slot(buffer: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Replace what a buffer holds for one sequence; gives the new contents, with a batch of one."""
    whole = buffer.new_zeros((1, *buffer.shape[1:]))
    whole.narrow(2, 0, new.shape[2]).copy_(new)
    buffer.index_copy_(0, slot, whole)
    return whole
