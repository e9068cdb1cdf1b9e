"""What does not generate as a frozen program, and what each error says of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail import DovetailError, FrozenGenerator
from dovetail.artifact.container import open_container, write_container
from dovetail.artifact.json_text import json_bytes
from dovetail.errors import BadArtifact
from dovetail.frontends.generation.habits import Habits, habits_from_json
from dovetail.frontends.generation.prepared_inputs import check_prepared_inputs
from dovetail.frontends.generation.recorded_cache import LayerShape
from tests.frontends.generation.language_models import language_model

PROMPTS = torch.tensor([[5, 6, 7]])


@pytest.fixture(scope="module")
def frozen() -> FrozenGenerator:
    return dovetail.freeze_generation(language_model(), max_length=8, slots=True)


@pytest.mark.parametrize(
    ("args", "options", "code", "said"),
    [
        ((PROMPTS.expand(2, 3),), {}, "DT-FREEZE-003", "there are 2 prompts, and the cache has 1 rows"),
        ((torch.ones(1, 8, dtype=torch.int64),), {}, "DT-FREEZE-003", "8 tokens, and the cache has room for 7"),
        ((PROMPTS[0],), {}, "DT-FREEZE-003", "input_ids is a tensor of shape"),
        (("words",), {}, "DT-FREEZE-003", "input_ids is a str"),
        ((PROMPTS.float(),), {}, "DT-FREEZE-003", "float32"),
        ((PROMPTS, torch.tensor([[1, 1, 0]])), {}, "DT-FREEZE-003", "pad on the left"),
        ((PROMPTS, torch.tensor([[0, 1, 1]])), {}, "DT-FREEZE-003", "freeze with padding=True"),
        ((PROMPTS, torch.tensor([1, 1])), {}, "DT-FREEZE-003", "attention_mask is a tensor of shape"),
        ((PROMPTS,), {"num_beams": 4}, "DT-OPTION-002", "'num_beams' cannot be 4"),
        ((PROMPTS,), {"repetition_penalty": 1.2}, "DT-OPTION-002", "call generate of the model itself"),
        ((PROMPTS,), {"assistant_model": object()}, "DT-OPTION-002", "frozen programs do not generate so"),
        ((PROMPTS,), {"max_tokens": 4}, "DT-OPTION-002", "generate has no such option"),
        ((PROMPTS,), {"max_new_tokens": 6}, "DT-OPTION-002", "after 3 tokens there is room for 5 more"),
        ((PROMPTS,), {"max_new_tokens": 0}, "DT-OPTION-002", "1 to 5"),
        ((PROMPTS,), {"max_length": 3}, "DT-OPTION-002", "4 to 8"),
        ((PROMPTS,), {"max_length": 5, "max_new_tokens": 2}, "DT-OPTION-002", "one of the two"),
        ((PROMPTS,), {"temperature": 0.0}, "DT-OPTION-002", "a number above 0"),
        ((PROMPTS,), {"top_p": 1.5}, "DT-OPTION-002", "at most 1"),
        ((PROMPTS,), {"top_k": -1}, "DT-OPTION-002", "a whole number from 0"),
        ((PROMPTS,), {"do_sample": "yes"}, "DT-OPTION-002", "it is a flag"),
        ((PROMPTS,), {"eos_token_id": "</s>"}, "DT-OPTION-002", "it is no token"),
        ((PROMPTS,), {"pad_token_id": 1.5}, "DT-OPTION-002", "it is no token"),
        ((PROMPTS,), {"eos_token_id": [2, 2**70]}, "DT-OPTION-002", "it is no token"),
        ((PROMPTS,), {"pad_token_id": 2**70}, "DT-OPTION-002", "it is no token"),
        ((PROMPTS,), {"streamer": print}, "DT-OPTION-002", "methods put and end"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str | dict) else "",
)
def test_calls(frozen: FrozenGenerator, args: Any, options: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(DovetailError) as caught:
        frozen.generate(*args, **options)
    assert caught.value.code == code
    assert said in str(caught.value)


def test_models_that_look_at_the_whole_text() -> None:
    """Phi-3 drops its cache where a text outgrows the first frequencies, OpenAI's GPT has none, BART counts it."""
    scaling = {"type": "longrope", "rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0}
    scaling |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.2, 2.4, 2.6]}
    scaling |= {"original_max_position_embeddings": 12}
    model = language_model("Phi-3", original_max_position_embeddings=12, rope_scaling=scaling)
    for slots, most in ((False, 13), (True, 12)):
        with pytest.raises(DovetailError, match=f"after 13 tokens its prepare_inputs(?s:.)*max_length={most}\\b"):
            dovetail.freeze_generation(model, max_length=24, slots=slots)
    with pytest.raises(DovetailError, match="some of its layers do not use the cache"):
        dovetail.freeze_generation(language_model("OpenAI GPT"), max_length=8)
    with pytest.raises(DovetailError, match="its logits depend on what its cache says of its length"):
        dovetail.freeze_generation(language_model("BART, its decoder"), max_length=8)
    layers = [LayerShape(4, 8, 8, 13, torch.float32, False)]
    check_prepared_inputs(model, layers, 12, 1)
    with pytest.raises(DovetailError, match=r"after 2 tokens(?s:.)*call generate of the model itself"):
        check_prepared_inputs(language_model("OpenAI GPT"), layers, 12, 1)


