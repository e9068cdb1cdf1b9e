"""Python numbers among the arguments of a compiled function: once they change, they are inputs of one program."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import dovetail
from dovetail.inspect.replay import replay

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning"),
]

Function = Callable[[torch.Tensor, int, float], Any]


class Scaled(torch.autograd.Function):
    """Whose backward branches on a number, and computes with it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return (gradient * ctx.scale * 2 if ctx.scale > 3 else gradient * (ctx.scale + 0.5)), None


class Kept:
    last: Any = None


KEPT = Kept()
LINEAR = nn.Linear(4, 4)


@functools.lru_cache
def _remembered(n: int) -> float:
    return math.sin(n)


def _kept(x: torch.Tensor, i: int, f: float) -> torch.Tensor:
    KEPT.last = f
    return x * f


# What takes few programs, whatever the numbers are: of each, how many at the most.
FEW: dict[str, tuple[int, Function]] = {
    "sum and product": (2, lambda x, i, f: x * i + f),
    "formula": (2, lambda x, i, f: x * (1 - 0.9 ** (i + 1)) * (i * f / (i + 1)) - (-f) + divmod(i, 3)[0]),
    "branch": (4, lambda x, i, f: x * 2 if i % 3 == 0 else x + f),
    "gradients": (4, lambda x, i, f: (x.exp() * f).sum() if f > 1.2 else x.sin().sum()),
    "custom backward": (4, lambda x, i, f: Scaled.apply(LINEAR(x), i)),
    "returned": (5, lambda x, i, f: (x * i, i + 1, f * 2, i > 3, -f, i // 2, i % 3, {"f": f**2})),
    "tensor of numbers": (2, lambda x, i, f: x + torch.tensor(i) + torch.tensor([f, 1.0, f * 2, i])),
    "scalars of operators": (2, lambda x, i, f: torch.addcmul(x, x, x, value=f).clamp(-f, f).masked_fill(x > f, f)),
    "mixed types": (2, lambda x, i, f: (x * 10).long() * i * f),
    "with sizes": (2, lambda x, i, f: x * (x.shape[1] * i)),
    "maths": (2, lambda x, i, f: x * math.cos(f) + math.sqrt(i + 1) + math.floor(f) + round(f, 1) + abs(-i) + int(f)),
    "choices": (5, lambda x, i, f: x * max(f, 1.5) * min(i, 4) * max(i, f)),
    "isinstance": (5, lambda x, i, f: x if isinstance(i, int) and i in (1, 2, 3) else x * f),
    "written": (2, lambda x, i, f: x.detach().mul_(f) + i),
}
# What needs a plain number is guarded, or runs in eager mode in the end.
PLAIN: dict[str, Function] = {
    "size": lambda x, i, f: x[:, : (i % 4) + 1] * f,
    "zeros": lambda x, i, f: torch.zeros(i % 5 + 1) + x.sum(),
    "loop": lambda x, i, f: sum((x * k for k in range(i % 4)), x),
    "text": lambda x, i, f: x * len(f"{i}"),
    "NumPy": lambda x, i, f: x * float(np.cos(f)),
    "key": lambda x, i, f: x * {0: 1.0, 1: 2.0}.get(i, 3.0),
    "place": lambda x, i, f: x * [1.0, 2.0, 3.0][i % 3],
    "type": lambda x, i, f: x if type(i) is int else x * 3,
    "remembered": lambda x, i, f: x * _remembered(i % 3),
    "bits": lambda x, i, f: x * ((i & 3) | 8) * (i << 1) * (i ^ 5),
    "power of a number": lambda x, i, f: (f + 1) ** x,
    "exponent": lambda x, i, f: x ** (i % 4),
    "float argument": lambda x, i, f: functional.leaky_relu(x, f) + functional.dropout(x, min(f / 100, 0.5)),
    "long formula": lambda x, i, f: functools.reduce(lambda a, _: a + a * i, range(12), f) * x,
    "another kind": lambda x, i, f: x if i == "a" else x * i,
    "kept": _kept,
    "dimension": lambda x, i, f: x.sum(i % 2),
}


def _calls() -> list[tuple[int, int, float]]:
    """Rows of a tensor, and numbers."""
    choose = random.Random(0)
    return [
        (
            5 if call % 4 == 3 else 3,
            choose.choice([call, choose.randrange(9)]),
            choose.choice([call * 0.5 + 0.1, choose.random() * 3, 0.0, -0.0, 1.0]),
        )
        for call in range(20)
    ]


def _agrees(function: Function, **options: Any) -> dovetail.Stats:
    compiled = dovetail.compile(function, **options)
    for call, numbers in enumerate(_calls()):
        expected, found = (_results(f, call, *numbers) for f in (function, compiled))
        assert found == expected, f"call {call}, with {numbers}"
    return compiled.stats


def _results(function: Function, seed: int, rows: int, i: int, f: float) -> list[Any]:
    torch.manual_seed(seed)
    x = torch.randn(rows, 4, requires_grad=True)
    made = function(x, i, f)
    results = [*made[:-1], *made[-1].items()] if isinstance(made, tuple) else [made]
    ends = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
    if ends:
        torch.stack([end.double().sum() for end in ends]).sum().backward()
    return [*map(_bits, results), _bits(x.grad)]


def _bits(item: Any) -> Any:
    if not isinstance(item, torch.Tensor):
        return type(item), repr(item)
    return item.dtype, item.shape, item.stride(), item.detach().contiguous().numpy().tobytes()


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"verify": 2}], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_one_program_for_all_numbers(name: str, options: dict[str, Any]) -> None:
    most, function = FEW[name]
    shapes = 1 if options.get("dynamic") else 2
    stats = _agrees(function, **options)
    assert stats.eager_calls == 0
    assert stats.captures <= most + shapes, stats


