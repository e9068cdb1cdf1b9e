"""What Python does with numbers that a step reads off tensors, and with numbers that change between calls."""

from __future__ import annotations

import copy
import functools
import json
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.changes import Parts
from tests.frontends.step.twins import Call, Twin


def _caught(x: float) -> float:
    """Errors are swallowed here, those of the compiler too unless it insists."""
    try:
        return float(f"{x:.2f}")
    except Exception:
        return 0.0


# Each takes the loss as a number, and gives a number or a word that the step returns and computes with.
OF_NUMBERS: dict[str, Callable[[float], Any]] = {
    "arithmetic": lambda x: (2 * x + 1 - x / 3) ** 2 // 0.25 % 7,
    "reversed arithmetic": lambda x: (2 - x) / (1 + x) + 2**x - (10 // x) - 10 % x,
    "negated": lambda x: abs(-x) + +x,
    "rounded": lambda x: round(x, 2) + round(x),
    "truncated": lambda x: int(x * 100) / 100,
    "floor and ceil": lambda x: math.floor(x * 10) + math.ceil(x * 10),
    "square root": math.sqrt,
    "exponential": lambda x: math.exp(-x) + math.log(x + 1) + math.log10(x + 1) + math.tanh(x),
    "is it a number": lambda x: 0.0 if math.isnan(x) or math.isinf(x) or not math.isfinite(x) else 1.0,
    "largest": lambda x: max(x, 1.2) + min(x, 1.1, 5),
    "sum": lambda x: sum([x, x / 2, 1]),
    "sorted": lambda x: sorted([1.3, x, 1.0])[1],
    "chained": lambda x: 1.0 if 1.0 < x < 1.4 else 2.0,
    "a kind": lambda x: 2.0 if isinstance(x, float) else 3.0,
    "an exact kind": lambda x: 2.0 if type(x) is float else 3.0,
    "not a whole number": lambda x: 2.0 if isinstance(x, int) else 3.0,
    "a key": lambda x: {x: 3.0}[x],
    "in a list": lambda x: 2.0 if x in [1.0, 2.0] else 3.0,
    "float again": lambda x: float(x) + 1,
    "truth": lambda x: 2.0 if x else 3.0,
    "boolean": lambda x: bool(x > 1.2),
    "and, or": lambda x: (x > 1 and x) or 2.0,
    "divided with remainder": lambda x: divmod(x, 0.3)[1],
    "an integer ratio": lambda x: float(x.as_integer_ratio()[0] > 3),
    "is it whole": lambda x: 2.0 if x.is_integer() else 3.0,
    "a tensor": lambda x: torch.tensor([x, 2 * x]).sum().item(),
    "a filled tensor": lambda x: torch.full((3,), x).sum().item(),
    "an operand": lambda x: (torch.ones(3) * x + x).sum().item(),
    "a bound": lambda x: torch.arange(4.0).clamp(max=x).sum().item(),
    "an exponent": lambda x: torch.arange(4.0).pow(x).sum().item(),
    "a factor": lambda x: torch.add(torch.ones(2), torch.ones(2), alpha=x).sum().item(),
    "a weight": lambda x: torch.lerp(torch.zeros(2), torch.ones(2), x).sum().item(),
    "a size": lambda x: float(torch.ones(int(x) + 2).sum().item()),
    "a length": lambda x: float(len([0] * (int(x) + 2))),
    "a loop": lambda x: float(sum(1 for _ in range(int(x * 2)))),
    "a place": lambda x: [4.0, 5.0, 6.0, 7.0, 8.0][int(x)],
    "a place in a tensor": lambda x: torch.arange(20.0)[int(x * 3)].item(),
    "caught": _caught,
}
WORDS_OF_NUMBERS: dict[str, Callable[[float], str]] = {
    "three digits": lambda x: f"{x:.3f}",
    "text": str,
    "representation": repr,
    "old format": lambda x: "%.2f" % x,  # noqa: UP031
    "the name of its type": lambda x: type(x).__name__,
}


def _of_loss(function: Callable[[float], Any], is_word: bool = False) -> Twin:
    p = Parts(weight_decay=0.1)
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        found = function(loss.item())
        (loss if is_word else loss * found).backward()
        opt.step()
        return found

    return p.twin(step)


class _Settings:
    def __init__(self) -> None:
        self.value = 1.0
        self.count = 0


def _of_setting(function: Callable[[float], Any], is_word: bool = False) -> Twin:
    """The same with a number that the loop sets before each call."""
    p = Parts()
    net, opt, settings = p.net, p.opt, _Settings()

    def step(rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        found = function(settings.value)
        (loss if is_word else loss * found).backward()
        opt.step()
        return found

    def before(number: int) -> None:
        settings.value = 0.9 + 0.17 * number

    return p.twin(step, before=before)


def _of_counter(function: Callable[[Any], Any], is_word: bool = False) -> Twin:
    """The same with a number that the step raises."""
    p = Parts()
    net, opt, settings = p.net, p.opt, _Settings()

    def step(rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels)
        settings.value += 0.17
        found = function(settings.value)
        (loss if is_word else loss * found).backward()
        opt.step()
        return found

    return p.twin(step, attributes=lambda: vars(settings))


# Each takes a whole number that is another one in each call.
OF_INTEGERS: dict[str, Callable[[int], Any]] = {
    "every fourth": lambda i: 2.0 if (i + 1) % 4 == 0 else 3.0,
    "warm-up": lambda i: min(1.0, (i + 1) / 3),
    "arithmetic": lambda i: ((3 * i + 1) // 2 - i % 3) / 7 + 2**i - (-i) ** 3,
    "bits": lambda i: float((i << 2 | 1) ^ (i & 3)) + (i >> 1),
    "the other bits": lambda i: float(~i & 7),
    "its length in bits": lambda i: float(i.bit_length()),
    "a place": lambda i: [1.0, 2.0, 3.0][i % 3],
    "a place from the end": lambda i: list(range(20))[-i - 1] / 3,
    "a part": lambda i: float(len([1, 2, 3, 4, 5][: i % 4])),
    "a key": lambda i: {k: k / 2 for k in range(30)}[i],
    "a key that may be missing": lambda i: {2: 3.0, 5: 4.0}.get(i, 1.0),
    "in a set": lambda i: 2.0 if i in {1, 4, 6} else 3.0,
    "a loop": lambda i: sum(1.0 for _ in range(i)),
    "a size": lambda i: torch.ones(i + 1).sum().item(),
    "a range of a tensor": lambda i: torch.arange(i).sum().item() / 3,
    "a part of a tensor": lambda i: torch.arange(20.0)[: i + 1].sum().item(),
    "a row": lambda i: torch.arange(40.0).view(20, 2)[i].sum().item(),
    "a factor": lambda i: (torch.ones(3) * i).sum().item(),
    "an exponent": lambda i: (torch.full((3,), 1.1) ** i).sum().item(),
    "an alpha": lambda i: torch.add(torch.ones(2), torch.ones(2), alpha=i).sum().item(),
    "a filled tensor": lambda i: torch.full((2,), i).sum().item() / 3,
    "its type": lambda i: float(torch.full((2,), i).dtype is torch.int64),
    "repeated": lambda i: float(len("ab" * i + "c")),
    "rolled": lambda i: torch.arange(5.0).roll(i)[0].item(),
    "a kind": lambda i: 2.0 if isinstance(i, int) and not isinstance(i, float) else 3.0,
    "text": lambda i: float(str(i)),
    "text of digits": lambda i: float(f"{i:03d}"),
    "old text": lambda i: float("%d" % i),  # noqa: UP031
    "JSON": lambda i: json.loads(json.dumps([i]))[0] / 2,
    "NumPy": lambda i: float(np.sqrt(i)) + float(np.arange(3)[i % 3]),
    "an array": lambda i: float(np.array([i, 2]).sum()),
    "copied": lambda i: copy.deepcopy([i])[0] + copy.copy(i) / 2,
    "factorial": lambda i: math.factorial(i) / 100 + math.gcd(i, 6) + math.hypot(i, 2),
    "divided with remainder": lambda i: float(divmod(i, 4)[1] + divmod(100, i + 1)[0]),
    "to the power, of a remainder": lambda i: pow(3, i, 7) / 2,
    "sorted": lambda i: float(sorted([3, i, 5])[0]),
    "hashed": lambda i: float(hash(i) % 5),
    "an exact kind": lambda i: 2.0 if type(i) is int else 3.0,
    "larger than any": lambda i: ((i + 7) * 6364136223846793005 + 1) % 2**31 / 2**31,
}


def _of_integer(function: Callable[[int], Any], is_word: bool = False) -> Twin:
    """With an argument."""
    del is_word
    p = Parts()
    net, opt = p.net, p.opt

    def step(number: int, rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        found = function(number)
        (F.cross_entropy(net(rows), labels) * found).backward()
        opt.step()
        return found, number + 1

    return p.twin(step, call=lambda k: Call((k, *p.batch(k))))


def _of_counted(function: Callable[[int], Any], is_word: bool = False) -> Twin:
    """With a number that the loop raises."""
    del is_word
    p = Parts()
    net, opt, settings = p.net, p.opt, _Settings()

    def step(rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        found = function(settings.count)
        (F.cross_entropy(net(rows), labels) * found).backward()
        opt.step()
        return found

    def before(number: int) -> None:
        settings.count = number

    return p.twin(step, before=before)


# --- what tensors are asked -------------------------------------------------------------------------------------------


def _first_of(first: Tensor, *_: Tensor) -> float:
    return first.sum().item()


OF_TENSORS: dict[str, Callable[[Tensor, nn.Module], Any]] = {
    "an exact type": lambda x, _: 2.0 if type(x) is Tensor else 3.0,
    "an exact type of a parameter": lambda _, net: 2.0 if type(net.first.weight) is nn.Parameter else 3.0,
    "a kind of a parameter": lambda _, net: 2.0 if isinstance(net.first.weight, nn.Parameter) else 3.0,
    "an index": lambda x, _: [5.0, 6.0, 7.0, 8.0][x.argmax(1)[0]],
    "a range": lambda x, _: float(sum(1 for _ in range(x.argmax(1)[1] + 1))),
    "an int": lambda x, _: float(int(x.argmax(1)[0]) + 1),
    "a truth": lambda x, _: 2.0 if (x > 0).any() else 3.0,
    "equal": lambda x, _: 2.0 if torch.equal(x, x * 2) else 3.0,
    "close": lambda x, _: 2.0 if torch.allclose(x, x + 1e-9) else 3.0,
    "contained": lambda x, _: 2.0 if 3 in x.argmax(1) else 3.0,
    "a loop over rows": lambda x, _: sum(row.sum() for row in x).item(),
    "unpacked": lambda x, _: _first_of(*x),
    "memory": lambda x, _: 2.0 if x.data_ptr() % 8 == 0 else 3.0,
    "storage": lambda x, _: float(x.untyped_storage().nbytes() > 0),
    "a graph": lambda x, _: 2.0 if x.grad_fn is not None and x.requires_grad else 3.0,
    "a version": lambda x, _: float(x._version),
    "a dictionary key": lambda x, _: {x: 2.0}[x],
    "an attribute": lambda _, net: float(getattr(net.first.weight, "note", 1.0)),
    "a bincount": lambda x, _: torch.bincount(x.argmax(1)).max().item(),
    "unique": lambda x, _: float(x.argmax(1).unique().numel()),
    "nonzero": lambda x, _: float((x > 0).nonzero().shape[0]),
    "a histogram": lambda x, _: torch.histc(x.detach(), 4)[0].item(),
    "a copy to numpy": lambda x, _: float(x.detach().numpy().mean()),
    "deep copied": lambda x, _: copy.deepcopy(x.detach()).sum().item(),
    "pickled": lambda x, _: float(len(pickle.dumps(x.detach())) > 10),
}

WORDS_OF_TENSORS: dict[str, Callable[[Tensor, nn.Module], Any]] = {
    "a name of a type": lambda x, _: type(x).__name__,
    "a list": lambda x, _: x.argmax(1).tolist(),
    "a graph's name": lambda x, _: type(x.grad_fn).__name__,
}


def _of_output(function: Callable[[Tensor, nn.Module], Any], is_word: bool = False) -> Twin:
    p = Parts()
    net, opt = p.net, p.opt
    net.first.weight.note = 2.0

    def step(rows: Tensor, labels: Tensor) -> Any:
        opt.zero_grad()
        out = net(rows)
        found = function(out, net)
        loss = F.cross_entropy(out, labels)
        (loss if is_word else loss * found).backward()
        opt.step()
        return found

    def before(number: int) -> None:
        net.first.weight.note = 1.0 + number // 4

    return p.twin(step, before=before)


def _warned() -> Twin:
    p = Parts()
    plain = p.step()
    seen: list[str] = []

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("a step was made", stacklevel=1)
        seen[:] = [str(item.message) for item in caught]
        return plain(rows, labels)

    return p.twin(step, attributes=lambda: {"seen": seen})


def _cases(
    kind: str, make: Callable[..., Twin], table: dict[str, Any], words: dict[str, Any], *, knows: bool = False
) -> list[Case]:
    """knows: the number is known before the call. Then nothing is refused: code gets it where it cannot be an input."""
    more: dict[str, Any] = {
        "captures": None,
        "eager_calls": None,
        "at_most": 30,
    }
    rows = [(name, functools.partial(make, it)) for name, it in table.items()]
    rows += [(name, functools.partial(make, it, True)) for name, it in words.items()]
    return [
        Case(
            f"{kind}: {name}",
            build,
            may_refuse=not knows or name in _OF_DATA,
            **more,
        )
        for name, build in rows
    ]


_OF_DATA = frozenset({"a size"})  # what it reads off a tensor is turned into a plain number

NUMBERS = (
    *_cases("number of a tensor", _of_loss, OF_NUMBERS, WORDS_OF_NUMBERS),
    *_cases("number that changes", _of_setting, OF_NUMBERS, WORDS_OF_NUMBERS, knows=True),
    *_cases("number that the step raises", _of_counter, OF_NUMBERS, WORDS_OF_NUMBERS),
    *_cases("whole number", _of_integer, OF_INTEGERS, {}, knows=True),
    *_cases("count", _of_counted, OF_INTEGERS, {}, knows=True),
    *_cases("tensor", _of_output, OF_TENSORS, WORDS_OF_TENSORS),
    Case("a warning", _warned, captures=None, eager_calls=None),
)