def test_options_that_change_nothing(frozen: FrozenGenerator) -> None:
    assert frozen.generate(PROMPTS, num_beams=1, use_cache=True, repetition_penalty=1.0).shape == (1, 8)


def test_slots(frozen: FrozenGenerator) -> None:
    for call, said in (
        (lambda: frozen.start(1, PROMPTS[0]), "there is no such row"),
        (lambda: frozen.start(0, PROMPTS), "a prompt is a tensor of shape"),
        (lambda: frozen.start(0, PROMPTS[0].repeat(3)), "9 tokens, and the cache has room for 7"),
        (lambda: frozen.step(torch.tensor([1, 2])), "pass one for each slot"),
        (lambda: frozen.release(1), "there is no such row"),
        (lambda: frozen.release(-1), "there is no such row"),
        (lambda: frozen.release("0"), "there is no such row"),  # type: ignore[arg-type]
        (lambda: frozen.choose([1.0]), r"give f32\[texts, words\]"),  # type: ignore[arg-type]
        (lambda: frozen.choose(torch.ones(3)), "'logits' cannot be 'a tensor of shape"),
        (lambda: frozen.choose(torch.ones(1, 3), generator=0), "a torch.Generator"),  # type: ignore[arg-type]
        (lambda: dovetail.freeze_generation(language_model(), max_length=8, slots="no"), "it is a flag"),  # type: ignore[arg-type]
        (lambda: dovetail.freeze_generation(language_model(), max_length=8, padding=2), "it is a flag"),  # type: ignore[arg-type]
    ):
        with pytest.raises(DovetailError, match=said):
            call()
    frozen.start(0, torch.arange(3, 10))
    frozen.step(torch.tensor([5]))
    with pytest.raises(DovetailError, match="the text of slot 0 has 8 tokens"):
        frozen.step(torch.tensor([5]))
    frozen.release(0)
    frozen.step(torch.tensor([5]))
    without = dovetail.freeze_generation(language_model(), max_length=2)
    for call in (lambda: without.start(0, PROMPTS[0]), lambda: without.step(torch.tensor([1]))):
        with pytest.raises(DovetailError, match="frozen without slots=True"):
            call()
    assert without.generate(PROMPTS[:, :1]).shape == (1, 2)


def test_calls_within_a_call(frozen: FrozenGenerator) -> None:
    """A streamer that calls the generator would wait for itself; one that copies it, or calls another, does not."""
    other = copy.deepcopy(frozen)

    class _Calls:
        def put(self, value: torch.Tensor) -> None:
            for call in (
                lambda: frozen.generate(PROMPTS),
                lambda: frozen.release(0),
                lambda: frozen.step(torch.tensor([1])),
            ):
                with pytest.raises(DovetailError, match=r"DT-FREEZE-003(?s:.)*this thread is in a call of it already"):
                    call()
            assert other.generate(PROMPTS).shape == copy.deepcopy(frozen).generate(PROMPTS).shape

        def end(self) -> None:
            pass

    expected = frozen.generate(PROMPTS)
    assert torch.equal(frozen.generate(PROMPTS, streamer=_Calls()), expected)


def test_a_copy_has_the_texts(frozen: FrozenGenerator) -> None:
    frozen.start(0, torch.arange(3, 9))
    copied = copy.deepcopy(frozen)
    assert copied.lengths == frozen.lengths == (6,)
    for token in (5, 6):
        assert torch.equal(copied.step(torch.tensor([token])), frozen.step(torch.tensor([token])))
    with pytest.raises(DovetailError, match="the text of slot 0 has 8 tokens"):
        copied.step(torch.tensor([5]))
    copied.release(0)
    assert (copied.lengths, frozen.lengths) == ((None,), (8,))
    frozen.release(0)


