"""Measure decoding with a key-value cache: what is allocated for each token, and how many tokens a second.

The model is a Llama of transformers with a static cache, which each step writes at one place: a compiler that computes
new contents beside the old ones copies the whole cache for each token. The prompt is read by eager in all cases; the
tokens after it are decoded greedily, one call of the compiled model each. *frozen* is `dovetail.freeze_generation`,
which reads the prompt itself, and *frozen fast* the same with `passes="fast"`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dovetail
from benchmarks.measure import EAGER, compile_for, describe_error
from dovetail.torch_compat.profiler import record_allocator_events

Json = dict[str, Any]

FROZEN = {"frozen": "bitwise", "frozen fast": "fast"}
BACKENDS = (EAGER, "dynamo", "dovetail", *FROZEN, "inductor")
_PROMPT = 8
_VOCABULARY = 2048
_MEASURED_TOKENS = 4


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """A model and a cache. length: tokens that the cache has room for. tokens: how many are decoded."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    batch: int = 1
    length: int = 512
    tokens: int = 64
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """One backend. bytes_per_token, cache_sized_per_token: of allocations, all and those as large as one cache tensor.

    equal: whether the logits of all tokens are eager's, bit for bit. error: why there are no figures.
    """

    batch: int
    length: int
    backend: str
    cache_tensor_bytes: int = 0
    bytes_per_token: float | None = None
    cache_sized_per_token: float | None = None
    tokens_per_s: float | None = None
    equal: bool | None = None
    error: str | None = None


class _Decoder:
    """A model with a cache of its own and a compiled step."""

    def __init__(self, backend: str, settings: DecodeSettings) -> None:
        # Loaded on demand: everything else can be measured without it.
        import transformers  # noqa: PLC0415

        torch.manual_seed(0)
        self.settings = settings
        config = transformers.LlamaConfig(
            num_hidden_layers=settings.layers,
            hidden_size=settings.width,
            intermediate_size=settings.width * 2,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            vocab_size=_VOCABULARY,
            max_position_embeddings=settings.length,
        )
        self.model: nn.Module = transformers.LlamaForCausalLM(config).eval()
        self.cache = transformers.StaticCache(config=config, max_cache_len=settings.length)
        self.prompt = torch.randint(_VOCABULARY, (settings.batch, _PROMPT))
        self.step: Callable[..., Tensor] = compile_for(backend, self._logits)

    def decode(self, tokens: int) -> list[Tensor]:
        """The logits of each token."""
        logits = self._read()
        found: list[Tensor] = []
        for at in range(_PROMPT, _PROMPT + tokens):
            logits = self.step(logits[:, -1:].argmax(-1), torch.tensor([at]))
            found.append(logits)
        return found

    def tokens_per_s(self) -> float:
        """Tokens a second after the prompt, in all sequences of the batch together."""
        logits = self._read()
        start = time.perf_counter()
        for at in range(_PROMPT, _PROMPT + self.settings.tokens):
            logits = self.step(logits[:, -1:].argmax(-1), torch.tensor([at]))
        return self.settings.tokens * self.settings.batch / (time.perf_counter() - start)

    def allocations(self) -> list[int]:
        """The sizes of what the last tokens allocate."""
        positions = range(_PROMPT + self.settings.tokens, _PROMPT + self.settings.tokens + _MEASURED_TOKENS)
        token = self.prompt[:, -1:]
        calls = [torch.tensor([at]) for at in positions]
        _, events = record_allocator_events(lambda: [self.step(token, at) for at in calls])
        return [event.size_bytes for event in events if event.size_bytes > 0]

    def cache_tensor_bytes(self) -> int:
        """Bytes of the keys of one layer."""
        keys: Tensor = self.cache.layers[0].keys
        return keys.nbytes

    def _read(self) -> Tensor:
        """Read the prompt."""
        self.cache.reset()
        return self._logits(self.prompt, torch.arange(_PROMPT))

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        out: Tensor = self.model(
            input_ids=tokens,
            position_ids=positions[None],
            cache_position=positions,
            past_key_values=self.cache,
        ).logits
        return out


class _FrozenDecoder(_Decoder):
    """The same model as a program with its cache inside."""

    def __init__(self, settings: DecodeSettings, passes: str) -> None:
        super().__init__(EAGER, settings)
        batch, length = settings.batch, settings.length
        self._frozen = dovetail.freeze_generation(
            self.model, max_length=length, batch=batch, padding=False, slots=True, passes=passes
        )
        self.step = lambda token, at: self._frozen.step(token[:, 0])[:, None]

    def cache_tensor_bytes(self) -> int:
        keys: Tensor = self._frozen.state_dict()["keys_0"]
        return keys.nbytes

    def _read(self) -> Tensor:
        return torch.stack([self._frozen.start(slot, prompt) for slot, prompt in enumerate(self.prompt)])[:, None]


def measure_decode(backends: Sequence[str], settings: Json) -> Json:
    """Decode with every backend in turn; answers by backend, each with the fields of `DecodeCost`."""
    chosen = DecodeSettings(**settings)
    answers: Json = {}
    decoders: dict[str, _Decoder] = {}
    with torch.no_grad():
        expected = _Decoder(EAGER, chosen).decode(chosen.tokens)
        for backend in backends:
            try:
                is_frozen = backend in FROZEN
                decoder = _FrozenDecoder(chosen, FROZEN[backend]) if is_frozen else _Decoder(backend, chosen)
                got = decoder.decode(chosen.tokens)
                sizes = decoder.allocations()
            except Exception as error:
                answers[backend] = {"error": describe_error(error)}
                continue
            decoders[backend] = decoder
            whole = decoder.cache_tensor_bytes()
            answers[backend] = {
                "cache_tensor_bytes": whole,
                "bytes_per_token": sum(sizes) / _MEASURED_TOKENS,
                "cache_sized_per_token": sum(size >= whole for size in sizes) / _MEASURED_TOKENS,
                "equal": all(map(torch.equal, got, expected)),
            }
        speeds: dict[str, list[float]] = {backend: [] for backend in decoders}
        for number in range(chosen.rounds):
            order = [*decoders]
            shift = number % max(1, len(order))
            for backend in order[shift:] + order[:shift]:
                speeds[backend].append(decoders[backend].tokens_per_s())
    for backend, found in speeds.items():
        answers[backend]["tokens_per_s"] = statistics.median(found)
    return answers
