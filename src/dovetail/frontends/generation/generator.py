"""What `dovetail.freeze_generation` returns: a frozen language model that generates, with its cache as state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from dovetail.errors import BadOptionValue, FrozenIsFixed
from dovetail.frontends.freezing.call_form import mismatch
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.generation.choosing import NEUTRAL, Choosing, is_neutral, is_token
from dovetail.frontends.generation.habits import Habits
from dovetail.frontends.generation.turns import Turns

if TYPE_CHECKING:
    from dovetail.frontends.freezing.pool import Pool
    from dovetail.frontends.freezing.running import Running

MODEL = "model."
"""What the names of the model's tensors begin with in the program."""


class Streamer(Protocol):
    """What gets tokens as they are made, as the streamers of transformers do."""

    def put(self, value: Tensor) -> None:
        """Take the prompts, i64[batch, length], at first, and then each time the next tokens, i64[batch]."""

    def end(self) -> None:
        """Nothing follows."""


class FrozenGenerator(FrozenModule):
    """A frozen language model. Made by `dovetail.freeze_generation`, and by `dovetail.load` from its file.

    Its cache is state of the program, updated in place, and there is one: calls from several threads wait for each
    other. `copy.deepcopy` gives a generator with a cache of its own over the same weights.

    Attributes:
        max_length: tokens of a text, the prompt included.
        batch: how many texts are generated at a time.
        slots: whether texts can begin and end on their own (`start`, `step`, `release`).
    """

    def __init__(
        self,
        name: str,
        running: Running,
        pool: Pool,
        *,
        habits: Habits,
        lengths: Sequence[int | None] = (),
        **settings: Any,
    ) -> None:
        """lengths: of the texts that are in the slots. settings: see `FrozenModule`."""
        super().__init__(name, running, pool, **settings)
        self._habits = habits
        seen = pool.tensors["seen"]
        self.batch, self.max_length = int(seen.shape[0]), int(seen.shape[1])
        self.slots = "prefill_slot" in self._methods
        self._device = seen.device
        self._turns = Turns()
        self._lengths: list[int | None] = list(lengths) or [None] * self.batch  # of the texts that `start` began

    # --- a batch of texts, from the beginning to the end -------------------------------------------------------------

    def generate(  # noqa: PLR0913 (names and order are those of transformers)
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        eos_token_id: int | Sequence[int] | Literal["model"] | None = "model",
        pad_token_id: int | Literal["model"] | None = "model",
        streamer: Streamer | None = None,
        **others: Any,
    ) -> Tensor:
        """Continue texts, as `generate` of transformers does with a static cache of `max_length` tokens.

        Args:
            input_ids: i64[batch, length], the prompts; padded on the left if they are not equally long.
            attention_mask: [batch, length], 0 for padding. None: there is none, or it is told by its token, which ends
                no text.
            max_new_tokens: how many tokens follow at most. None: as many as there is room for.
            max_length: tokens of the whole text at most, in place of max_new_tokens.
            do_sample, temperature, top_k, top_p: how the next token is chosen. None: as the model's
                `generation_config` says. Draws are from torch's generator, as transformers'.
            eos_token_id: tokens that end a text. "model": the model's. None: nothing does.
            pad_token_id: what follows after the end of a text, while others go on. "model": the model's.
            streamer: gets the prompts and then each token, as the streamers of transformers expect it.
            others: further options of transformers, if they change nothing.

        Returns:
            i64[batch, length + new tokens].

        Raises:
            FrozenCallMismatch: the prompts do not fit. BadOptionValue: an option is wrong, or there is no such option.
            StaleWeights: the model has changed (see `on_stale`).
        """
        _refuse_others(others)
        wish = {"do_sample": do_sample, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        choosing = self._habits.choosing.with_options(wish)
        ends = self._ends(eos_token_id)
        if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            reason, expected = "it takes no tokens", "an object with the methods put and end"
            raise BadOptionValue(option="streamer", value=streamer, reason=reason, expected=expected)
        padding = self._padding(pad_token_id, ends)
        total = self._total(input_ids, max_new_tokens, max_length)
        mask = self._mask(input_ids, attention_mask, padding, ends)
        with self._turns, torch.no_grad():
            self._lengths = [None] * self.batch
            return self._generate(input_ids, mask, total, choosing, ends, padding, streamer)

    def _generate(
        self,
        texts: Tensor,
        mask: Tensor | None,
        total: int,
        choosing: Choosing,
        ends: Tensor | None,
        padding: int | None,
        streamer: Streamer | None,
    ) -> Tensor:
        if streamer is not None:
            streamer.put(texts.cpu())
        logits = self._first(texts, mask)
        unfinished = torch.ones(self.batch, dtype=torch.int64, device=texts.device)
        while True:
            tokens = choosing.tokens(logits)
            if ends is not None:
                tokens = tokens * unfinished + padding * (1 - unfinished)  # type: ignore[operator]
            texts = torch.cat([texts, tokens[:, None]], dim=-1)
            if ends is not None:
                unfinished = unfinished & ~torch.isin(tokens, ends)
            if streamer is not None:
                streamer.put(tokens.cpu())
            if texts.shape[1] >= total or (ends is not None and int(unfinished.max()) == 0):
                break
            logits = self._next(tokens, texts.shape[1] - 1)
        if streamer is not None:
            streamer.end()
        return texts

    def _first(self, texts: Tensor, mask: Tensor | None) -> Tensor:
        is_long = "_long" if self._habits.window and texts.shape[1] >= self._habits.window else ""
        if mask is None:
            logits: Tensor = self._run(f"prefill{is_long}", (texts,), {})
        else:
            logits = self._run(f"prefill_padded{is_long}", (texts, mask), {})
        return logits

    def _next(self, tokens: Tensor, length: int) -> Tensor:
        """length: of the texts before these tokens."""
        is_full = self._habits.window and length >= self._habits.window
        logits: Tensor = self._run("decode_full" if is_full else "decode", (tokens[:, None],), {})
        return logits

    # --- texts that begin and end on their own -----------------------------------------------------------------------

    def start(self, slot: int, input_ids: Tensor) -> Tensor:
        """Read a prompt into a row of the cache; what was in it is dropped, and other rows stay.

        Args:
            slot: the row, from 0 to batch - 1.
            input_ids: i64[length], without padding.

        Returns:
            f32[words], the logits of the next token.

        Raises:
            FrozenCallMismatch: the prompt does not fit. FrozenIsFixed: it was frozen without `slots`.
        """
        if not self.slots:
            raise FrozenIsFixed(what="read a prompt into one slot: it was frozen without slots=True")
        self._refuse_slot(slot)
        if not isinstance(input_ids, Tensor) or input_ids.dim() != 1 or not input_ids.numel():
            raise _refusal(f"a prompt is {_told(input_ids)}", "pass the tokens of one text: i64[length]")
        self._refuse_length(int(input_ids.shape[0]), self.max_length - 1)
        with self._turns, torch.no_grad():
            place = torch.tensor([slot], device=self._device)
            logits: Tensor = self._run("prefill_slot", (input_ids[None], place), {})
            self._lengths[slot] = int(input_ids.shape[0])
        return logits[0]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each text. What stands for rows without a text does not matter.

        Args:
            tokens: i64[batch].

        Returns:
            f32[batch, words], the logits of the tokens after them.

        Raises:
            FrozenCallMismatch: a text is as long as it can be; `release` its slot.
        """
        if not self.slots:
            raise FrozenIsFixed(what="go on with the texts of slots: it was frozen without slots=True")
        if not isinstance(tokens, Tensor) or tokens.shape != (self.batch,):
            raise _refusal(f"tokens are {_told(tokens)}", f"pass one for each slot: i64[{self.batch}]")
        with self._turns, torch.no_grad():
            full = [
                slot for slot, length in enumerate(self._lengths) if length is not None and length >= self.max_length
            ]
            if full:
                reason = f"the text of slot {full[0]} has {self.max_length} tokens"
                raise _refusal(reason, "release a slot once its text is as long as it can be")
            logits: Tensor = self._run("decode", (tokens[:, None],), {})
            self._lengths = [None if length is None else length + 1 for length in self._lengths]
        return logits

    def release(self, slot: int) -> None:
        """The text of a slot is done; `start` can give the slot to another. Raises: BadOptionValue."""
        self._refuse_slot(slot)
        with self._turns:
            self._lengths[slot] = None

    def choose(
        self,
        logits: Tensor,
        *,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Map logits, f32[texts, words], to their next tokens, i64[texts], as `generate` chooses them.

        generator: for the draws, in place of torch's own. Raises: BadOptionValue.
        """
        wish = {"do_sample": do_sample, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        choosing = self._habits.choosing.with_options(wish)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or not logits.is_floating_point():
            raise BadOptionValue(
                option="logits", value=_told(logits), reason="tokens are chosen by them", expected="f32[texts, words]"
            )
        draws: object = generator
        if draws is not None and not isinstance(draws, torch.Generator):
            reason, expected = "it draws no numbers", "a torch.Generator"
            raise BadOptionValue(option="generator", value=draws, reason=reason, expected=expected)
        return choosing.tokens(logits, generator)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return self._habits.ends

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """How many tokens of each slot's text are in the cache; None for a free one."""
        return tuple(self._lengths)

    # --- options ------------------------------------------------------------------------------------------------------

    def _ends(self, wish: Any) -> Tensor | None:
        found: Any = self._habits.ends if isinstance(wish, str) and wish == "model" else wish
        if isinstance(found, Tensor):
            found = found.flatten().tolist()
        found = (found,) if type(found) is int else () if found is None else found
        if not isinstance(found, list | tuple) or not all(map(is_token, found)):
            expected = 'a token, several, None, or "model"'
            raise BadOptionValue(option="eos_token_id", value=wish, reason="it is no token", expected=expected)
        return torch.tensor(found, device=self._device) if found else None

    def _padding(self, wish: Any, ends: Tensor | None) -> int | None:
        found = self._habits.padding if isinstance(wish, str) and wish == "model" else wish
        if found is not None and not is_token(found):
            expected = 'a token, None, or "model"'
            raise BadOptionValue(option="pad_token_id", value=wish, reason="it is no token", expected=expected)
        return int(ends[0]) if found is None and ends is not None else found

    def _refuse_slot(self, slot: object) -> None:
        if type(slot) is not int or not 0 <= slot < self.batch:
            expected = f"0 to {self.batch - 1}"
            raise BadOptionValue(option="slot", value=slot, reason="there is no such row", expected=expected)

    def _total(self, input_ids: Any, max_new_tokens: Any, max_length: Any) -> int:
        """How long texts become at most."""
        if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or not input_ids.shape[1]:
            raise _refusal(f"input_ids is {_told(input_ids)}", f"pass prompts as i64[{self.batch}, length]")
        batch, length = input_ids.shape
        if batch != self.batch:
            reason = f"there are {batch} prompts, and the cache has {self.batch} rows"
            raise _refusal(reason, f"pass {self.batch} prompts, or freeze with batch={batch}")
        self._refuse_length(length, self.max_length - 1)
        if max_new_tokens is not None and max_length is not None:
            reason, expected = "max_new_tokens says it already", "one of the two"
            raise BadOptionValue(option="max_length", value=max_length, reason=reason, expected=expected)
        option, value = ("max_length", max_length) if max_new_tokens is None else ("max_new_tokens", max_new_tokens)
        if value is None:
            return self.max_length
        most = self.max_length if option == "max_length" else self.max_length - length
        least = length + 1 if option == "max_length" else 1
        if type(value) is not int or not least <= value <= most:
            reason = f"after {length} tokens there is room for {self.max_length - length} more"
            raise BadOptionValue(option=option, value=value, reason=reason, expected=f"{least} to {most}")
        return value if option == "max_length" else length + value

    def _refuse_length(self, length: int, most: int) -> None:
        if length > most:
            reason = f"a prompt has {length} tokens, and the cache has room for {most} and one that follows"
            raise _refusal(reason, "shorten it, or freeze with a larger max_length")

    def _mask(self, texts: Tensor, given: Any, padding: int | None, ends: Tensor | None) -> Tensor | None:
        """Where padding is; None where there is none."""
        if given is None:
            if padding is None or (ends is not None and bool((ends == padding).any())):
                return None
            given = texts.ne(padding).long()
        if not isinstance(given, Tensor) or given.shape != texts.shape:
            raise _refusal(f"attention_mask is {_told(given)}", f"pass it as i64{list(texts.shape)}, like input_ids")
        if bool((given == 1).all()):
            return None
        if bool((given[:, -1] == 0).any()):
            raise _refusal("a prompt is padded on the right", "pad on the left: its last token is continued")
        if "prefill_padded" not in self._methods:
            raise _refusal("a prompt is padded", "pass it without padding, or freeze with padding=True")
        return given.to(torch.int64)

    # --- what a frozen module can do ---------------------------------------------------------------------------------

    def swap_weights(self, state_dict: Mapping[str, Tensor]) -> None:
        """Use other weights, by their names in the model; see `FrozenModule.swap_weights`. The cache stays as it is."""
        given = (
            {MODEL + str(name): tensor for name, tensor in state_dict.items()}
            if _is_mapping(state_dict)
            else state_dict
        )
        with self._turns:
            super().swap_weights(given)

    def source_state_dict(self) -> dict[str, Tensor]:
        """See `FrozenModule.source_state_dict`; names are those of the model."""
        return {
            name.removeprefix(MODEL): x for name, x in super().source_state_dict().items() if name.startswith(MODEL)
        }

    def check_stale(self) -> tuple[str, ...]:
        """See `FrozenModule.check_stale`; names are those of the model."""
        return tuple(name.removeprefix(MODEL) for name in super().check_stale())

    def _generation(self) -> dict[str, Any]:
        return self._habits.to_json()

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenModule:
        """A copy with a cache of its own, which has the same texts; constants are shared."""
        with nullcontext() if self._turns.is_mine() else self._turns:
            return super().__deepcopy__(memo)

    def _like(self, running: Running, pool: Pool) -> FrozenGenerator:
        settings = {
            "habits": self._habits,
            "lengths": self._lengths,
            **self._settings(),
        }  # the cache has the same texts
        return FrozenGenerator(self._name, running, pool, **settings)


def _is_mapping(given: object) -> bool:
    return isinstance(given, Mapping)


def _refuse_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in NEUTRAL:
            reason, expected = "generate has no such option", "options of dovetail.FrozenGenerator.generate"
            raise BadOptionValue(option=name, value=value, reason=reason, expected=expected)
        if not is_neutral(name, value):
            reason = "frozen programs do not generate so"
            expected = " or ".join(map(repr, NEUTRAL[name])) + "; or call generate of the model itself"
            raise BadOptionValue(option=name, value=value, reason=reason, expected=expected)


def _refusal(reason: str, hint: str) -> Exception:
    return mismatch("generate", reason, hint, "the cache has a fixed batch and length, and is part of the program")


def _told(given: object) -> str:
    if isinstance(given, Tensor):
        return f"a tensor of shape {list(given.shape)}"
    return f"a {type(given).__name__}"
