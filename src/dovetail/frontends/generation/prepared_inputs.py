"""Whether a model goes on with a text as frozen programs do: each token by itself, with the cache of those before it.

`generate` of transformers calls `prepare_inputs_for_generation` before each token. A model may have its own, and decide
by the whole text: those with two sets of rotary frequencies (Phi-3) drop the cache where a text outgrows the first one.
Decoding is one program for all lengths, so each length is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import NotFreezable
from dovetail.frontends.generation.recorded_cache import LayerShape, cache_of, common_preparation

_MASK = "attention_mask"  # the program has its own


def check_prepared_inputs(model: Any, layers: Sequence[LayerShape], longest: int, spare: int) -> None:
    """Raise NotFreezable where a model's own `prepare_inputs_for_generation` looks at more than the last token.

    longest: tokens of the longest text that is continued. spare: by how many `max_length` is above that.
    """
    prepare = model.prepare_inputs_for_generation
    if inspect.unwrap(getattr(prepare, "__func__", prepare)) is inspect.unwrap(common_preparation()):
        return
    device = next(model.parameters()).device
    for length in range(2, longest + 1):
        cache = cache_of([(one, _unused, one.length) for one in layers], before=length - 1)
        tokens = torch.ones(1, length, dtype=torch.int64, device=device)
        places = torch.arange(length, device=device)[None]
        common = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1, "is_first_iteration": False}
        whole = prepare(tokens, next_sequence_length=1, attention_mask=tokens, position_ids=places, **common)
        alone = prepare(tokens[:, -1:], attention_mask=None, position_ids=places[:, -1:].clone(), **common)
        other = _differing(whole, alone)
        if other:
            reason = (
                f"after {length} tokens its prepare_inputs_for_generation gives another {other[0]} "
                "for a whole text than for its last token"
            )
            hint = f"freeze with max_length={length - 1 + spare}" if length > 2 else "call generate of the model itself"
            raise NotFreezable(what=type(model).__name__, reason=reason, hint=hint)


def _unused(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    raise AssertionError("no layer runs")


def _differing(whole: Mapping[str, Any], alone: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name in sorted({*whole, *alone} - {_MASK})
        if name not in whole or name not in alone or not _is_same(whole[name], alone[name])
    ]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return one is other or (type(one) is type(other) and isinstance(one, bool | int | float | str) and one == other)