@pytest.mark.parametrize(
    "change",
    [
        {"window": -1},
        {"ends": "2"},
        {"ends": [2.5]},
        {"padding": "0"},
        {"padding": 1 << 63},
        {"ends": [True]},
        {"temperature": 0.0},
        {"temperature": "1"},
        {"top_k": -1},
        {"top_p": 1.5},
        {"do_sample": 1},
        {"more": 1},
    ],
    ids=str,
)
def test_forged_habits(change: dict[str, Any]) -> None:
    habits = habits_from_json(Habits(8, (2,), 0).to_json())
    assert habits == Habits(8, (2,), 0)
    with pytest.raises(ValueError, match=r"."):
        habits_from_json({**habits.to_json(), **change})


def test_forged_files(frozen: FrozenGenerator, tmp_path: Path) -> None:
    frozen.save(tmp_path / "honest.dovetail")
    file = open_container(tmp_path / "honest.dovetail")
    members = {name: file.read(name) for name in file.names}

    def without_decode(index: Any) -> None:
        del index["methods"]["decode"]

    def without_state(index: Any) -> None:
        index["state"].remove("seen")

    def with_other_habits(index: Any) -> None:
        index["generation"]["top_k"] = "50"

    for change in (without_decode, without_state, with_other_habits):
        index = json.loads(members["frozen.json"])
        change(index)
        write_container(tmp_path / "forged.dovetail", {**members, "frozen.json": json_bytes(index)})
        with pytest.raises(BadArtifact):
            dovetail.load(tmp_path / "forged.dovetail")


def _two_dimensions(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """As models with ALiBi do, which count positions by a mask of their own."""
    mask = kwargs.get("attention_mask")
    if mask is not None:
        _batch, _length = (mask if isinstance(mask, torch.Tensor) else next(iter(mask.values()))).shape


def test_tokens_that_a_model_does_not_have(tmp_path: Path) -> None:
    """Configurations say -1 for them: that is saved, too."""
    model = language_model()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = -1, torch.tensor([-1, 5])
    frozen = dovetail.freeze_generation(model, max_length=8)
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    assert isinstance(loaded, FrozenGenerator)
    assert loaded.eos_token_ids == frozen.eos_token_ids == (-1, 5)
    assert torch.equal(loaded.generate(PROMPTS), frozen.generate(PROMPTS))


def test_models() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    t5 = transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=32)
    mamba = transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=32, state_size=4)
    penalized = language_model()
    penalized.generation_config.repetition_penalty = 1.3
    flexible = language_model()
    flexible.config._attn_implementation = "flex_attention"
    ends_in_text, own_mask = language_model(), language_model()
    ends_in_text.generation_config.eos_token_id = "</s>"
    own_mask.model.register_forward_pre_hook(_two_dimensions, with_kwargs=True)
    for model, said in (
        (torch.nn.Linear(2, 2), "it is no language model of transformers"),
        (transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=32)), "no language model"),
        (transformers.T5ForConditionalGeneration(t5), "it has an encoder"),
        (transformers.MambaForCausalLM(mamba), "its cache"),
        (penalized, "sets repetition_penalty to 1.3"),
        (flexible, 'set_attn_implementation("sdpa")'),
        (ends_in_text, "sets eos_token_id to '</s>'"),
        (own_mask, "cache of a frozen program: ValueError: too many values"),
    ):
        with pytest.raises(DovetailError) as caught:
            dovetail.freeze_generation(model, max_length=8)
        assert said in str(caught.value)
    for wrong in ({"max_length": 65}, {"max_length": 1}, {"max_length": 8, "batch": 0}):
        with pytest.raises(DovetailError, match="DT-OPTION-002"):
            dovetail.freeze_generation(language_model(), **wrong)


def test_caches_of_plain_programs() -> None:
    """A cache is an object that lives on after a call, and a frozen program has none such: errors name the way out."""
    transformers = pytest.importorskip("transformers")
    model = language_model()
    static = transformers.StaticCache(config=model.config, max_cache_len=8)
    for given in ({}, {"past_key_values": transformers.DynamicCache()}, {"past_key_values": static}):
        with pytest.raises(DovetailError, match=r"(Dynamic|Static)(Cache|Layer).*\n.*\n.*use_cache=False"):
            dovetail.freeze(model, (PROMPTS,), example_kwargs=given, dynamic_shapes="static")
    frozen = dovetail.freeze(model, (PROMPTS,), example_kwargs={"use_cache": False}, dynamic_shapes="static")
    assert torch.equal(frozen(PROMPTS, use_cache=False).logits, model(PROMPTS).logits)
