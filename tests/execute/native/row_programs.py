"""Random programs over the rows of matrices: pointwise nodes, sums, norms, parts put side by side, writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail

_UNARY = (
    *("torch.tanh({})", "torch.exp({}.clamp(-20, 10))", "torch.sigmoid({})", "F.gelu({})", "F.silu({})", "{}.relu()"),
    *("{} * 0.37", "{}.abs()", "torch.sqrt({}.abs())", "torch.log({}.abs() + 0.1)", "{}.square()"),
)
_REDUCING = (
    *(
        "{}.sum(-1, keepdim=True)",
        "{}.mean(-1, keepdim=True)",
        "{}.amax(-1, keepdim=True)",
        "{}.amin(-1, keepdim=True)",
    ),
    *("torch.logsumexp({}, -1, keepdim=True)", "{}.var(-1, keepdim=True)", "{}.std(-1, keepdim=True, correction=0)"),
    "torch.linalg.vector_norm({}, dim=-1, keepdim=True)",
)
_OF_ROWS = ("{}.softmax(-1)", "{}.log_softmax(-1)", "F.layer_norm({}, w.shape, w, b)", "F.layer_norm({}, w.shape)")
_PARTS = (
    "{t}a, {t}b = {a}.chunk(2, -1); {t} = torch.cat((-{t}b, {t}a * {e}), -1)",
    "{t}a, {t}b = {a}.chunk(2, -1); {t} = torch.cat(({t}a * {t}b, {t}b.tanh() + {e}), -1)",
    "{t}a, {t}b = {a}.chunk(2, -1); {t} = torch.stack(({t}a.exp().clamp(0, 9), {t}b - {t}a), -1).flatten(-2)",
)
_COLUMNS = (2, 3, 5, 7, 8, 16, 31, 64, 65, 100, 257, 300, 2049, 4100)


@dataclass(frozen=True)
class RowProgram:
    """function: of x, y (whole), w, b (a row), e, f (one number for each row) and s (a number)."""

    text: str
    function: Callable[..., tuple[Tensor, ...]]
    given: tuple[Tensor, ...]


class _Draft:
    """The statements of a program, and which values there are: whole ones, and those of one number for each row."""

    def __init__(self, drawn: random.Random, columns: int, whole: list[str], each: list[str]) -> None:
        self.drawn, self.columns = drawn, columns
        self.whole, self.each, self.lines = whole, each, list[str]()

    def a_whole(self) -> str:
        """One of the last whole values, mostly."""
        return self.drawn.choice(self.whole[-4:] if self.drawn.random() < 0.7 else self.whole)

    def other(self) -> str:
        """What is broadcast to it."""
        return self.drawn.choice([self.a_whole(), self.drawn.choice(self.each), "w", "b", "s"])

    def add(self, at: int) -> None:
        """A statement."""
        t, kind = f"t{at}", self.drawn.randrange(9)
        if kind <= 1:
            pair = [self.a_whole(), self.other()]
            self.drawn.shuffle(pair)
            self._say(t, self.drawn.choice("+-*").join(pair), self.whole)
        elif kind == 2:
            into = self.drawn.choice((self.whole, self.each))
            self._say(t, self.drawn.choice(_UNARY).format(self.drawn.choice(into)), into)
        elif kind == 3:
            self._say(t, self.drawn.choice(_REDUCING).format(self.a_whole()), self.each)
        elif kind == 4:
            self._say(t, self.drawn.choice(_OF_ROWS).format(self.a_whole()), self.whole)
        elif kind == 5:
            self._say(t, f"torch.where({self.a_whole()} > {self.other()}, {self.a_whole()}, s)", self.whole)
        elif kind == 6:
            written = self.drawn.choice([name for name in self.whole if name.startswith("t")] or self.whole[:1])
            self.lines.append(f"{written}.{self.drawn.choice(['add_', 'mul_'])}({self.other()})")
        elif kind == 7 and self.columns % 2 == 0:
            part = self.drawn.choice(_PARTS).format(t=t, a=self.a_whole(), e=self.drawn.choice(self.each))
            self.lines.append(part)
            self.whole.append(t)
        else:
            index = f"(e.abs() * 10).long() % {self.columns}"
            self._say(t, f"{self.a_whole()}.scatter(-1, {index}, 0.5) * {self.other()}", self.whole)

    def _say(self, name: str, text: str, into: list[str]) -> None:
        self.lines.append(f"{name} = {text}")
        into.append(name)


def drawn_program(seed: int) -> RowProgram:
    """A program, the same one for a seed."""
    drawn, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    columns = drawn.choice(_COLUMNS if drawn.random() < 0.3 else _COLUMNS[:-2])
    size = (*drawn.choice([(), (2,), (3, 2)]), drawn.choice([1, 2, 3, 8, 17]), columns)
    drafts = [_Draft(drawn, columns, ["x", "y"], ["e", "f"])]
    if drawn.random() < 0.5:  # two that share no memory
        drafts = [_Draft(drawn, columns, ["x"], ["e"]), _Draft(drawn, columns, ["y"], ["f"])]
    for at in range(drawn.randrange(3, 14)):
        drawn.choice(drafts).add(at)
    names = [name for draft in drafts for name in (*draft.whole, *draft.each) if name.startswith("t")] or ["y"]
    results = ", ".join([*drawn.sample(names, min(len(names), 3)), "x"])
    lines = "".join(f"    {line}\n" for draft in drafts for line in draft.lines)
    text = f"def run(x, y, w, b, e, f, s):\n{lines}    return {results}\n"
    made: dict[str, Any] = {}
    exec(text, {"torch": torch, "F": F}, made)
    sizes = (size, size, (columns,), (columns,), (*size[:-1], 1), (*size[:-1], 1), ())
    given = tuple(torch.randn(each, generator=generator) for each in sizes)
    return RowProgram(text, made["run"], given)


def wrong_result(program: RowProgram) -> str:
    """What is wrong with what `numerics="fast"` gives, in two calls; "" if nothing is.

    A result may be wrong by four times as much as eager's, or by 2e-6 of the largest number, for which eager mode may
    have been lucky.
    """
    compiled = dovetail.compile(program.function, numerics="fast")
    with torch.no_grad():
        exact = program.function(*(each.double() for each in program.given))
        eager = program.function(*(each.clone() for each in program.given))
        for _ in range(2):
            found = compiled(*(each.clone() for each in program.given))
            for at, (a, b, wanted) in enumerate(zip(found, eager, exact, strict=True)):
                if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
                    return f"result {at} lies otherwise:\n{program.text}"
                known = wanted.isfinite() & b.isfinite()
                if (known & ~a.isfinite()).any():
                    return f"result {at} is not finite:\n{program.text}"
                errors = [(each.double() - wanted)[known].abs().max().item() if known.any() else 0.0 for each in (a, b)]
                size = wanted[known].abs().max().item() if known.any() else 0.0
                if errors[0] > 4 * errors[1] + 2e-6 * max(size, 1e-3):
                    return f"result {at} is wrong by {errors[0]}, eager mode by {errors[1]}:\n{program.text}"
    return ""
