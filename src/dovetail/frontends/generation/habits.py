"""How a model generates if a call does not say otherwise: what its `generation_config` said. It is saved with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dovetail.frontends.freezing.file_fields import list_of, number_of
from dovetail.frontends.freezing.method import FrozenMethod
from dovetail.frontends.generation.choosing import Choosing, is_token

_MOST = 1 << 31
_NEEDED = ("prefill", "decode")
_STATE = {"seen": (torch.bool, 2), "written": (torch.int64, 1), "positions": (torch.int64, 1)}


@dataclass(frozen=True, slots=True)
class Habits:
    """ends: tokens that end a text. padding: what follows then. choosing: how the next token is chosen.

    window: of layers that attend to the last tokens only; 0 where it is not shorter than the cache.
    """

    window: int = 0
    ends: tuple[int, ...] = ()
    padding: int | None = None
    choosing: Choosing = field(default_factory=Choosing)

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        how = self.choosing
        return {
            "window": self.window,
            "ends": list(self.ends),
            "padding": self.padding,
            "do_sample": how.do_sample,
            "temperature": float(how.temperature),
            "top_k": how.top_k,
            "top_p": float(how.top_p),
        }


def habits_from_json(data: Any) -> Habits:
    """What `Habits.to_json` gave. Raises: ValueError; KeyError; BadOptionValue."""
    ends, padding = tuple(list_of(data["ends"])), data["padding"]
    if not all(map(is_token, ends)) or not (padding is None or is_token(padding)):
        raise ValueError("it ends or pads texts with what is no token")
    names = ("do_sample", "temperature", "top_k", "top_p")
    if set(data) != {"window", "ends", "padding", *names}:
        raise ValueError("it says something else of how it generates")
    if type(data["do_sample"]) is not bool or not all(type(data[name]) is float for name in ("temperature", "top_p")):
        raise ValueError("it chooses tokens by what is not a number")
    top_k = number_of(data["top_k"], _MOST)
    if not data["temperature"] > 0 or not 0 < data["top_p"] <= 1:
        raise ValueError("it chooses tokens by numbers that are out of range")
    choosing = Choosing(data["do_sample"], data["temperature"], top_k, data["top_p"])
    return Habits(number_of(data["window"], _MOST), ends, padding, choosing)


def check_generates(methods: dict[str, FrozenMethod], tensors: dict[str, Tensor], state: frozenset[str]) -> None:
    """Raise ValueError unless a program has the methods and the state of one that generates."""
    missing = [name for name in _NEEDED if name not in methods]
    if missing:
        raise ValueError(f"it generates, and has no method {missing[0]}")
    rows = set()
    for name, (dtype, dims) in _STATE.items():
        tensor = tensors.get(name)
        if name not in state or tensor is None or (tensor.dtype, tensor.dim()) != (dtype, dims):
            raise ValueError(f"it generates, and {name} is not its state")
        rows.add(tensor.shape[0])
    if len(rows) > 1 or 0 in tensors["seen"].shape:
        raise ValueError("it generates, and its state does not fit together")
