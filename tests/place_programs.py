"""Random programs over whole numbers that change from call to call, as places and sizes of tensors.

What is compared: results with their strides, the tensors that are written, the numbers, and gradients. A program that
raises in eager mode has to raise the same in the same call.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.errors import DovetailError

CALLS = 14
_NUMBERS = (
    "s.i = (s.i + 1) % 7",
    "s.i = (s.i * 2 + 1) % 7",
    "s.j = s.i // 2",
    "s.j = (s.j + s.i) % 5",
    "s.j = max(s.i - 2, 0)",
    "s.i += 1 if s.i < 6 else -6",
    "s.j = 6 - s.i",
    "s.i = abs(s.i - 3)",
)
_TENSORS = (
    "r.append(s.a[s.i])",
    "r.append(s.a[:, s.j] * 2)",
    "r.append(s.a[s.i : s.i + 2] + 1)",
    "r.append(s.a[: s.i + 1].sum(0))",
    "r.append(s.a[s.j :].cumsum(0))",
    "r.append(s.a[-1 - s.j])",
    "r.append(s.a[s.i, s.j])",
    "r.append(s.a[..., s.j, None])",
    "r.append(s.a[None, s.i, 1:])",
    "r.append(s.a[s.j : s.j + 3, s.i % 3 :: 2])",
    "s.a[s.i] = x[0]",
    "s.a[s.i, s.j] = 3.0",
    "s.a[:, s.j] += x[:, 0].repeat(2)[:8]",
    "s.a[s.i : s.i + 2] = x[:2]",
    "s.a[s.j :].mul_(1.5)",
    "s.a.narrow(0, s.i, 1).add_(1)",
    "s.a[s.i :, : s.j] = 0.25",
    "s.b[s.i : s.i + x.shape[0]].copy_(x)",
    "r.append(s.b.select(0, s.i))",
    "r.append(s.b.narrow(0, s.j, 4).t())",
    "r.append(torch.arange(s.i, s.i + s.j + 1))",
    "r.append(torch.zeros(s.i + 1, s.j).shape)",
    "r.append(torch.full((s.j + 1,), 0.5) * x[0, 0])",
    "r.append(F.pad(x, (s.i, s.j)))",
    "r.append(x.roll(s.i, 1))",
    "r.append(x[:1].expand(s.j + 1, 8).contiguous())",
    "r.append(x.repeat(1, s.j + 1).sum())",
    "r.append(x.split([s.i + 1, 7 - s.i], 1)[0].mean())",
    "r.append(torch.cat([x[:, : s.i], s.b[:4, s.j :]], 1))",
    "r.append(x.diagonal(s.j % 4))",
    "r.append(x.topk(s.j + 1, 1).values)",
    "r.append(x.unfold(1, 2, s.j + 1).sum(-1))",
    "r.append(x.view(-1)[s.i : s.i + 8].view(2, 4))",
    "r.append(x.reshape(-1, 4)[s.j])",
    "r.append(x.as_strided((2, 3), (8, 1), s.i))",
    "w = s.w[:, s.i : s.i + 2]; g = torch.autograd.grad((x @ w).square().sum(), s.w)[0]; r.append(g)",
    "g = torch.autograd.grad((x[:, : s.j + 1] @ s.w[: s.j + 1]).tanh().sum(), s.w)[0]; r.append(g * s.i)",
    "r.append(x * s.i + s.j)",
    "r.append(s.i * 2 - s.j)",
    "s.b = s.b[s.j :].repeat(2, 1)[:8].clone()",
    "s.v = s.a[s.i]; s.v.add_(1); s.v = None",
    "r.append(s.b[torch.tensor([s.i, s.j])])",
    "r.append(x[0, s.i].item() * 2)",
    "r.append((s.a[: s.i + 1] > 0).any().item())",
    "r.append(s.b.index_select(0, torch.arange(s.j, s.j + 2)))",
)
_BETWEEN = ("s.i = 0", "s.i = 5", "s.j = 1", "s.j = 4", "s.i = 7", "s.a = s.a.t().contiguous().t()", "s.b = s.b * 0.5")


def followed(seed: int, wrap: Callable[[Any], Any]) -> tuple[list[Any], str, Any]:
    """What a random program gives in each call, up to one that is refused; the program; and what was called."""
    rng = random.Random(seed)
    lines = [rng.choice(_TENSORS) for _ in range(rng.randint(1, 4))]
    lines = [*lines, rng.choice(_NUMBERS)] if rng.random() < 0.5 else [rng.choice(_NUMBERS), *lines]
    between = {n: rng.choice(_BETWEEN) for n in range(3, CALLS) if rng.random() < 0.15}
    last = "return [v.clone() if isinstance(v, torch.Tensor) else v for v in r]"  # no views of what is written
    text, name = "\n ".join(["def step(x):", "r = []", *lines, last]) + "\n", f"<places {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    state = SimpleNamespace(i=rng.randrange(7), j=rng.randrange(5), v=None)
    generator = torch.Generator().manual_seed(seed)
    state.a, state.b = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
    state.w = torch.randn(8, 8, generator=generator).requires_grad_()
    known = {"s": state, "torch": torch, "F": F}
    exec(compile(text, name, "exec"), known)
    step, seen, refusal = wrap(known["step"]), [], ""
    for n in range(CALLS):
        exec(between.get(n, "pass"), known)
        try:
            result = [_shown(x) for x in step(torch.randn(4, 8, generator=generator))]
        except DovetailError as error:
            refusal = str(error)
            break
        except (IndexError, RuntimeError) as error:
            result = [type(error).__name__]
        seen.append([result, _shown(state.a), _shown(state.b), state.i, state.j])
        if len(result) == 1 and type(result[0]) is str:
            break
    return seen, "; ".join([*lines, str(between), refusal]), step


def followed_function(seed: int, wrap: Callable[[Any], Any]) -> tuple[list[Any], str]:
    """The same for a function of tensors and numbers: what it gives in each call, and the program."""
    rng = random.Random(seed)
    lines = [rng.choice(_TENSORS) for _ in range(rng.randint(1, 4))]
    lines = [*lines, rng.choice(_NUMBERS)] if rng.random() < 0.5 else [rng.choice(_NUMBERS), *lines]
    lines = [
        line.replace("s.", "") for line in (*lines, *(["r.append((x * s.w).tanh().sum() * s.i)"] * (seed % 3 == 0)))
    ]
    last = "return [v.clone() if isinstance(v, torch.Tensor) else v for v in r], i, j"
    text, name = "\n ".join(["def function(x, a, b, w, i, j):", "r = []", *lines, last]) + "\n", f"<place of {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    generator = torch.Generator().manual_seed(seed)
    a, b, w = (torch.randn(8, 8, generator=generator) for _ in range(3))
    known = {"torch": torch, "F": F}
    exec(compile(text, name, "exec"), known)
    function, seen, i, j = wrap(known["function"]), [], rng.randrange(7), rng.randrange(5)
    for _ in range(CALLS):
        i, j = (rng.randrange(8), rng.randrange(5)) if rng.random() < 0.15 else (i, j)
        x = torch.randn(rng.choice((4, 4, 4, 3)), 8, generator=generator)
        try:
            result, i, j = function(x, a, b, w.requires_grad_(), i, j)
        except DovetailError:
            break
        except (IndexError, RuntimeError) as error:
            return [*seen, (type(error).__name__, _shown(a), _shown(b))], "; ".join(lines)
        trained = [v for v in result if isinstance(v, Tensor) and v.requires_grad]
        gradients = [torch.autograd.grad(v.sum(), w, retain_graph=True)[0] for v in trained]
        seen.append((list(map(_shown, [*result, *gradients])), _shown(a), _shown(b), i, j, type(i), type(j)))
    return seen, "; ".join(lines)


def _shown(item: Any) -> Any:
    return (item.tolist(), item.stride()) if isinstance(item, Tensor) else item
