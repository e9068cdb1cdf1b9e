"""The tensors of a random program while it is made, and the choices among them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from dovetail.torch_compat.dispatch import storage_key
from tests.harness.agreement import overlaps_itself

Condition: TypeAlias = Callable[[torch.Tensor], bool]


@dataclass(slots=True)
class Scene:
    """The tensors that exist at one point of a program, by name, and the source of all choices."""

    choose: random.Random
    names: dict[str, Any]
    count: int = 0
    inputs: tuple[str, ...] = ()
    twisted: set[str] = field(default_factory=set)

    def note_overlaps(self, line: str, before: Iterable[str]) -> None:
        """Remember which new tensors have elements that share bytes, or are views of such a tensor."""
        mentioned = [name for name in re.findall(r"\w+", line) if name in self.names]
        for name in self.names:
            if name in before or not isinstance(self.names[name], torch.Tensor):
                continue
            tensor = self.tensor(name)
            parents = [m for m in mentioned if m in self.twisted and storage_key(self.tensor(m)) == storage_key(tensor)]
            if parents or overlaps_itself(tensor):
                self.twisted.add(name)

    def pick_target(self, condition: Condition = lambda _: True) -> str | None:
        """The name of a tensor to write: what a write to shared elements gives is nobody's promise."""
        twisted = [self.tensor(name) for name in self.twisted]
        return self.pick(lambda t: condition(t) and not any(t is other for other in twisted))

    def tensors(self, condition: Condition) -> list[str]:
        """Names of the tensors for which `condition` holds, oldest first."""
        return [n for n, v in self.names.items() if isinstance(v, torch.Tensor) and condition(v)]

    def pick(self, condition: Condition = lambda _: True) -> str | None:
        """The name of a tensor, a recent one twice as likely as an old one."""
        found = self.tensors(condition)
        if not found:
            return None
        return self.choose.choice(found[len(found) // 2 :] if self.choose.random() < 0.5 else found)

    def tensor(self, name: str) -> torch.Tensor:
        """The live tensor of that name."""
        tensor = self.names[name]
        assert isinstance(tensor, torch.Tensor), "picked by name among tensors"
        return tensor

    def fresh(self) -> str:
        """A name that no tensor has."""
        self.count += 1
        return f"v{self.count}"


def is_real_float(tensor: torch.Tensor) -> bool:
    """Whether the elements are real floating-point numbers."""
    return tensor.dtype.is_floating_point


def is_number(tensor: torch.Tensor) -> bool:
    """Whether the elements are numbers, not truth values."""
    return tensor.dtype is not torch.bool
