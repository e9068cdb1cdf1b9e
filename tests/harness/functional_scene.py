"""The tensors at one point of a random functional program, and how its lines choose among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tests.harness.scene import Condition, Scene


@dataclass(slots=True)
class FunctionalScene(Scene):
    """A scene whose lines are functional: an operator gives a new name, and writes nothing.

    Tensors whose names begin with `e` hold anything; only the line after may name them.
    """

    def tensors(self, condition: Condition) -> list[str]:
        """Names of the tensors for which `condition` holds, oldest first."""
        return [n for n, t in self.names.items() if isinstance(t, Tensor) and n[0] != "e" and condition(t)]

    def like(self, name: str, condition: Condition = lambda _: True) -> str:
        """Another tensor of that shape and dtype (or the same one)."""
        mine = self.tensor(name)
        return self.pick(lambda t: t.shape == mine.shape and t.dtype == mine.dtype and condition(t)) or name

    def fitting(self, name: str) -> str:
        """A tensor of the dtype that can be broadcast to the shape, or to whose shape that can be broadcast."""
        mine = self.tensor(name)
        return (
            self.pick(lambda t: t.dtype == mine.dtype and (fits(t.shape, mine.shape) or fits(mine.shape, t.shape)))
            or name
        )

    def dim_of(self, tensor: Tensor) -> int:
        """One of its dimensions."""
        return self.choose.randrange(tensor.dim())

    def one_of(self, *texts: str) -> str:
        """One of these."""
        return self.choose.choice(texts)


def fits(shape: Sequence[int], into: Sequence[int]) -> bool:
    """Whether `shape` broadcasts to exactly `into`."""
    if len(shape) > len(into):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(into), strict=False))
