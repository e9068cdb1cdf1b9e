"""Small models of public architectures, and batches for them.

Those of `transformers` are made from configurations with small numbers. Those of `timm` are the smallest of each
family; they are left out where timm is not installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

from tests.timm_alone import timm

VOCABULARY = 67
LENGTH = 10
MOST_PARAMETERS = 2_000_000
Batch = dict[str, Tensor]

# Numbers by the names that configurations give them; those of sub-configurations as well.
_SMALL: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("embedding_size",), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("hidden_dim",), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_hidden_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads",), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_top_k", "num_experts_per_token"), 2),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **{"image_size": 32, "patch_size": 8, "num_channels": 3, "num_labels": 5, "type_vocab_size": 2},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    **{"use_cache": False, "state_size": 8, "ssm_state_size": 8, "time_step_rank": 4, "conv_kernel": 3},
    **{"embeddings_size": 8, "stem_channels": 8, "sliding_window": 8, "attention_window": 4},
    **{"rotary_dim": 8, "lru_width": 32, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    **{"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
}
_AUDIO: Mapping[str, Any] = {
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_codevectors_per_group": 8,
    "codevector_dim": 16,
    "mask_time_length": 2,
}
_VISION: Mapping[str, Any] = {
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": 2,
    "embed_dim": 16,
    "num_heads": [1, 2, 2, 4],
    "window_size": 2,
}


def _texts(with_labels_of_their_own: bool = False) -> Batch:
    tokens = torch.randint(3, VOCABULARY, (2, LENGTH))
    labels = torch.randint(3, VOCABULARY, (2, 7)) if with_labels_of_their_own else tokens
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def _images() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 3])}


def _sounds() -> Batch:
    return {"input_values": torch.randn(2, 400), "labels": torch.randint(3, VOCABULARY, (2, 3))}


_TASKS: Mapping[str, tuple[Any, Callable[[], Batch], Mapping[str, Any]]] = {
    "causal": (transformers.AutoModelForCausalLM, _texts, {}),
    "masked": (transformers.AutoModelForMaskedLM, _texts, {}),
    "translation": (transformers.AutoModelForSeq2SeqLM, lambda: _texts(True), {}),
    "image": (transformers.AutoModelForImageClassification, _images, _VISION),
    "sound": (transformers.AutoModelForCTC, _sounds, _AUDIO),
}
_NAMES: Mapping[str, str] = {
    "causal": """
        apertus arcee biogpt bitnet bloom codegen cohere cohere2 ctrl diffllama doge
        dots1 ernie4_5 exaone4 falcon_h1 falcon_mamba flex_olmo gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode
        gpt_neox gpt_oss gptj granite granitemoe helium hunyuan_v1_dense jamba jetmoe lfm2 llama mamba minimax
        ministral mistral mixtral mpt nanochat nemotron olmo olmo2 olmo3 olmoe openai-gpt opt persimmon phi phi3
        phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next recurrent_gemma rwkv seed_oss smollm3 stablelm starcoder2
        vaultgemma xglm
    """,
    "masked": """
        albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm fnet
        ibert longformer megatron-bert mobilebert modernbert mpnet mra nystromformer rembert roberta roformer
        squeezebert xlm xlm-roberta-xl yoso
    """,
    "translation": """
        bart bigbird_pegasus blenderbot led m2m_100 marian mbart mt5 mvp nllb-moe pegasus pegasus_x plbart umt5
    """,
    "image": """
        beit data2vec-vision dinov2 dinov2_with_registers focalnet mobilevit poolformer regnet resnet segformer
        swiftformer vit vit_msn
    """,
    "timm": """
        mobileone_s1 test_byobnet cait_xxs24_224 coat_tiny convit_tiny convnext_zepto_rms test_convnext test_convnext2
        test_convnext3 cpubone_nano crossvit_tiny_240 csatv2 cs3darknet_focus_s cspnext_tiny deit_tiny_patch16_224
        densenet121 dla46x_c dpn48b edgenext_xx_small efficientformerv2_s0 mobilenetv2_035 test_efficientnet
        test_efficientnet_evos test_efficientnet_gn test_efficientnet_ln efficientvim_m1 efficientvit_b0
        efficientvit_m0 vit_tiny_patch16_dinov3_qkvb fasternet_t0 fastvit_t8 gcvit_xxtiny ghostnet_050 hardcorenas_b
        hgnetv2_b0 hrnet_w18_small iformer_t inception_next_atto lcnetv2_small levit_128s lowformer_b0 mambaout_femto
        test_mambaout maxvit_pico_rw_256 test_coatnet test_maxvit poolformerv2_s12 gmlp_ti16_224 lcnet_035
        mobilevit_xxs nf_regnet_b0 test_nfnet pit_ti_224 pvt_v2_b0 regnetx_002 repghostnet_050 repvit_m1 resnest14d
        resnet10t test_resnet resnetv2_18 rexnet_100 legacy_seresnet18 shvit_s1 skresnet18 starnet_s050 swiftformer_xs
        tiny_vit_5m_224 visformer_tiny vit_tiny_patch16_224 test_vit test_vit2 test_vit3 test_vit4
        vit_tiny_r_s16_p8_224 test_vit_relpos ese_vovnet19b_slim_dw xcit_nano_12_p8_224
    """,
    "sound": "data2vec-audio hubert sew unispeech unispeech-sat wav2vec2 wav2vec2-conformer wavlm",
}
# Heights and widths of images, where 64 is none that a model of timm can take.
_SIZES: Mapping[str, int] = {"crossvit_tiny_240": 240}


def listed() -> list[tuple[str, str]]:
    """Every architecture: its task and its name."""
    tasks = [task for task in _NAMES if task != "timm" or find_spec("timm") is not None]
    return [(task, name) for task in tasks for name in _NAMES[task].split()]


def batch(task: str, name: str = "") -> Batch:
    """Arguments of a model's forward, labels included."""
    if task == "timm":
        size = _SIZES.get(name, 64)
        return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 3])}
    return _TASKS[task][1]()


def model(task: str, name: str) -> nn.Module:
    """A model of an architecture. Raises: ValueError where small numbers do not make it small."""
    if task == "timm":
        return _Classifier(name)
    auto, _, special = _TASKS[task]
    config_class = type(transformers.AutoConfig.for_model(name))
    made: nn.Module = auto.from_config(_small(config_class, {**_SMALL, **special}))
    count = sum(parameter.numel() for parameter in made.parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"it has {count} parameters")
    return made


class _Classifier(nn.Module):
    """A model of timm, called and answering like one of `transformers`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        try:
            self.body = timm().create_model(name, num_classes=5, img_size=_SIZES.get(name, 64))
        except TypeError:
            self.body = timm().create_model(name, num_classes=5)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Scores of classes, and the loss where labels are given."""
        logits = self.body(pixel_values)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


def _small(config_class: Any, numbers: Mapping[str, Any]) -> Any:
    """A configuration with small numbers: those that it has, of the kind that it has."""
    default = config_class()
    parameters = inspect.signature(config_class.__init__).parameters
    chosen: dict[str, Any] = {}
    for name, value in numbers.items():
        known = getattr(default, name, None)
        if known is None and name not in parameters:
            continue
        if isinstance(known, list | tuple) and not isinstance(value, list | tuple):
            continue
        if isinstance(value, list | tuple) and not isinstance(known, list | tuple):
            continue
        chosen[name] = value[: len(known)] if isinstance(value, list | tuple) and len(known) < len(value) else value
    return config_class(**chosen)
