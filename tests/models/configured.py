"""Tiny models that `transformers` builds from a configuration, beyond the ones in `zoo`."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

Batch = dict[str, Tensor]
VOCABULARY = 61
BATCH = 3


def t5() -> nn.Module:
    """An encoder and a decoder with relative positions."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=1,
            num_decoder_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            use_cache=False,
        )
    )


def t5_batch() -> Batch:
    """Tokens to read, some of which do not count, and tokens to write."""
    tokens = torch.randint(2, VOCABULARY, (BATCH, 9))
    attention = torch.ones_like(tokens)
    attention[1, 6:] = 0
    return {"input_ids": tokens, "attention_mask": attention, "labels": torch.randint(2, VOCABULARY, (BATCH, 7))}


def whisper() -> nn.Module:
    """Convolutions over a spectrogram, an encoder and a decoder."""
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=VOCABULARY,
            num_mel_bins=8,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=12,
            max_target_positions=16,
            dropout=0.1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            use_cache=False,
        )
    )


def whisper_batch() -> Batch:
    """A spectrogram and its transcript."""
    return {
        "input_features": torch.randn(BATCH, 8, 24),
        "labels": torch.randint(3, VOCABULARY, (BATCH, 7)),
    }


def convnext() -> nn.Module:
    """Depthwise convolutions with layer norm over channels, and stochastic depth."""
    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(
            num_channels=3,
            patch_size=2,
            hidden_sizes=[8, 12, 16],
            depths=[1, 2, 1],
            num_stages=3,
            image_size=16,
            drop_path_rate=0.3,
            num_labels=5,
            problem_type="single_label_classification",
        )
    )


def image_batch() -> Batch:
    """Images and their labels."""
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(5, (BATCH,))}


def mixtral() -> nn.Module:
    """A decoder whose tokens are routed to two of four experts.

    Its attention is written out: for the fused kernel transformers prepares otherwise where it is compiled.
    """
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            attn_implementation="eager",
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def mamba() -> nn.Module:
    """A decoder of selective state spaces."""
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            state_size=4,
            num_hidden_layers=2,
            use_associative_scan=False,
            use_cache=False,
        )
    )


def causal_batch() -> Batch:
    """Tokens, each to be told from those before it."""
    tokens = torch.randint(1, VOCABULARY, (BATCH, 10))
    return {"input_ids": tokens, "labels": tokens.clone()}