@pytest.mark.parametrize("name", PLAIN)
def test_numbers_that_have_to_be_plain(name: str) -> None:
    assert _agrees(PLAIN[name]).captures <= dovetail.Options().max_variants + 2


def test_negative_zero_and_nan() -> None:
    def function(x: torch.Tensor, f: float) -> torch.Tensor:
        return x + f if f != f or f == 0.0 else x * math.copysign(1.0, f)

    compiled, x = dovetail.compile(function), torch.tensor([-0.0, 1.0])
    for f in (0.5, 1.5, 0.0, -0.0, math.nan, math.inf, -math.inf, -2.5, -0.0, 0.0):
        assert _bits(compiled(x, f)) == _bits(function(x, f)), f


def test_facts_tell_zeros_apart() -> None:
    def function(x: torch.Tensor, f: float) -> Any:
        return x * (f + 1), str(f + 0.0), str(f + -0.0)

    compiled, x = dovetail.compile(function), torch.ones(2)
    for f in (1.0, -0.0, 0.0, -0.0, 0.0):
        assert compiled(x, f)[1:] == function(x, f)[1:]


def test_powers_that_become_complex() -> None:
    def function(x: torch.Tensor, f: float, g: float) -> Any:
        return (x + 1) * f**0.5 + 1, (x + 1) * f**g + 1, f**2.0, f**-1

    compiled, x = dovetail.compile(function), torch.ones(2)
    for f, g in ((1.0, 2.0), (2.0, 0.5), (3.0, 1.5), (-1.0, 0.5), (-2.0, 2.0), (2.5, 0.5)):
        expected, found = function(x, f, g), compiled(x, f, g)
        assert [repr(x) for x in found] == [repr(x) for x in expected]
        assert all(map(torch.equal, found[:2], expected[:2]))
    assert compiled.stats.captures <= 4


