"""Tiny language models of transformers, without downloads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

WORDS = 96
_SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_HEADS = {**_SIZES, "head_dim": 8, "num_hidden_layers": 2}
_WINDOWS = {**_HEADS, "sliding_window": 8}
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_layer": 1,
            "n_head": 2,
            "n_embd": 32,
            "n_positions": 64,
            "vocab_size": WORDS,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _SIZES),
    "Llama, eager attention": ("LlamaForCausalLM", "LlamaConfig", {**_SIZES, "attn_implementation": "eager"}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _SIZES),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", {**_SIZES, "pad_token_id": 0}),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", _HEADS),
    "Gemma 2, windows": ("Gemma2ForCausalLM", "Gemma2Config", _WINDOWS),
    "Gemma 3, windows": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_WINDOWS, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Mistral, windows": ("MistralForCausalLM", "MistralConfig", {**_SIZES, "sliding_window": 8}),
    "Mistral, wide windows": ("MistralForCausalLM", "MistralConfig", {**_SIZES, "sliding_window": 48}),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_SIZES, "num_local_experts": 2}),
}
KINDS = tuple(_KINDS)
_KINDS["OpenAI GPT"] = ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {**_KINDS["GPT-2"][2]})  # without a cache
_KINDS["BART, its decoder"] = (
    "BartForCausalLM",
    "BartConfig",
    {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "vocab_size": WORDS}
    | {"max_position_embeddings": 64, "is_encoder_decoder": False, "forced_eos_token_id": None},
)


def language_model(kind: str = "Llama", **changes: Any) -> Any:
    """A model with weights of its own kind, the same each time. Skips the test where there is no transformers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    cls, config, sizes = _KINDS[kind]
    return getattr(transformers, cls)(getattr(transformers, config)(**{**sizes, **changes})).eval()


def prompts(batch: int, length: int, *, padded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that end no text, and a mask; padded: the first prompt has padding on its left."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    if padded:
        mask[0, : length // 2] = 0
    return torch.randint(3, WORDS, (batch, length)), mask
