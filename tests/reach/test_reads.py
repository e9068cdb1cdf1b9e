"""What code reads by any means is compared before each call; what it does not read costs nothing."""

from __future__ import annotations

import builtins
import contextvars
import dataclasses
import decimal
import enum
import functools
import gc
import io
import logging
import operator
import os
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail

Case = tuple[Callable[[Tensor], Any], Callable[[], object]]
TABLE = dict.fromkeys(range(201), 1.0)
LEVEL = contextvars.ContextVar("LEVEL", default=1.0)


class _Meta(type):
    factor = 1.0

    @property
    def doubled(cls) -> float:
        return 2 * TABLE[0]


class _Base:
    w = 1.0
    w1 = 1.0


class _Derived(_Base):
    pass


class _OfMeta(metaclass=_Meta):
    pass


class _Scale(float):
    extra = 0.0


class _Color(enum.Enum):
    RED = 1.0
    BLUE = 2.0


class _Any:
    def __init__(self) -> None:
        self.held = {"w": 1.0}

    def __getattr__(self, name: str) -> float:
        return self.__dict__["held"][name]


class _Own:
    def __init__(self) -> None:
        self.held = 1.0

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "held")


class _Slots:
    __slots__ = ("w",)


@dataclasses.dataclass
class _Config:
    w: float = 1.0
    inner: dict[str, float] = dataclasses.field(default_factory=lambda: {"a": 1.0})


class _Property:
    def __init__(self) -> None:
        self.deep = {"a": [{"b": (1.0, [1.0])}]}

    @property
    def w(self) -> float:
        first: float = self.deep["a"][0]["b"][1][0]
        return first

    @functools.cached_property
    def kept(self) -> float:
        return self.w


def _set(owner: Any, name: str, value: Any) -> Callable[[], object]:
    return lambda: setattr(owner, name, value)


def _nested(depth: int) -> Case:
    root: Any = [1.0]
    innermost = root
    for _ in range(depth):
        root = {"a": root}

    def read(x: Tensor) -> Tensor:
        found = root
        for _ in range(depth):
            found = found["a"]
        return x * found[0]

    return read, lambda: innermost.__setitem__(0, 2.0)


def _large(kind: Any) -> Case:
    items = kind([1.0] * 100_000)
    return lambda x: x * items[99_999], lambda: items.__setitem__(99_999, 2.0)


def _object(make: Callable[[], Any], read: Callable[[Any], Any], change: Callable[[Any], object]) -> Callable[[], Case]:
    def case() -> Case:
        item = make()
        return lambda x: x * read(item), lambda: change(item)

    return case


def _class_attribute() -> Case:
    item = _Derived()
    return lambda x: x * item.w, _set(_Base, "w", 2.0)


def _computed_name() -> Case:
    name = "1"
    return lambda x: x * getattr(_Derived, "w" + name), _set(_Base, "w1", 2.0)


def _vars_of_a_class() -> Case:
    return lambda x: x * vars(_Base)["w" + "1"], _set(_Base, "w1", 3.0)


def _globals_by_name() -> Case:
    return lambda x: x * len(globals()["TAB" + "LE"]), lambda: TABLE.__setitem__(500, 1.0)


def _remembered() -> Case:
    held = [1.0]

    @functools.lru_cache
    def factor() -> float:
        return held[0]

    factor()

    def change() -> None:
        held[0] = 2.0
        factor.cache_clear()

    return lambda x: x * factor(), change


def _remembered_again(bound: int | None) -> Case:
    """As many results as before, for another argument, one of them the same number."""
    held = {1: 1.0, 2: 1.0}

    @functools.lru_cache(bound)
    def factor(which: int) -> float:
        return held[which]

    factor(1)

    def change() -> None:
        held[1] = 2.0
        factor.cache_clear()
        factor(2)

    return lambda x: x * factor(1), change


def _remembered_anew() -> Case:
    """Eager mode fills the table again before the compiled function looks."""
    held = ["a"]
    factor = functools.lru_cache(lambda: held[0])
    factor()

    def change() -> None:
        held[0] = "aa"
        factor.cache_clear()
        factor()

    return lambda x: x * len(factor()), change


def _decorated() -> Case:
    """The decorator is a library's: only its closure leads to the function."""
    item = SimpleNamespace(w=1.0)
    return torch.no_grad()(lambda x: x * item.w), _set(item, "w", 2.0)


