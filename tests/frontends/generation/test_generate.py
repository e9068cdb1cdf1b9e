"""Frozen language models generate what `generate` of transformers does: the logits' bits, tokens and draws."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail import FrozenGenerator
from dovetail.torch_compat.profiler import record_allocator_events
from tests.frontends.generation.language_models import KINDS, language_model, prompts
from tests.rotation import rotated

LENGTH = 24


def _cache(model: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=LENGTH)


def _generated(model: Any, tokens: Tensor, mask: Tensor, **options: Any) -> Any:
    return model.generate(tokens, attention_mask=mask, past_key_values=_cache(model), **options)


@contextmanager
def _seeing(frozen: FrozenGenerator) -> Iterator[list[Tensor]]:
    """The logits that its programs give meanwhile."""
    found: list[Tensor] = []
    run = frozen._run

    def seen(*args: Any) -> Any:
        found.append(run(*args))
        return found[-1]

    frozen.__dict__["_run"] = seen
    yield found
    del frozen.__dict__["_run"]


def _check(frozen: FrozenGenerator, model: Any, tokens: Tensor, mask: Tensor) -> None:
    """Greedy: every logit's bits; tokens with a cache that grows as well. Sampling: tokens, and as many draws."""
    new = min(LENGTH - tokens.shape[1], 12)
    expected = _generated(
        model, tokens, mask, max_new_tokens=new, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    with _seeing(frozen) as logits:
        assert torch.equal(frozen.generate(tokens, mask, max_new_tokens=new, do_sample=False), expected.sequences)
    assert all(map(torch.equal, logits, expected.logits))
    assert len(logits) == len(expected.logits)
    growing = model.generate(tokens, attention_mask=mask, max_new_tokens=new, do_sample=False)
    assert torch.equal(growing, expected.sequences)
    options = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.9}
    torch.manual_seed(3)
    expected = _generated(model, tokens, mask, max_length=LENGTH, **options)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(frozen.generate(tokens, mask, **options), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture(scope="module")
def model() -> Any:
    return language_model()


@pytest.fixture(scope="module")
def frozen(model: Any) -> FrozenGenerator:
    made = dovetail.freeze_generation(model, max_length=LENGTH, batch=2, slots=True)
    assert (made.max_length, made.batch, made.slots, made.specialized) == (LENGTH, 2, True, ())
    return made


@torch.no_grad()
@pytest.mark.parametrize(("length", "padded"), [(1, False), (6, False), (6, True), (23, True)])
def test_llama(model: Any, frozen: FrozenGenerator, length: int, padded: bool) -> None:
    torch.manual_seed(length)
    _check(frozen, model, *prompts(2, length, padded=padded))


@torch.no_grad()
@pytest.mark.parametrize("kind", rotated(KINDS, len(KINDS)))
def test_architectures(kind: str) -> None:
    model = language_model(kind, eos_token_id=None)
    frozen = dovetail.freeze_generation(model, max_length=LENGTH, batch=2)
    assert frozen.specialized == ()
    torch.manual_seed(0)
    for length in (1, 8, 15):
        for padded in (False, True)[: min(length, 2)]:
            _check(frozen, model, *prompts(2, length, padded=padded))


@torch.no_grad()
def test_windows_slide() -> None:
    """The window is full after some tokens, or from the beginning; both take other programs than before."""
    model = language_model("Mistral, windows", eos_token_id=None, num_key_value_heads=1)
    frozen = dovetail.freeze_generation(model, max_length=LENGTH)
    for length in (5, 8, 15):
        _check(frozen, model, *prompts(1, length))
    with pytest.raises(dovetail.DovetailError, match="window of 8 tokens, which slots do not have"):
        dovetail.freeze_generation(model, max_length=LENGTH, slots=True)


@torch.no_grad()
def test_texts_end(model: Any, frozen: FrozenGenerator) -> None:
    """At the model's token, at those of the call, or at none; what follows is padding, until the last text ends."""
    torch.manual_seed(0)
    tokens, mask = prompts(2, 5)
    text = frozen.generate(tokens, eos_token_id=None)
    assert text.shape == (2, LENGTH)
    first, last = int(text[0, 8]), int(text[1, 10])
    for ends in ([first, last], first, None):
        for padding in (0, None):
            options = {"eos_token_id": ends, "pad_token_id": padding}
            expected = _generated(model, tokens, mask, max_length=LENGTH, **options)
            assert torch.equal(frozen.generate(tokens, **options), expected)
    assert torch.equal(frozen.generate(tokens), _generated(model, tokens, mask, max_length=LENGTH))
    with_padding = torch.cat([torch.zeros(2, 2, dtype=torch.int64), tokens], 1)  # told by its token
    expected = model.generate(with_padding, past_key_values=_cache(model), max_length=LENGTH, pad_token_id=0)
    assert torch.equal(frozen.generate(with_padding, pad_token_id=0), expected)


class _Kept:
    def __init__(self) -> None:
        self.found: list[list[Any]] = []

    def put(self, value: Tensor) -> None:
        self.found.append(value.tolist())

    def end(self) -> None:
        self.found.append([])


@torch.no_grad()
def test_streams(model: Any, frozen: FrozenGenerator) -> None:
    tokens = torch.tensor([[5, 6], [7, 8]])
    expected, kept = _Kept(), _Kept()
    model.generate(tokens, streamer=expected, max_new_tokens=4, do_sample=False)
    frozen.generate(tokens, streamer=kept, max_new_tokens=4)
    assert kept.found == expected.found


@torch.no_grad()
def test_files_copies_and_other_weights(frozen: FrozenGenerator, tmp_path: Path) -> None:
    model = language_model(eos_token_id=None)
    frozen.save(tmp_path / "llama.dovetail")
    ways = [copy.deepcopy(frozen), dovetail.load(tmp_path / "llama.dovetail")]
    tokens, mask = prompts(2, 4, padded=True)
    options = {"eos_token_id": None, "do_sample": False, "max_length": LENGTH}
    for one in ways:
        assert isinstance(one, FrozenGenerator)
        assert torch.equal(one.generate(tokens, mask, **options), _generated(model, tokens, mask, **options))
    for parameter in model.parameters():
        parameter.mul_(1.5)
    for one in ways:
        one.swap_weights(model.state_dict())
        assert torch.equal(one.generate(tokens, mask, **options), _generated(model, tokens, mask, **options))


@torch.no_grad()
def test_texts_come_and_go(model: Any, frozen: FrozenGenerator) -> None:
    """Texts in the slots of a batch, each as it is alone."""
    texts = [prompts(1, length)[0] for length in (4, 7, 1, 20)]
    options = {"max_length": LENGTH, "do_sample": False, "eos_token_id": None}
    expected = [_generated(model, text, torch.ones_like(text), **options)[0].tolist() for text in texts]
    waiting = [text[0].tolist() for text in texts]
    running: dict[int, list[int]] = {}
    done = []
    while waiting or running:
        free = [slot for slot in range(2) if slot not in running]
        if free and waiting and (not running or len(next(iter(running.values()))) % 3 == 0):
            running[free[0]] = text = waiting.pop(0)
            text.append(int(frozen.start(free[0], torch.tensor(text)).argmax()))
        tokens = [running[slot][-1] if slot in running else 0 for slot in range(2)]
        if any(len(text) < LENGTH for text in running.values()):
            logits = frozen.step(torch.tensor(tokens))
            for slot, text in running.items():
                text.append(int(logits[slot].argmax()))
        for slot in [slot for slot, text in running.items() if len(text) >= LENGTH]:
            done.append(running.pop(slot)[:LENGTH])
            frozen.release(slot)
    assert sorted(done) == sorted(expected)
    assert frozen.lengths == (None, None)


@torch.no_grad()
def test_the_cache_is_not_copied(frozen: FrozenGenerator) -> None:
    frozen.generate(prompts(2, 3)[0], max_new_tokens=3)
    cache = frozen.state_dict()["keys_0"]
    _, events = record_allocator_events(lambda: frozen._next(torch.tensor([5, 6]), 6))
    assert max(event.size_bytes for event in events) < cache.nbytes
    assert frozen.state_dict()["keys_0"] is cache
