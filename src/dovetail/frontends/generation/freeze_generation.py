"""`dovetail.freeze_generation`: a language model of transformers as a program with its cache inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dovetail.errors import BadOptionValue, NotFreezable
from dovetail.frontends.freezing.freeze import freeze
from dovetail.frontends.generation.choosing import NEUTRAL, Choosing, is_neutral, is_token
from dovetail.frontends.generation.generator import FrozenGenerator
from dovetail.frontends.generation.habits import Habits
from dovetail.frontends.generation.language_model import LanguageModel, attention_of
from dovetail.frontends.generation.prepared_inputs import check_prepared_inputs
from dovetail.frontends.generation.recorded_cache import LayerShape, transformers_caches

_EXAMPLE = 5  # tokens of a prompt


def freeze_generation(
    model: nn.Module,
    *,
    max_length: int,
    batch: int = 1,
    padding: bool | None = None,
    slots: bool = False,
    **options: Any,
) -> FrozenGenerator:
    """Turn a language model of transformers into a program that generates, with its key-value cache as state.

    Args:
        model: a decoder with a language modeling head, such as `LlamaForCausalLM`, in evaluation mode. It is left
            unchanged.
        max_length: tokens of a text, the prompt included. The cache has room for them from the beginning.
        batch: how many texts are generated at a time.
        padding: whether prompts may be padded on the left. None: if there are several.
        slots: whether texts can begin and end on their own: `start`, `step` and `release` of the result.
        options: those of `dovetail.freeze`, such as `passes`, `on_stale` and `discard_originals`.

    Returns:
        A `FrozenGenerator`. `generate` is that of transformers with a `StaticCache` of `max_length` tokens, bit by bit.

    Raises:
        NotFreezable: it is no such model, or its cache, its attention or its `generation_config` is not supported.
        DovetailError: as `dovetail.freeze`.
    """
    config = _config_of(model)
    _check_numbers(config, max_length, batch)
    for option, value, choices in (("padding", padding, (None, False, True)), ("slots", slots, (False, True))):
        if not any(value is choice for choice in choices):
            expected = " or ".join(map(repr, choices))
            raise BadOptionValue(option=option, value=value, reason="it is a flag", expected=expected)
    habits = _habits(model)
    with torch.inference_mode(False), torch.no_grad():
        layers = _layers(model, config, max_length)
        spare = 0 if slots else 1  # the last token of a text is not continued; `step` of slots may be given it
        check_prepared_inputs(model, layers, max_length - spare, spare)
        whole = LanguageModel(model, layers, batch, max_length, habits)
        if not model.training and _tried(model, whole.reads_length):
            reason = "its logits depend on what its cache says of its length, and rows of a frozen one have one each"
            raise NotFreezable(what=type(model).__name__, reason=reason, hint="call generate of the model itself")
        calls, sizes = _calls(whole, batch, max_length, batch > 1 if padding is None else padding, slots)
        frozen = freeze(whole, calls, dynamic_shapes=sizes, **options)
    assert isinstance(frozen, FrozenGenerator), "a LanguageModel freezes to one"
    return frozen


# --- what is supported ------------------------------------------------------------------------------------------------


def _config_of(model: Any) -> Any:
    """The configuration of the part that is a language model. Raises: NotFreezable."""
    what = type(model).__name__
    config = getattr(model, "config", None)
    is_module = isinstance(model, nn.Module)
    if not is_module or config is None or not hasattr(model, "prepare_inputs_for_generation"):
        hint = "pass a model of transformers with a language modeling head, such as LlamaForCausalLM"
        raise NotFreezable(what=what, reason="it is no language model of transformers", hint=hint)
    if config.is_encoder_decoder:
        hint = "dovetail.freeze takes the encoder and the decoder, each by itself, with use_cache=False"
        raise NotFreezable(
            what=what, reason="it has an encoder, and generation needs the cache of a decoder", hint=hint
        )
    if not model.can_generate():
        hint = "pass a model with a language modeling head, such as LlamaForCausalLM"
        raise NotFreezable(what=what, reason="it cannot generate", hint=hint)
    own_masks = getattr(type(model), "create_masks_for_generate", None)
    if own_masks is not None and getattr(own_masks, "__module__", "") != "transformers.masking_utils":
        hint = "pass the language model inside it"
        raise NotFreezable(what=what, reason="it makes the masks of its attention itself", hint=hint)
    text = config.get_text_config(decoder=True)
    if attention_of(text) not in ("sdpa", "eager"):
        reason = f"its attention is {attention_of(text)!r}"
        raise NotFreezable(what=what, reason=reason, hint='call model.set_attn_implementation("sdpa") first')
    return text


def _check_numbers(config: Any, max_length: object, batch: object) -> None:
    most = getattr(config, "max_position_embeddings", None)
    if type(max_length) is not int or max_length < 2 or (most is not None and max_length > most):
        expected = f"2 to {most}, the positions of the model" if most is not None else "a whole number from 2"
        reason = "it is how many tokens a text can have"
        raise BadOptionValue(option="max_length", value=max_length, reason=reason, expected=expected)
    if type(batch) is not int or batch < 1:
        reason, expected = "it is how many texts are generated at a time", "a whole number from 1"
        raise BadOptionValue(option="batch", value=batch, reason=reason, expected=expected)


def _habits(model: Any) -> Habits:
    """What the model's `generation_config` says. Raises: NotFreezable for what frozen programs do not have."""
    given = model.generation_config
    for name in NEUTRAL:
        value = getattr(given, name, None)
        if not is_neutral(name, value):
            reason = f"its generation_config sets {name} to {value!r}, and frozen programs do not generate so"
            hint = f"set model.generation_config.{name} to {NEUTRAL[name][-1]!r}, which changes what it generates"
            raise NotFreezable(what=type(model).__name__, reason=reason, hint=hint)
    ends = given.eos_token_id
    ends = ends.flatten().tolist() if isinstance(ends, torch.Tensor) else ends
    ends = () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)
    padding = given.pad_token_id
    for name, token in (("pad_token_id", padding), *(("eos_token_id", end) for end in ends)):
        if token is not None and not is_token(token):
            reason, hint = f"its generation_config sets {name} to {token!r}, which is no token", "give it whole numbers"
            raise NotFreezable(what=type(model).__name__, reason=reason, hint=hint)
    names = ("do_sample", "temperature", "top_k", "top_p")
    choosing = Choosing().with_options({name: getattr(given, name) for name in names})
    return Habits(0, ends, padding, choosing)


