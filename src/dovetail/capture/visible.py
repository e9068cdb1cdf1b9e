"""What a caller can see of a call without looking at numbers: collected when a function is recorded, and once more when
the program made of it runs on fakes, so that the two can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.subclasses import is_wrapper

_DATA_DEPENDENT = re.compile(r"\b(?:u|zuf)\d+\b")


@dataclass(frozen=True, slots=True)
class VisibleTensor:
    """One tensor after a call. memory: numbers of the inputs, then of the earlier outputs, in whose storage it lies.

    is_input: the number of the input that it is, -1 for none. moved: whether an input's version counter moved.
    """

    shape: tuple[object, ...]
    stride: tuple[object, ...]
    dtype: torch.dtype
    requires_grad: bool
    is_input: int
    memory: tuple[int, ...]
    moved: bool

    def __str__(self) -> str:
        flags = [*(["requires grad"] if self.requires_grad else []), *(["written"] if self.moved else [])]
        flags += [f"is input {self.is_input}"] if self.is_input >= 0 else []
        flags += [f"lies with {', '.join(map(str, self.memory))}"] if self.memory else []
        text = f"{self.dtype} {list(self.shape)} strides {list(self.stride)}"
        return "; ".join([text, *flags])


@dataclass(frozen=True, slots=True)
class VisibleEffects:
    """inputs, outputs: what is to be seen of them; None for what is not a tensor."""

    inputs: tuple[VisibleTensor | None, ...]
    outputs: tuple[VisibleTensor | None, ...]

    def difference(self, other: VisibleEffects) -> str | None:
        """The first tensor that looks otherwise, in words."""
        for what, mine, theirs in (("input", self.inputs, other.inputs), ("output", self.outputs, other.outputs)):
            if len(mine) != len(theirs):
                return f"{len(mine)} {what}s became {len(theirs)}"
            for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                if a != b:
                    return f"{what} {number} was recorded as [{a}] and is [{b}]"
        return None


def visible_effects(inputs: Sequence[object], versions: Sequence[int], outputs: Sequence[object]) -> VisibleEffects:
    """Collect. inputs, outputs: after the call; versions: of the inputs before it (any number where there is none)."""
    number = {id(x): i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    names: dict[str, str] = {}
    homes: dict[int, list[int]] = {}
    found: list[VisibleTensor | None] = []
    for place, tensor in enumerate([*inputs, *outputs]):
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            found.append(None)
            continue
        home = [] if is_wrapper(tensor) else homes.setdefault(storage_key(tensor), [])
        is_input = number.get(id(tensor), -1) if place >= len(inputs) else -1
        moved = place < len(inputs) and version_of(tensor) != versions[place]
        found.append(_visible(tensor, is_input, tuple(home), moved, names))
        home.append(place)
    return VisibleEffects(tuple(found[: len(inputs)]), tuple(found[len(inputs) :]))


def _visible(
    tensor: torch.Tensor, is_input: int, memory: tuple[int, ...], moved: bool, names: dict[str, str]
) -> VisibleTensor:
    """names: of sizes that depend on data; each run gives them new ones, so they are counted as they come."""

    def spelled(number: object) -> str:
        return _DATA_DEPENDENT.sub(lambda found: names.setdefault(found[0], f"data_{len(names)}"), str(number))

    is_one = [isinstance(n, int) and n == 1 for n in tensor.shape]  # a symbol stands for more than 1, or for anything
    stride = tuple("-" if one else spelled(s) for one, s in zip(is_one, tensor.stride(), strict=True))
    shape = tuple(map(spelled, tensor.shape))
    return VisibleTensor(shape, stride, tensor.dtype, tensor.requires_grad, is_input, memory, moved)