def test_what_eager_raises_is_raised() -> None:
    compiled, x = dovetail.compile(lambda x, i: x * (6 // i)), torch.ones(2)
    for i in (1, 2, 3):
        assert torch.equal(compiled(x, i), x * (6 // i))
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0)
    assert torch.equal(compiled(x, 6), x)


def test_tensors_that_share_memory_and_numbers() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, f: float) -> torch.Tensor:
        a.mul_(f)
        return b + f if f > 2 else b * f

    compiled = dovetail.compile(function)
    for call in range(12):
        f = call * 0.5
        made = [torch.arange(8.0), torch.arange(8.0)]
        pairs = [(x, x[2:] if call % 3 else torch.ones(6)) for x in made]
        assert torch.equal(compiled(pairs[0][0][:6], pairs[0][1], f), function(pairs[1][0][:6], pairs[1][1], f))
        assert torch.equal(*made)
    assert compiled.stats.eager_calls == 0


def test_the_reason_names_what_was_relied_on() -> None:
    compiled, x = dovetail.compile(lambda x, i: x if i > 2 else x * i), torch.ones(2)
    for i in (0, 1, 5):
        compiled(x, i)
    reasons = [variant.reason for variant in compiled.stats.variants]
    assert reasons[1] == "argument 1 changed: 0 -> 1"
    assert reasons[2] == "the program relies on not (number_1 > 2), and argument 1 is 5"


def test_what_code_keeps_is_no_traced_number() -> None:
    compiled, x = dovetail.compile(_kept), torch.ones(2)
    for i in range(5):
        compiled(x, i, i * 0.5)
        assert KEPT.last is None or type(KEPT.last) is float
    _remembered.cache_clear()
    remembering = dovetail.compile(lambda x, i: x * _remembered(i))
    for i in range(4):
        remembering(x, i)
    assert all(type(_remembered(i)) is float for i in range(4))


def test_dumps_are_replayed_with_numbers(tmp_path: Path) -> None:
    def function(x: torch.Tensor, i: int, f: float) -> torch.Tensor:
        return ((x * f).tanh() * (i + 1) + (f + 0.5) ** i).sum()

    compiled = dovetail.compile(function, dump=str(tmp_path), dump_calls=True)
    for i in range(1, 4):
        compiled(torch.randn(3, 4, requires_grad=True), i, i * 0.5).backward()
    assert compiled.stats.captures == 2
    assert {row.verdict for row in replay(tmp_path)} == {"ran", "equal"}
    assert any("number_1" in path.read_text() for path in tmp_path.rglob("*.py"))


GLOBAL = 1.0


class Config:
    """Numbers in an object, in its class, behind a property, in slots and in a dictionary."""

    base = 1.0

    def __init__(self) -> None:
        self.scale = 1.0
        self.count = 1
        self.table = {"scale": 1.0}

    @property
    def both(self) -> float:
        return self.scale + self.base


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) / self.temperature if self.temperature > 0.9 else self.linear(x)


CONFIG, SLOTTED, MODEL = Config(), Slotted(), Model()


def _variable() -> tuple[Callable[[torch.Tensor], Any], Callable[[float], None]]:
    scale = 1.0

    def read(x: torch.Tensor) -> Any:
        return x * scale

    def write(number: float) -> None:
        nonlocal scale
        scale = number

    return read, write


def _set_global(number: float) -> None:
    globals()["GLOBAL"] = number


def _set_item(number: float) -> None:
    CONFIG.table["scale"] = number


READ_VARIABLE, SET_VARIABLE = _variable()
# What is read, how it is changed, and how many programs it takes at the most; None: one for each number.
SLOTS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[float], None], int | None]] = {
    "attribute": (lambda x: x * CONFIG.scale, lambda n: setattr(CONFIG, "scale", n), 2),
    "whole number": (lambda x: x * CONFIG.count, lambda n: setattr(CONFIG, "count", int(n * 4)), 2),
    "property": (lambda x: x * CONFIG.both, lambda n: setattr(CONFIG, "scale", n), 2),
    "class": (lambda x: x * CONFIG.both, lambda n: setattr(Config, "base", n), 2),
    "computed name": (lambda x: x * getattr(CONFIG, "sca" + "le"), lambda n: setattr(CONFIG, "scale", n), 2),
    "global variable": (lambda x: x * GLOBAL, _set_global, 2),
    "variable": (READ_VARIABLE, SET_VARIABLE, 2),
    "module": (MODEL, lambda n: setattr(MODEL, "temperature", n), 3),
    "slot": (lambda x: x * SLOTTED.scale, lambda n: setattr(SLOTTED, "scale", n), None),
    "item": (lambda x: x * CONFIG.table["scale"], _set_item, None),
    "returned": (
        lambda x: (x * 2, CONFIG.scale + 1, {"count": CONFIG.count}),
        lambda n: setattr(CONFIG, "scale", n),
        2,
    ),
}


@pytest.mark.parametrize("name", SLOTS)
def test_numbers_that_are_read(name: str) -> None:
    function, change, most = SLOTS[name]
    compiled = dovetail.compile(function)
    for call in range(12):
        change(0.75 + call * 0.25)
        expected, found = (_results(lambda x, i, f, g=g: g(x), call, 3, 0, 0.0) for g in (function, compiled))
        assert found == expected
    stats = compiled.stats
    if most is not None:
        assert stats.captures <= most, stats
        assert stats.eager_calls == 0
    change(1.0)
    assert all(type(x) in (int, float) for x in (CONFIG.scale, CONFIG.count, Config.base, GLOBAL, MODEL.temperature))


def test_a_number_that_the_code_writes_is_no_input() -> None:
    counter = Config()

    def counting(x: torch.Tensor) -> torch.Tensor:
        counter.count += 1
        return x * counter.count

    compiled, x = dovetail.compile(counting), torch.ones(2)
    for call in range(12):
        assert compiled(x)[0] == call + 2
        assert type(counter.count) is int


def test_the_object_is_replaced_or_gone() -> None:
    holder = {"config": Config()}

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * holder["config"].scale

    compiled, x = dovetail.compile(function), torch.ones(2)
    for call in range(6):
        holder["config"].scale = call * 0.5
        assert compiled(x)[0] == call * 0.5
    for call in range(6):
        holder["config"] = Config()
        holder["config"].scale = 7.0 + call
        assert compiled(x)[0] == 7.0 + call
    holder["config"].scale = 3  # of another type
    assert compiled(x)[0] == 3
    del holder["config"].scale
    with pytest.raises(Exception, match="scale"):
        compiled(x)


def test_second_derivatives_with_numbers() -> None:
    config = Config()

    def function(x: torch.Tensor, i: int) -> torch.Tensor:
        return ((x * config.scale).tanh() * (i + 1)).sum()

    compiled = dovetail.compile(function, double_backward=True)
    for i in range(4):
        config.scale = 0.5 + i
        x = torch.randn(3, requires_grad=True)
        found = []
        for run in (function, compiled):
            (gradient,) = torch.autograd.grad(run(x, i), x, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), x)[0])
        assert torch.equal(*found)
