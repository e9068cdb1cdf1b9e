"""The module that is frozen: a language model with its cache as buffers, and a method for each kind of call.

| method | is for |
|---|---|
| `prefill` | prompts of one length, which fill the cache from its start |
| `prefill_padded` | prompts that are padded on the left |
| `prefill_long`, `prefill_padded_long` | the same, longer than the window of layers that slide |
| `prefill_slot` | one prompt, into one row of the cache; the other rows stay |
| `decode` | the next token of each row |
| `decode_full` | the same, once the window is full |

The model's own code runs in each, with what `generate` of transformers would give it: its bits are the program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.frontends.freezing.module import FreezesTo
from dovetail.frontends.freezing.pool import Pool
from dovetail.frontends.freezing.running import Running
from dovetail.frontends.generation.generator import FrozenGenerator
from dovetail.frontends.generation.habits import Habits
from dovetail.frontends.generation.recorded_cache import (
    LayerShape,
    cache_of,
    push,
    put_at,
    put_first,
    put_last,
    put_slot,
)

_ATTENTION = "_attn_implementation"  # where transformers keeps it


def attention_of(config: Any) -> str:
    """Which attention a configuration of transformers chooses: "sdpa", "eager" or another."""
    return str(getattr(config, _ATTENTION))


class LanguageModel(FreezesTo):
    """A language model of transformers, its cache, and what is known of each row.

    Buffers: keys_K and values_K of each layer. seen: which tokens of a row are attended to. written: how many places of
    its cache are taken. positions: the position of its next token.
    """

    seen: Tensor
    written: Tensor
    positions: Tensor

    def __init__(self, model: nn.Module, layers: Sequence[LayerShape], batch: int, length: int, habits: Habits) -> None:
        super().__init__()
        self._habits = habits
        self.train(model.training)
        self.model = model
        self._layers = tuple(layers)
        self._length = length
        self._before = 0  # what the cache says of its length
        config: Any = model.config
        text = config.get_text_config(decoder=True)
        self._is_eager = attention_of(text) == "eager"
        self._layer_types = tuple(dict.fromkeys(text.layer_types)) if hasattr(text, "layer_types") else ()
        device = next(model.parameters()).device
        self._dtype: torch.dtype = next(model.parameters()).dtype
        for number, one in enumerate(layers):
            for name, width in (("keys", one.key_width), ("values", one.value_width)):
                made = torch.zeros(batch, one.heads, one.length, width, dtype=one.dtype, device=device)
                self.register_buffer(f"{name}_{number}", made)
        self.register_buffer("seen", torch.zeros(batch, length, dtype=torch.bool, device=device))
        self.register_buffer("written", torch.zeros(batch, dtype=torch.int64, device=device))
        self.register_buffer("positions", torch.zeros(batch, dtype=torch.int64, device=device))

    def frozen_as(self, name: str, running: Running, pool: Pool, **settings: Any) -> FrozenGenerator:
        """See `FreezesTo`."""
        habits = replace(self._habits, window=self.window or 0)
        return FrozenGenerator(type(self.model).__name__, running, pool, habits=habits, **settings)

    @property
    def window(self) -> int | None:
        """The length of layers that slide, and are shorter than the others."""
        return next((one.length for one in self._layers if one.window and one.length < self._length), None)

    @torch.no_grad()
    def reads_length(self) -> bool:
        """Whether the model asks its cache how many tokens came before, and then gives other logits.

        A cache here has no such number, but one for each row, in a tensor.
        """
        one = self.seen.new_zeros((len(self.seen), 1), dtype=torch.int64)
        found = []
        for before in (0, 1):
            self.prefill(one)
            self._before = before
            found.append(self.decode(one).view(torch.int32))
            self._before = 0
        for state in self.buffers(recurse=False):
            state.zero_()
        return not torch.equal(*found)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def prefill(self, input_ids: Tensor) -> Tensor:
        """Map i64[batch, length] to the logits of the next tokens, f32[batch, words]."""
        return self._prefill(input_ids, None, is_long=False)

    def prefill_long(self, input_ids: Tensor) -> Tensor:
        """The same for prompts that do not fit in the window."""
        return self._prefill(input_ids, None, is_long=True)

    def prefill_padded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The same for prompts that begin with padding, which attention_mask, i64[batch, length], has 0 for."""
        return self._prefill(input_ids, attention_mask, is_long=False)

    def prefill_padded_long(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The same for prompts that do not fit in the window."""
        return self._prefill(input_ids, attention_mask, is_long=True)

    def prefill_slot(self, input_ids: Tensor, slot: Tensor) -> Tensor:
        """Map i64[1, length] to f32[1, words]. slot: i64[1], the row of the cache that the prompt gets."""
        count = input_ids.shape[1]
        positions = torch.arange(count, device=input_ids.device)[None]
        logits = self._first(input_ids, None, positions, self._cache(partial(put_slot, slot=slot)))
        row = self.seen.new_zeros((1, self._length))
        row.narrow(1, 0, count).fill_(True)
        self.seen.index_copy_(0, slot, row)
        for state in (self.written, self.positions):
            state.index_copy_(0, slot, state.new_full((1,), count))
        return logits

    def _prefill(self, input_ids: Tensor, attention_mask: Tensor | None, *, is_long: bool) -> Tensor:
        count = input_ids.shape[1]
        self.seen.zero_()
        if attention_mask is None:
            positions = torch.arange(count, device=input_ids.device)[None]
            self.seen.narrow(1, 0, count).fill_(True)
            self.positions.fill_(count)
        else:
            positions = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 0)
            self.seen.narrow(1, 0, count).copy_(attention_mask != 0)
            self.positions.copy_(positions[:, -1] + 1)
        self.written.fill_(count)
        seen_in_window = count if is_long else None
        cache = self._cache(put_first, put_last if is_long else put_first, seen_in_window)
        masks = None if attention_mask is None else self._masks(attention_mask != 0, count, seen_in_window)
        return self._first(input_ids, masks, positions, cache)

    def _first(self, input_ids: Tensor, masks: Any, positions: Tensor, cache: Any) -> Tensor:
        """Logits after a prompt; the model makes its masks where there is no padding."""
        model: Any = self.model
        given = model.prepare_inputs_for_generation(
            input_ids,
            past_key_values=cache,
            attention_mask=None,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            is_first_iteration=True,
        )
        return self._logits(given, masks)

    # --- tokens -------------------------------------------------------------------------------------------------------

    def decode(self, tokens: Tensor) -> Tensor:
        """Map i64[batch, 1] to the logits of the tokens after them, f32[batch, words]."""
        return self._decode(tokens, is_full=False)

    def decode_full(self, tokens: Tensor) -> Tensor:
        """The same, once the window is full."""
        return self._decode(tokens, is_full=True)

    def _decode(self, tokens: Tensor, *, is_full: bool) -> Tensor:
        place = self.written.clamp(max=self._length - 1)
        self.seen.scatter_(1, place[:, None], True)
        put = partial(put_at, place=place)
        cache = self._cache(put, push if is_full else put)
        in_window = None
        window = self.window
        if window is not None:
            in_window = self.seen.narrow(1, 0, window)
            if is_full:  # all rows are equally long then
                last = torch.arange(window, device=tokens.device) + (place[:1] - (window - 1))
                in_window = self.seen.index_select(1, last)
        everything, last_ones = self._additive(self.seen), None if in_window is None else self._additive(in_window)
        model: Any = self.model
        given = model.prepare_inputs_for_generation(
            tokens,
            past_key_values=cache,
            attention_mask=None,
            position_ids=self.positions[:, None].clone(),
            use_cache=True,
            logits_to_keep=1,
            is_first_iteration=False,
        )
        logits = self._logits(given, self._by_type(everything, everything if last_ones is None else last_ones))
        self.positions.add_(1)
        self.written.add_(1)
        return logits

    # --- both ---------------------------------------------------------------------------------------------------------

    def _logits(self, given: dict[str, Any], masks: Any) -> Tensor:
        if masks is not None:
            given["attention_mask"] = masks
        logits: Tensor = self.model(**given, return_dict=True).logits
        return logits[:, -1].to(copy=True, dtype=torch.float32)

    def _cache(self, put: Any, put_in_window: Any = None, seen_in_window: int | None = None) -> Any:
        """The cache for a call. put, put_in_window: take new keys in, in layers that hold all and the last ones."""
        made = []
        for number, one in enumerate(self._layers):
            is_short = one.window and one.length < self._length
            takes = put_in_window if is_short and put_in_window is not None else put
            seen = one.length if seen_in_window is None or not is_short else seen_in_window

            def update(keys: Tensor, values: Tensor, number: int = number, takes: Any = takes) -> tuple[Tensor, Tensor]:
                return (
                    takes(getattr(self, f"keys_{number}"), keys),
                    takes(getattr(self, f"values_{number}"), values),
                )

            made.append((one, update, seen))
        return cache_of(made, self._before)

    def _masks(self, given: Tensor, count: int, seen_in_window: int | None) -> Any:
        """Masks for padded prompts. given: bool[batch, count]."""
        everything = self._additive(self._causal(given, count, self._length, None))
        window = next((one for one in self._layers if one.window), None)
        if window is None:
            return self._by_type(everything, everything)
        keys = window.length if seen_in_window is None else seen_in_window
        return self._by_type(everything, self._additive(self._causal(given, count, keys, self._sliding())))

    def _sliding(self) -> int:
        config: Any = self.model.config
        return int(config.get_text_config(decoder=True).sliding_window)

    def _causal(self, given: Tensor, count: int, keys: int, window: int | None) -> Tensor:
        """Which keys a query attends to: bool[batch, 1, queries, keys]."""
        query = torch.arange(count, device=given.device)[:, None]
        key = torch.arange(keys, device=given.device)[None]
        allowed = key <= query
        if window is not None:
            allowed = allowed & (key > query - window)
        padding = torch.nn.functional.pad(given, (0, keys - count))
        return allowed[None, None] & padding[:, None, None]

    def _additive(self, mask: Tensor) -> Tensor:
        """A mask as the attention of the model takes it."""
        mask = mask[:, None, None] if mask.dim() == 2 else mask
        if not self._is_eager:
            return mask.contiguous()
        least = torch.finfo(self._dtype).min
        return torch.where(mask, torch.zeros((), dtype=self._dtype, device=mask.device), least)

    def _by_type(self, everything: Tensor, in_window: Tensor) -> Any:
        """Masks as the model takes them: one for each type of its layers where it has several."""
        if self._layer_types:
            return {name: in_window if "sliding" in name else everything for name in self._layer_types}
        return in_window if any(one.window for one in self._layers) else everything
