"""What a step may read or change in Python that is easily overlooked."""

from __future__ import annotations

import collections
import enum
import functools
import random
import threading
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.frontends.step.agreement import Case
from tests.frontends.step.cases.changes import Net, Parts
from tests.frontends.step.twins import Call, Twin


def _scaled(p: Parts, scale: Callable[[], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """The plain step, with its loss times what `scale` says."""
    net, opt = p.net, p.opt

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(rows), labels) * float(scale())
        loss.backward()
        opt.step()
        return loss

    return step


class _Level(enum.Enum):
    LOW = 1
    HIGH = 3


@dataclass(frozen=True)
class _Frozen:
    scale: float


class _Slots:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class _Computed:
    """A property over a private number; and a number for every name that is asked for."""

    def __init__(self) -> None:
        self._scale = 1.0

    @property
    def scale(self) -> float:
        return self._scale * 2

    def __getattr__(self, name: str) -> float:
        return float(len(name)) + self.__dict__["_scale"]


def _read(kind: str) -> Twin:
    """A number in a place of some kind, which the loop changes once."""
    p = Parts()
    module = types.ModuleType("settings")
    module.scale = 1.0  # type: ignore[attr-defined]
    owner: Any = type("Owner", (), {"scale": 1.0})
    child: Any = type("Child", (owner,), {})()
    slots, computed, local, variable = _Slots(1.0), _Computed(), threading.local(), ContextVar("scale", default=1.0)
    local.scale = 1.0
    box: list[Any] = [1.0]
    held: dict[str, Any] = {"a": {"b": [1.0, 2.0]}, "level": _Level.LOW, "frozen": _Frozen(1.0), "word": "x"}
    held |= {"whole": 1, "large": 10**30, "exact": Decimal("1.5"), "part": Fraction(1, 2), "set": {1.0}, "bytes": b"a"}
    held |= {"number": np.float64(1.0), "array": np.ones(3), "long": np.ones(900), "bytearray": bytearray(b"\x01")}
    held |= {"queue": collections.deque([1.0]), "default": collections.defaultdict(float, x=1.0), "range": range(3)}
    held |= {"counts": collections.Counter("aab"), "ordered": collections.OrderedDict(a=1.0, b=2.0)}

    def inner() -> float:
        return box[0]

    inner.scale = 1.0  # type: ignore[attr-defined]

    def kept(*, scale: float = 1.0) -> float:
        return scale

    def ordered_change() -> None:
        held["ordered"].move_to_end("a")

    places: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "a module of the interpreter's": (lambda: module.scale, lambda: setattr(module, "scale", 2.0)),
        "a class": (lambda: child.scale, lambda: setattr(owner, "scale", 2.0)),
        "an instance before its class": (lambda: child.scale, lambda: setattr(child, "scale", 2.0)),
        "slots": (lambda: slots.scale, lambda: setattr(slots, "scale", 2.0)),
        "a property": (lambda: computed.scale, lambda: setattr(computed, "_scale", 2.0)),
        "a computed attribute": (lambda: computed.anything, lambda: setattr(computed, "_scale", 2.0)),
        "a thread's variable": (lambda: local.scale, lambda: setattr(local, "scale", 2.0)),
        "a context variable": (variable.get, lambda: variable.set(2.0)),
        "a bound method of a list": (functools.partial(box.__getitem__, 0), lambda: box.__setitem__(0, 2.0)),
        "a bound method of a dictionary": (
            functools.partial(held["default"].get, "x"),
            lambda: held["default"].update(x=2.0),
        ),
        "a bound method of an object": (
            functools.partial(slots.__getattribute__, "scale"),
            lambda: setattr(slots, "scale", 2.0),
        ),
        "nested containers": (lambda: held["a"]["b"][0], held["a"]["b"].reverse),
        "an enumeration": (lambda: held["level"].value, lambda: held.update(level=_Level.HIGH)),
        "a frozen dataclass": (lambda: held["frozen"].scale, lambda: held.update(frozen=_Frozen(2.0))),
        "a frozen dataclass, forced": (
            lambda: held["frozen"].scale,
            lambda: object.__setattr__(held["frozen"], "scale", 2.0),
        ),
        "a word": (lambda: len(held["word"]), lambda: held.update(word="xyz")),
        "a whole number": (lambda: held["whole"], lambda: held.update(whole=2)),
        "a whole number that becomes true": (
            lambda: 2 if held["whole"] is True else 3,
            lambda: held.update(whole=True),
        ),
        "a large number": (lambda: held["large"] // 10**29, lambda: held.update(large=3 * 10**29)),
        "a decimal": (lambda: held["exact"], lambda: held.update(exact=Decimal("2.5"))),
        "a fraction": (lambda: held["part"], lambda: held.update(part=Fraction(3, 2))),
        "a set": (lambda: sum(held["set"]), lambda: held["set"].add(2.0)),
        "bytes": (lambda: held["bytes"][0], lambda: held.update(bytes=b"b")),
        "a bytearray": (lambda: held["bytearray"][0], lambda: held["bytearray"].__setitem__(0, 3)),
        "a number of numpy": (lambda: held["number"], lambda: held.update(number=np.float64(2.0))),
        "an array": (lambda: held["array"][1], lambda: held["array"].__setitem__(1, 2.0)),
        "a long array": (lambda: held["long"][800], lambda: held["long"].__setitem__(800, 2.0)),
        "a deque": (lambda: held["queue"][0], lambda: held["queue"].appendleft(2.0)),
        "a default dictionary": (lambda: held["default"]["x"], lambda: held["default"].update(x=2.0)),
        "a range": (lambda: len(held["range"]), lambda: held.update(range=range(5))),
        "a counter": (lambda: held["counts"]["a"], lambda: held["counts"].update("a")),
        "an order of keys": (lambda: next(iter(held["ordered"].values())), ordered_change),
        "a variable of a function within": (inner, lambda: box.__setitem__(0, 2.0)),
        "an attribute of a function": (lambda: inner.scale, lambda: setattr(inner, "scale", 2.0)),
        "a default of a keyword": (kept, lambda: setattr(kept, "__kwdefaults__", {"scale": 2.0})),
        "the code of a function": (kept, lambda: setattr(kept, "__code__", (lambda *, scale: scale * 2).__code__)),
        "a partial": (functools.partial(lambda box: box[0], box), lambda: box.__setitem__(0, 2.0)),
        "a cached function": (functools.cache(lambda: box[0]), lambda: box.__setitem__(0, 2.0)),
        "a negative zero": (lambda: 1.0 if str(box[0])[0] == "-" else 2.0, lambda: box.__setitem__(0, -1.0)),
    }
    read, change = places[kind]
    return p.changed(change, _scaled(p, read))


READ = (
    "a module of the interpreter's", "a class", "an instance before its class", "slots", "a property",
    "a computed attribute", "a thread's variable", "a context variable", "nested containers",
    "a bound method of a list", "a bound method of a dictionary", "a bound method of an object",
    "an enumeration", "a frozen dataclass", "a frozen dataclass, forced", "a word", "a whole number",
    "a whole number that becomes true", "a large number", "a decimal", "a fraction", "a set", "bytes", "a bytearray",
    "a number of numpy", "an array", "a long array", "a deque", "a default dictionary", "a range", "a counter",
    "an order of keys", "a variable of a function within", "an attribute of a function", "a default of a keyword",
    "the code of a function", "a partial", "a cached function", "a negative zero",
)  # fmt: skip


# --- models that change -----------------------------------------------------------------------------------------------


class _Other(Net):
    def forward(self, rows: Tensor) -> Tensor:
        """Twice the temperature."""
        return super().forward(rows) / 2


def _rebuilt(kind: str) -> Twin:
    p = Parts(optim.SGD, momentum=0.9)
    net, opt = p.net, p.opt
    net.extra = nn.ModuleList()  # type: ignore[assignment]
    net.last = F.relu  # type: ignore[assignment]

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        opt.zero_grad()
        out = net(rows)
        for layer in net.extra:  # type: ignore[union-attr]
            out = layer(out)
        loss = F.cross_entropy(net.last(out), labels)  # type: ignore[operator]
        loss.backward()
        opt.step()
        return loss

    def layer() -> nn.Module:
        made = nn.Linear(4, 4)
        with torch.no_grad():
            made.weight.copy_(torch.eye(4) * 2)
            made.bias.zero_()
        return made

    def bound() -> None:
        net.forward = types.MethodType(lambda self, rows: Net.forward(self, rows) * 2, net)  # type: ignore[method-assign]

    changes: dict[str, Callable[[], Any]] = {
        "a layer more": lambda: net.extra.append(layer()),  # type: ignore[union-attr,operator]
        "another class": lambda: setattr(net, "__class__", _Other),
        "another forward": bound,
        "another function": lambda: setattr(net, "last", F.gelu),
        "another order of parameters": opt.param_groups[0]["params"].reverse,
        "a parameter less": lambda: opt.state.pop(opt.param_groups[0]["params"].pop()),
        "a parameter swapped": lambda: setattr(net.second, "bias", nn.Parameter(torch.ones(4))),
        "a parameter removed": lambda: setattr(net.second, "bias", None),
        "a buffer replaced": lambda: setattr(net.norm, "running_mean", torch.ones(10)),
        "averages reset": net.norm.reset_running_stats,
        "other strides": lambda: net.first.weight.set_(net.first.weight.detach().t().contiguous().t()),  # type: ignore[call-overload]
        "a state tensor replaced": lambda: opt.state[net.first.weight].update(momentum_buffer=torch.ones(10, 6)),
        "a state tensor gone": lambda: opt.state[net.first.weight].update(momentum_buffer=None),
        "a bigger head": lambda: (setattr(net, "second", nn.Linear(10, 4)), net.second.weight.data.fill_(0.1))[0],
    }

    def change() -> None:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            changes[kind]()

    return p.changed(change, step)


REBUILT = (
    "a layer more", "another class", "another forward", "another function", "another order of parameters",
    "a parameter less", "a parameter swapped", "a parameter removed", "a buffer replaced", "averages reset",
    "other strides", "a state tensor replaced", "a state tensor gone", "a bigger head",
)  # fmt: skip


# --- what a step changes in Python ------------------------------------------------------------------------------------


def _changed_by_step(kind: str) -> Twin:
    p = Parts()
    plain = p.step()
    held: dict[str, Any] = {
        "n": 0,
        "flag": False,
        "word": "",
        "last": (),
        "set": set(),
        "counts": collections.Counter(),
    }
    held |= {
        "whole": np.int64(0),
        "deep": {"list": [0, [1]]},
        "array": np.zeros(2),
        "frozen": _Frozen(0.0),
        "none": None,
    }
    owner: Any = type("Owner", (), {"total": 0})

    def raised() -> None:
        held["n"] = held["n"] + 1

    acts: dict[str, Callable[[], Any]] = {
        "a number": raised,
        "a flag": lambda: held.update(flag=not held["flag"]),
        "a word": lambda: held.update(word=f"step {len(held['word'])}"),
        "a tuple": lambda: held.update(last=(*held["last"][-2:], len(held["last"]))),
        "a set": lambda: held["set"].add(len(held["set"])),
        "a counter": lambda: held["counts"].update("ab"),
        "a number of numpy": lambda: held.update(whole=held["whole"] + 1),
        "a nested list": lambda: held["deep"]["list"][1].__setitem__(0, held["deep"]["list"][1][0] * 2),
        "an array": lambda: held["array"].__iadd__(1),
        "a frozen object": lambda: held.update(frozen=_Frozen(held["frozen"].scale + 1)),
        "a class": lambda: setattr(owner, "total", owner.total + 1),
        "a key": lambda: held.update(none=1) if held.get("none", 0) is None else held.pop("none", None),
        "a large number": lambda: held.update(n=held["n"] * 3 + 2**62),
    }

    def step(rows: Tensor, labels: Tensor) -> tuple[Tensor, str]:
        acts[kind]()
        loss = plain(rows, labels)
        return loss, repr(held["n"])

    def attributes() -> dict[str, Any]:
        shown = {key: value for key, value in held.items() if key not in ("array", "whole", "frozen", "set", "counts")}
        more = {"array": held["array"].tolist(), "whole": int(held["whole"]), "frozen": held["frozen"].scale}
        return {**shown, **more, "set": sorted(held["set"]), "counts": dict(held["counts"]), "total": owner.total}

    return p.twin(step, attributes=attributes)


CHANGED_BY_STEP = (
    "a number", "a flag", "a word", "a tuple", "a set", "a counter", "a number of numpy", "a nested list", "an array",
    "a frozen object", "a class", "a key", "a large number",
)  # fmt: skip


def _argument_taken_apart() -> Twin:
    """The step pops its labels off the batch, and leaves a note in it."""
    p = Parts()
    plain = p.step()

    def step(batch: dict[str, Any], log: list[int]) -> Tensor:
        labels = batch.pop("labels")
        batch["seen"] = True
        log.append(len(log))
        return plain(batch["rows"], labels)

    def call(number: int) -> Call:
        rows, labels = p.batch(number)
        return Call(({"rows": rows, "labels": labels}, [0] * (number % 2)))

    return p.twin(step, call=call)


def _seeded_inside() -> Twin:
    p = Parts()
    plain = p.step()

    def step(rows: Tensor, labels: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return plain(rows, labels)

    return p.twin(step, call=lambda k: Call((*p.batch(k), k // 2)))


def _forked_inside() -> Twin:
    p = Parts()
    plain, net = p.step(), p.net

    def step(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(3)
            told = net(rows)
        return plain(rows, labels), told

    return p.twin(step)


def _hidden_generator(make: Callable[[], Any], draw: Callable[[Any], float]) -> Twin:
    """Random numbers of Python's or NumPy's, from an object that the step holds."""
    p = Parts()
    generator = make()
    return p.twin(_scaled(p, lambda: draw(generator)))


def _printed() -> Twin:
    p = Parts()
    plain, lines = p.step(), []

    class _Out:
        def write(self, text: str) -> int:
            lines.append(text)
            return len(text)

    out: Any = _Out()

    def step(rows: Tensor, labels: Tensor) -> Tensor:
        loss = plain(rows, labels)
        print("loss", loss.item(), loss.detach(), file=out)
        return loss

    return p.twin(step, attributes=lambda: {"lines": list(lines)})


_MORE: dict[str, Any] = {"captures": None, "eager_calls": None, "at_most": 30, "may_refuse": True}

OVERLOOKED = (
    *(Case(f"read from {kind}", functools.partial(_read, kind), **_MORE) for kind in READ),
    *(Case(f"model with {kind}", functools.partial(_rebuilt, kind), **_MORE) for kind in REBUILT),
    *(Case(f"step changes {kind}", functools.partial(_changed_by_step, kind), **_MORE) for kind in CHANGED_BY_STEP),
    Case("an argument taken apart", _argument_taken_apart, **_MORE),
    Case("the generator seeded inside", _seeded_inside, **_MORE),
    Case("the generator forked inside", _forked_inside, **_MORE),
    Case(
        "Python's generator in an object",
        lambda: _hidden_generator(lambda: random.Random(3), lambda it: it.random()),
        **_MORE,
    ),
    Case(
        "NumPy's generator in an object",
        lambda: _hidden_generator(lambda: np.random.default_rng(3), lambda it: it.random()),
        **_MORE,
    ),
    Case("printing", _printed, **_MORE),
)