def _tried(model: Any, call: Callable[[], Any]) -> Any:
    """What a call of the model gives. Raises: NotFreezable if its code does not run with such a cache."""
    try:
        return call()
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        reason = f"it does not run with the cache of a frozen program: {said}"
        hint = "dovetail.freeze takes it without a cache: use_cache=False"
        raise NotFreezable(what=type(model).__name__, reason=reason, hint=hint) from error


def _layers(model: Any, config: Any, length: int) -> list[LayerShape]:
    """What each layer keeps: the model is run for two tokens. Raises: NotFreezable."""
    caches = transformers_caches()
    tried = caches.DynamicCache(config=config)
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=next(model.parameters()).device)
    _tried(model, partial(model, input_ids=tokens, past_key_values=tried, use_cache=True))
    found: list[LayerShape] = []
    is_used = [getattr(kept, "keys", tried) is not None for kept in tried.layers]
    used = sum(is_used)  # the others are an encoder's that is not there (BART)
    static = caches.StaticCache(config=config, max_cache_len=length).layers
    if not used or not all(is_used[:used]):
        hint = "dovetail.freeze takes it without a cache: use_cache=False"
        raise NotFreezable(what=type(model).__name__, reason="some of its layers do not use the cache", hint=hint)
    for kept, layer in zip(tried.layers[:used], static[:used], strict=True):
        if type(layer) not in (caches.StaticLayer, caches.StaticSlidingWindowLayer):
            reason = f"its cache has a {type(layer).__name__}"
            hint = "dovetail.freeze takes it without a cache: use_cache=False"
            raise NotFreezable(what=type(model).__name__, reason=reason, hint=hint)
        heads, key_width, value_width = kept.keys.shape[1], kept.keys.shape[3], kept.values.shape[3]
        slides = type(layer) is caches.StaticSlidingWindowLayer
        if layer.max_cache_len < 2:
            hint = "dovetail.freeze takes it without a cache: use_cache=False"
            raise NotFreezable(what=type(model).__name__, reason="its attention has a window of one token", hint=hint)
        found.append(LayerShape(heads, key_width, value_width, layer.max_cache_len, kept.keys.dtype, slides))
    if len({layer.length for layer in found if layer.window}) > 1:
        hint = "dovetail.freeze takes it without a cache: use_cache=False"
        raise NotFreezable(what=type(model).__name__, reason="its layers have windows of several lengths", hint=hint)
    return found


# --- the calls that are recorded --------------------------------------------------------------------------------------


def _calls(
    whole: LanguageModel, batch: int, length: int, padding: bool, slots: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The example of each method, and which of its sizes are free. Raises: NotFreezable."""
    window = whole.window
    if slots and window is not None:
        reason = f"its attention has a window of {window} tokens, which slots do not have"
        raise NotFreezable(what=type(whole.model).__name__, reason=reason, hint=f"freeze with max_length={window}")
    device = whole.seen.device
    one = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    calls: dict[str, Any] = {"decode": ((one,), {})}
    sizes: dict[str, Any] = {"decode": "static"}
    kinds = [("", 1, (window or length) - 1)]
    if window is not None:
        calls["decode_full"], sizes["decode_full"] = ((one,), {}), "static"
        kinds.append(("_long", window, length - 1))
    for kind, least, most in kinds:
        prompt = torch.zeros(batch, min(least + _EXAMPLE - 1, most), dtype=torch.int64, device=device)
        names: list[tuple[str, tuple[torch.Tensor, ...], tuple[str, ...]]] = [
            (f"prefill{kind}", (prompt,), ("input_ids",))
        ]
        if padding:
            mask = torch.ones_like(prompt)
            names.append((f"prefill_padded{kind}", (prompt, mask), ("input_ids", "attention_mask")))
        if slots:
            names.append(("prefill_slot", (prompt[:1], one[0]), ("input_ids",)))
        for name, args, free in names:
            calls[name], sizes[name] = (args, {}), _free(free, least, most)
    return calls, sizes


def _free(names: Sequence[str], least: int, most: int) -> str | Mapping[str, Any]:
    """The length of prompts, from the least to the most."""
    if least == most:
        return "static"
    length = torch.export.Dim("length", min=least, max=most)
    return {name: {1: length} for name in names}
