"""Random programs that compute with sizes of their arguments, and with numbers that they read off tensors.

What is compared: results of every kind, in type and value, and the numbers that are kept. Calls come with other sizes
each, and with ones of 1 and 0 at last.
"""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CALLS = 4
_START = "n, m, k = len(x), y.shape[1], x.numel()"
_OF_DATA = "a, b, q = x.double().sum().item(), y.abs().sum().item(), (x > 0).sum().item()"
_WHOLE = (
    "{v} = {i} + {i}",
    "{v} = {i} * {c} - {i}",
    "{v} = {i} // {c}",
    "{v} = ({i} - {c}) % {c}",
    "{v} = math.ceil({i} * 0.3)",
    "{v} = math.floor({i} * 1.7)",
    "{v} = int({i} / {c})",
    "{v} = max({i}, {i})",
    "{v} = min({i}, {c})",
)
_FLOATS = (
    "{v} = {i} / {c}",
    "{v} = {f} * {i} * {f} + {f}",
    "{v} = math.sqrt(abs({f}) % 3)",
    "{v} = math.tanh({f}) - {f}",
    "{v} = {f} * {i} - {f} * 0.1",
)
_RESULTS = (
    "r.append(x[: {i} % (n + 1)].sum(0))",
    "r.append(x * {f})",
    "r.append(x + {i})",
    "r.append(torch.full(({i} % 7, 2), {f}))",
    "r.append(torch.tensor([{i}, {i}]))",
    "r.append(torch.arange({i} % 20) * {f})",
    "r.append(({i}, {f}, x.shape, divmod({i}, {c})))",
    "r.append(x * (2.0 if {i} > {i} else 3.0))",
    "r.append(F.pad(x, (0, 0, 0, -{i} % 4)))",
    "r.append(x.repeat({c}, 1).shape[0] - n)",
    "r.append((x @ x.T + torch.eye(n) * {f}).view(-1, n).sum(0))",
)
_KEPT = ("s.count = s.count + {i}", "s.mean = s.mean * 0.9 + {f}", "r.append(f'{{{i}}} {{{f}:.3f}}')")


def source_of(seed: int, *, has_data: bool, keeps: bool) -> str:
    """The text of a program. has_data: numbers are read off tensors. keeps: numbers, and texts of them, are kept."""
    drawn = random.Random(seed)
    whole, floats = ["n", "m", "k"], ["0.1", "2.5", "0.37"]
    lines = [_START]
    if has_data:
        lines.append(_OF_DATA)
        floats += ["a", "b", "a", "(q * 0.5)", "(a * n)", "(b / m)"]
    kinds = (_WHOLE, _FLOATS, _RESULTS, _RESULTS, *([_KEPT] if keeps else []))
    for number in range(drawn.randint(4, 10)):
        kind = drawn.choice(kinds)
        form, name = drawn.choice(kind), f"v{number}"
        while "{i}" in form or "{f}" in form:
            form = form.replace("{i}", drawn.choice(whole), 1)
            form = form.replace("{f}", drawn.choice(floats), 1)
        lines.append(form.replace("{c}", str(drawn.randint(2, 5))).replace("{v}", name))
        if kind is _WHOLE:
            whole.append(name)
        elif kind is _FLOATS:
            floats.append(name)
    body = "".join(f"    {line}\n" for line in lines)
    return f"def program(s, x, y):\n    r = []\n{body}    return r\n"


def program_of(text: str, name: str) -> Callable[..., Any]:
    """The function of a text, whose lines can be found."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"math": math, "torch": torch, "F": F}
    exec(compile(text, name, "exec"), names)
    made: Callable[..., Any] = names["program"]
    return made


def followed(
    seed: int, text: str, compile_it: Callable[[Callable[..., Any]], Callable[..., Any]], most: int | None = None
) -> list[Any]:
    """What calls give and keep: so many as there are at most, or up to one that raises where that is not said."""
    drawn = random.Random(seed)
    sizes = [(drawn.randint(2, 12), drawn.randint(2, 6), drawn.randint(2, 9)) for _ in range(CALLS)]
    program, s, found = program_of(text, f"<sizes {seed}>"), SimpleNamespace(count=0, mean=0.0), list[Any]()

    def function(x: Tensor, y: Tensor) -> Any:
        return program(s, x, y)

    run = compile_it(function)
    for number, (n, m, k) in enumerate([*sizes, (1, 3, 2), (0, 2, 2)][:most]):
        numbers = torch.Generator().manual_seed(number)
        x, y = torch.randn(n, 3, generator=numbers), torch.randn(k, m, generator=numbers)
        try:
            found.append((run(x, y), s.count, s.mean))
        except (ArithmeticError, ValueError, RuntimeError, IndexError):
            if most is not None:
                raise
            return found
    return found