def _closure_of_text() -> Case:
    space: dict[str, Any] = {"__name__": __name__}
    exec("def make(w):\n    def read():\n        return w\n    return read", space)
    read = space["make"](1.0)
    return lambda x: x * read(), _set(read.__closure__[0], "cell_contents", 2.0)


def _on_a_tensor(holder: Callable[[Tensor], Any]) -> Case:
    weight = nn.Parameter(torch.ones(3))
    weight.factor = 1.0  # type: ignore[attr-defined]
    held = holder(weight)
    if isinstance(held, nn.Module):
        return lambda x: x * held.weight.factor, _set(weight, "factor", 2.0)  # type: ignore[union-attr]
    return lambda x: x * held.factor, _set(weight, "factor", 2.0)


class _Holder(nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight


def _past_classes(read: Callable[[Any], Any]) -> Case:
    return lambda x: x * read(_Derived), _set(_Base, "w", 2.0)


def _past_objects() -> Case:
    item = _Config()
    item.w = 1.0  # type: ignore[attr-defined]
    name = "w"
    return lambda x: x * object.__getattribute__(item, name), _set(item, "w", 2.0)


def _behind_a_proxy() -> Case:
    item = _Config()
    proxy = weakref.proxy(item)
    return lambda x: x * proxy.inner["a"], lambda: item.inner.update(a=2.0)


def _event() -> Case:
    event = threading.Event()
    return lambda x: x * 2 if event.is_set() else x, event.set


def _logger() -> Case:
    logger = logging.getLogger("tests.reach")
    logger.isEnabledFor(10)
    return lambda x: x * 2 if logger.isEnabledFor(10) else x, lambda: logger.setLevel(10)


def _parent_logger() -> Case:
    logger, parent = logging.getLogger("tests.reach_2.child"), logging.getLogger("tests.reach_2")
    return lambda x: x * 2 if logger.isEnabledFor(10) else x, lambda: parent.setLevel(10)


def _arguments_of_the_process() -> Case:
    return lambda x: x * len(sys.argv), lambda: sys.argv.append("more")


def _environment() -> Case:
    return lambda x: x * float(os.environ.get("REACH", "1")), lambda: os.environ.update(REACH="2")


def _context() -> Case:
    return lambda x: x * LEVEL.get(), lambda: LEVEL.set(2.0)


def _limit() -> Case:
    return lambda x: x * sys.getrecursionlimit(), lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1)


def _weakly() -> Case:
    item = _Config()
    reference = weakref.ref(item)
    return lambda x: x * reference().w, _set(item, "w", 2.0)  # type: ignore[union-attr]


def _default() -> Case:
    def read(x: Tensor, w: list[float] = [1.0]) -> Tensor:  # noqa: B006
        return x * w[0]

    return read, _set(read, "__defaults__", ([2.0],))


def _named_default() -> Case:
    def read(x: Tensor, *, w: float = 1.0) -> Tensor:
        return x * w

    return read, lambda: read.__kwdefaults__.update(w=2.0)


def _attribute_of_a_function() -> Case:
    def read(x: Tensor) -> Tensor:
        return x * read.w  # type: ignore[attr-defined]

    read.w = 1.0  # type: ignore[attr-defined]
    return read, _set(read, "w", 2.0)


def _code() -> Case:
    def inner(x: Tensor) -> Tensor:
        return x

    def other(x: Tensor) -> Tensor:
        return x * 2

    return lambda x: inner(x) + 0, _set(inner, "__code__", other.__code__)


def _method_of_a_library() -> Case:
    class Layer(nn.Identity):
        pass

    layer = Layer()
    return lambda x: layer(x) + 0, _set(Layer, "forward", lambda self, x: x * 2)


def _write_without_read() -> Case:
    item = SimpleNamespace(last=0.0)

    def write(x: Tensor) -> Tensor:
        item.last = 5.0
        return x + item.last

    return write, _set(item, "last", 0.0)


