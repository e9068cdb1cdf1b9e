"""Choosing the next token from logits, as `generate` of transformers does: the same operators, and the same draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import BadOptionValue

_LEAST = -float("inf")

# What `generate` of transformers has and this one has not: the values that change nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "assistant_model": (None,),
    "bad_words_ids": (None,),
    "begin_suppress_tokens": (None,),
    "cache_implementation": (None, "static", "dynamic", "hybrid"),
    "constraints": (None,),
    "custom_generate": (None,),
    "diversity_penalty": (None, 0.0),
    "dola_layers": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "generation_config": (None,),
    "guidance_scale": (None, 1.0),
    "inputs_embeds": (None,),
    "logits_processor": (None,),
    "max_time": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "min_p": (None,),
    "no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "num_beams": (None, 1),
    "num_return_sequences": (None, 1),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "output_logits": (None, False),
    "output_scores": (None, False),
    "past_key_values": (None,),
    "penalty_alpha": (None,),
    "position_ids": (None,),
    "prefix_allowed_tokens_fn": (None,),
    "prompt_lookup_num_tokens": (None,),
    "remove_invalid_values": (None, False),
    "renormalize_logits": (None, False),
    "repetition_penalty": (None, 1.0),
    "return_dict_in_generate": (None, False),
    "sequence_bias": (None,),
    "stop_strings": (None,),
    "stopping_criteria": (None,),
    "suppress_tokens": (None,),
    "token_healing": (None, False),
    "token_type_ids": (None,),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "use_cache": (None, True),
    "watermarking_config": (None,),
}


def is_neutral(name: str, value: Any) -> bool:
    """Whether an option of transformers changes nothing with this value."""
    return any(value is other or (type(value) in (int, float, str) and value == other) for other in NEUTRAL[name])


def is_token(given: object) -> bool:
    """Whether it can be compared with tokens. Configurations have -1 where a model has no such token."""
    return type(given) is int and -(1 << 63) <= given < 1 << 63


@dataclass(frozen=True, slots=True)
class Choosing:
    """How the next token is chosen. temperature, top_k, top_p: with do_sample; 1, 0 and 1 do nothing."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0

    def with_options(self, options: Mapping[str, Any]) -> Choosing:
        """The same with those options that are not None. Raises: BadOptionValue."""
        made = replace(self, **{name: value for name, value in options.items() if value is not None})
        if not isinstance(made.do_sample, bool):
            raise BadOptionValue(option="do_sample", value=made.do_sample, reason="it is a flag", expected="a bool")
        for name, is_right, expected in (
            ("temperature", made.temperature > 0 if _is_number(made.temperature) else False, "a number above 0"),
            ("top_k", type(made.top_k) is int and made.top_k >= 0, "a whole number from 0; 0 keeps all tokens"),
            ("top_p", 0 < made.top_p <= 1 if _is_number(made.top_p) else False, "a number above 0, at most 1"),
        ):
            if not is_right:
                value, reason = getattr(made, name), "the next token could not be chosen with it"
                raise BadOptionValue(option=name, value=value, reason=reason, expected=expected)
        return made

    def tokens(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Map f32[batch, words] to i64[batch]. Draws from torch's generator, or another, one number for each row."""
        if not self.do_sample:
            return logits.argmax(-1)
        probabilities = torch.nn.functional.softmax(self._scores(logits), dim=-1)
        return torch.multinomial(probabilities, num_samples=1, generator=generator).squeeze(1)

    def _scores(self, logits: Tensor) -> Tensor:
        scores = logits
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if self.top_k != 0:
            last = torch.topk(scores, min(self.top_k, scores.shape[-1]))[0][..., -1, None]
            scores = scores.masked_fill(scores < last, _LEAST)
        if self.top_p < 1.0:
            ordered, places = torch.sort(scores, descending=False)
            removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1 - self.top_p)
            removed[..., -1:] = False
            scores = scores.masked_fill(removed.scatter(1, places, removed), _LEAST)
        return scores


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