CASES: dict[str, Callable[[], Case]] = {
    "an item of a large dictionary": lambda: (lambda x: x * TABLE[150], lambda: TABLE.__setitem__(150, 20.0)),
    **{f"nested {depth} deep": functools.partial(_nested, depth) for depth in (1, 5, 12, 40)},
    **{f"a large {kind.__name__}": functools.partial(_large, kind) for kind in (list, deque)},
    "an attribute of a class, through a subclass": _class_attribute,
    "an attribute of a class, by a computed name": _computed_name,
    "vars of a class": _vars_of_a_class,
    "globals": _globals_by_name,
    "an attribute of a metaclass": lambda: (lambda x: x * _OfMeta.factor, _set(_Meta, "factor", 2.0)),  # type: ignore[attr-defined]
    "a property of a metaclass": lambda: (lambda x: x * _OfMeta.doubled, lambda: TABLE.__setitem__(0, 3.0)),
    "an attribute of a number": _object(lambda: _Scale(2.0), lambda s: s + s.extra, lambda s: setattr(s, "extra", 1.0)),
    "an attribute of a member of an enumeration": lambda: (
        lambda x: x * _Color.RED.value,
        _set(_Color.RED, "_value_", 5.0),
    ),
    "__getattr__": _object(_Any, lambda a: a.w, lambda a: a.held.update(w=2.0)),
    "__getattribute__": _object(_Own, lambda a: a.w, lambda a: object.__setattr__(a, "held", 2.0)),
    "a slot": _object(_Slots, lambda a: getattr(a, "w", 1.0), lambda a: setattr(a, "w", 2.0)),
    "asdict": _object(_Config, lambda a: dataclasses.asdict(a)["inner"]["a"], lambda a: a.inner.update(a=2.0)),
    "a property": _object(_Property, lambda a: a.w, lambda a: a.deep["a"][0]["b"][1].__setitem__(0, 2.0)),
    "a cached property": _object(_Property, lambda a: a.kept, lambda a: a.__dict__.update(kept=2.0)),
    "a namespace": _object(lambda: SimpleNamespace(w=1.0), lambda a: a.w, lambda a: setattr(a, "w", 2.0)),
    "an array": _object(lambda: np.ones(3), lambda a: float(a[1]), lambda a: a.__setitem__(1, 2.0)),
    "an array of bytes": _object(lambda: bytearray(b"1"), lambda a: a[0], lambda a: a.__setitem__(0, 7)),
    "a set": _object(lambda: {1.0}, len, lambda a: a.add(2.0)),
    "an ordered dictionary": _object(
        lambda: OrderedDict(a=1.0, b=2.0), lambda a: next(iter(a.values())), lambda a: a.move_to_end("a")
    ),
    "a default dictionary": _object(lambda: defaultdict(float), lambda a: a.get("a", 1.0), lambda a: a["a"]),
    "a view of a dictionary": _object(
        lambda: MappingProxyType(TABLE), lambda a: a[7], lambda _: TABLE.update({7: 3.0})
    ),
    "a partial": _object(
        lambda: functools.partial(max, [1.0], [0.5]), lambda a: a()[0], lambda a: a.args[0].__setitem__(0, 9.0)
    ),
    "what a function remembers": _remembered,
    "what a function remembers anew": _remembered_anew,
    "what a function remembers for another argument": functools.partial(_remembered_again, 8),
    "what a function without a bound remembers": functools.partial(_remembered_again, None),
    "a function in a decorator of a library": _decorated,
    "a closure of code made at run time": _closure_of_text,
    "an attribute of a tensor": functools.partial(_on_a_tensor, lambda weight: weight),
    "an attribute of a parameter of a module": functools.partial(_on_a_tensor, _Holder),
    "an attribute of a thread": _object(
        threading.local, lambda a: getattr(a, "w", 1.0), lambda a: setattr(a, "w", 2.0)
    ),
    "an attribute of an error": _object(ValueError, lambda a: len(vars(a)), lambda a: setattr(a, "w", 2.0)),
    "the arguments of an error": _object(
        lambda: ValueError(1.0), lambda a: a.args[0], lambda a: setattr(a, "args", (2.0,))
    ),
    "behind a weak proxy": _behind_a_proxy,
    "attrgetter of a class": functools.partial(_past_classes, operator.attrgetter("".join("w"))),
    "attrgetter of a class, made inside": lambda: (
        lambda x: x * operator.attrgetter("".join("w"))(_Derived),
        _set(_Base, "w", 2.0),
    ),
    "object.__getattribute__": _past_objects,
    "text in memory": _object(lambda: io.StringIO("1"), lambda a: float(a.getvalue()), lambda a: a.write("2")),
    "the settings of decimal numbers": lambda: (
        lambda x: x * float(Decimal(1) / 3),
        lambda: setattr(decimal.getcontext(), "prec", 3),
    ),
    "a lock": _object(threading.Lock, lambda a: 2.0 if a.locked() else 1.0, lambda a: a.acquire()),
    "an event": _event,
    "a logger's level": _logger,
    "the level of a logger's parent": _parent_logger,
    "sys.argv": _arguments_of_the_process,
    "os.environ": _environment,
    "a context variable": _context,
    "a setting of Python": _limit,
    "a weak reference": _weakly,
    "a default": _default,
    "a named default": _named_default,
    "an attribute of a function": _attribute_of_a_function,
    "the code of a function": _code,
    "a method that a library calls": _method_of_a_library,
    "a write without a read": _write_without_read,
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    table, argv, limit = dict(TABLE), list(sys.argv), sys.getrecursionlimit()
    _Base.w = _Base.w1 = _Meta.factor = 1.0
    yield
    TABLE.clear()
    TABLE.update(table)
    sys.argv[:] = argv
    sys.setrecursionlimit(limit)
    os.environ.pop("REACH", None)
    LEVEL.set(1.0)
    decimal.setcontext(decimal.Context())
    _Color.RED._value_ = 1.0


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen(case: str) -> None:
    function, change = CASES[case]()
    compiled = dovetail.compile(function)
    x = torch.randn(3)
    assert torch.equal(compiled(x), function(x))
    before = compiled(x)
    assert torch.equal(before, function(x))
    assert len(compiled.graphs) <= 2
    change()
    found = compiled(x)
    wanted = function(x)
    assert torch.equal(found, wanted)
    assert torch.equal(compiled(x), wanted)
    assert torch.equal(compiled(x), wanted)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_behind(case: str) -> None:
    function, _ = CASES[case]()
    names = dict(vars(builtins))
    classes = {kind: dict(vars(kind)) for kind in (_Base, _Derived, _Any, _Own, _Config, _Property, nn.Module)}
    dovetail.compile(function)(torch.randn(3))
    assert vars(builtins) == names
    assert all(dict(vars(kind)) == held for kind, held in classes.items())
    assert sys.getprofile() is None
    assert gc.isenabled()


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.config = _Config()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.config.w


@pytest.mark.parametrize("item", [_Property, _Config, lambda: SimpleNamespace(w=1.0, other=2.0)])
def test_an_object_that_is_read_as_a_whole_keeps_its_program(item: Callable[[], Any]) -> None:
    held = item()
    compiled = dovetail.compile(lambda x: x * len(vars(held)))
    for _ in range(3):
        compiled(torch.ones(2))
    assert len(compiled.graphs) == 1


def test_what_is_not_read_costs_nothing_and_is_not_refused() -> None:
    def places(net: nn.Module) -> int:
        compiled = dovetail.compile(net)
        compiled(torch.randn(2, 3))
        (variant,) = compiled.__dict__["_cache"].variants
        return sum(guard.count for guard in variant.guard.reads.guards)

    plain, full = _Net(), _Net()
    for number in range(10_000):
        setattr(full, f"more_{number}", [number])
        setattr(full.config, f"more_{number}", {"a": number})
    full.stream = iter([1])  # type: ignore[assignment]
    full.lock = threading.Lock()  # type: ignore[assignment]
    full.large = np.zeros(10_000_000)  # type: ignore[assignment]
    assert places(full) == places(plain)


def test_a_change_of_what_is_not_read_keeps_the_program() -> None:
    net = _Net()
    compiled = dovetail.compile(net)
    for number in range(5):
        compiled(torch.randn(2, 3))
        net.count = number  # type: ignore[assignment]
        net.config.unread = [number]  # type: ignore[attr-defined]
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("value", [1, 0.5, "a", None, (1, 2), Decimal("0.1"), Fraction(1, 3), [1, {"a": (2,)}], {1, 2}])
def test_an_equal_value_keeps_the_program(value: Any) -> None:
    item = SimpleNamespace(value=value)
    compiled = dovetail.compile(lambda x: x + len(repr(item.value)))
    for _ in range(4):
        compiled(torch.ones(2))
        item.value = eval(repr(value))  # an equal one, and another object
    assert len(compiled.graphs) == 1
