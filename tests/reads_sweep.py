"""Search for Python values that a compiled program does not notice: random worlds, read by random means.

    python -m tests.reads_sweep --minutes 10
    python -m tests.reads_sweep --programs 10000 --state reads.json

A world is a number somewhere in nested containers and objects, and a way to it. Functions and training steps read it
and are called; then the number changes, or something that they do not read, and they are called again. Each call must
give eager's result, or a refusal by name. The exit status is 1 when one does not. `--programs 1 --first SEED` tries one
again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import inspect
import math
import operator
import random
import sys
import time
import types
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, UserList, UserString, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError
from tests.searching import Standing, begin, keep, parser_of

MODULE = types.ModuleType("world_of_the_search")
MODULE.__file__ = __file__
sys.modules[MODULE.__name__] = MODULE


class _Plain:
    pass


class _Slots:
    __slots__ = ("__weakref__", "w")


class _Dynamic:
    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["held"][name]
        except KeyError:
            raise AttributeError(name) from None


class _Described:
    def __get__(self, item: Any, kind: Any = None) -> Any:
        return self if item is None else item.__dict__["_w"]

    def __set__(self, item: Any, value: Any) -> None:
        item.__dict__["_w"] = value


class _WithDescriptor:
    w = _Described()


class _WithProperty:
    @property
    def w(self) -> Any:
        return self.kept  # type: ignore[attr-defined]

    @w.setter
    def w(self, value: Any) -> None:
        self.kept = value


class _Meta(type):
    pass


@dataclasses.dataclass(eq=False)
class _Data:
    w: Any = None


class _List(list):  # type: ignore[type-arg]
    pass


Get = Callable[[Any], Any]
Wrap = tuple[Any, Get, Callable[[Any], None]]  # what holds a value, how it is read there, how another one is put there


def _attribute(make: Callable[[], Any], way: int) -> Callable[[Any], Wrap]:
    def wrap(value: Any) -> Wrap:
        item = make()
        if isinstance(item, _Dynamic):
            item.held["w"] = value
            return item, lambda i: i.w, lambda v: item.held.__setitem__("w", v)
        item.w = value
        computed = "".join(["w"])
        ways: list[Get] = [
            lambda i: i.w,
            lambda i: getattr(i, computed),
            lambda i: vars(i)[computed] if "w" in getattr(i, "__dict__", ()) else i.w,
        ]
        return item, ways[way], lambda v: setattr(item, "w", v)

    return wrap


def _item(make: Callable[[Any], Any], key: Any, way: int = 0) -> Callable[[Any], Wrap]:
    def wrap(value: Any) -> Wrap:
        container = make(value)
        ways: list[Get] = [lambda c: c[key], lambda c: next(x for k, x in _pairs(c) if k == key)]
        return container, ways[way], lambda v: container.__setitem__(key, v)

    return wrap


def _pairs(container: Any) -> Any:
    return container.items() if hasattr(container, "items") else enumerate(container)


def _class(kind: Callable[[], type], computed: bool) -> Callable[[Any], Wrap]:
    def wrap(value: Any) -> Wrap:
        made = kind()
        base = made.__mro__[-2] if len(made.__mro__) > 2 else made
        base.w = value  # type: ignore[attr-defined]
        name = "".join(["w"])
        return made, (lambda k: getattr(k, name)) if computed else (lambda k: k.w), lambda v: setattr(base, "w", v)

    return wrap


def _derived() -> type:
    return type("Derived", (type("Base", (), {}),), {})


def _weak(value: Any) -> Wrap:
    item = _Plain()
    item.w = value  # type: ignore[attr-defined]
    return (weakref.ref(item), item), lambda pair: pair[0]().w, lambda v: setattr(item, "w", v)


def _partial(value: Any) -> Wrap:
    held = [value]
    return functools.partial(lambda h: h[0], held), lambda p: p(), lambda v: held.__setitem__(0, v)


def _method(value: Any) -> Wrap:
    item = _Data(value)
    return types.MethodType(lambda self: self.w, item), lambda m: m(), lambda v: setattr(item, "w", v)


def _closure(value: Any) -> Wrap:
    def read() -> Any:
        return value

    cell = read.__closure__[0]  # type: ignore[index]
    return read, lambda f: f(), lambda v: setattr(cell, "cell_contents", v)


def _default(value: Any) -> Wrap:
    def read(w: Any = value) -> Any:
        return w

    return read, lambda f: f(), lambda v: setattr(read, "__defaults__", (v,))


def _remembered(value: Any) -> Wrap:
    held = [value]
    read = functools.lru_cache(lambda: held[0])

    def put(new: Any) -> None:
        held[0] = new
        read.cache_clear()

    return read, lambda f: f(), put


def _past_reports(bind: Callable[[Any], Callable[[], Any]], make: Callable[[], Any]) -> Callable[[Any], Wrap]:
    def wrap(value: Any) -> Wrap:
        item = make()
        item.w = value
        return bind(item), lambda f: f(), lambda v: setattr(item, "w", v)

    return wrap


def _state(found: Any) -> Any:
    return found[1] if isinstance(found, tuple) else found


_of_object = object.__getattribute__
_PAST_REPORTS: list[Callable[[Any], Callable[[], Any]]] = [
    lambda i: functools.partial(i.__getattribute__, "w"),
    lambda i: functools.partial(_of_object, i, "w"),
    lambda i: lambda: next(map(_of_object, [i], ["w"])),
    lambda i: lambda read=i.__getstate__: _state(read())["w"],
]


WRAPS: list[Callable[[Any], Wrap]] = [
    *(
        _attribute(make, way)
        for make in (_Plain, _WithDescriptor, _WithProperty, _Data, nn.Module)
        for way in (0, 1, 2)
    ),
    *(_attribute(make, way) for make in (_Slots, _Dynamic, types.SimpleNamespace) for way in (0, 1)),
    *(_item(lambda v: {"a": v, "b": 1}, "a", way) for way in (0, 1)),
    *(_item(lambda v: [0, v], 1, way) for way in (0, 1)),
    _item(lambda v: _List([0, v]), 1),
    _item(lambda v: deque([0, v]), 1),
    _item(lambda v: OrderedDict(a=v), "a"),
    _item(lambda v: defaultdict(int, a=v), "a"),
    _item(lambda v: Counter(a=v) if type(v) is int else {"a": v}, "a"),
    _item(lambda v: ChainMap({"a": v}, {}), "a"),
    _item(lambda v: {n: (v if n == 150 else n) for n in range(300)}, 150),
    _item(lambda v: [v if n == 20_000 else n for n in range(20_001)], 20_000),
    *(_class(kind, computed) for kind in (_derived, lambda: _Meta("OfMeta", (), {})) for computed in (False, True)),
    *(_weak, _partial, _method, _closure, _default, _remembered),
    *(_past_reports(bind, make) for bind in _PAST_REPORTS for make in (_Plain, _Slots)),
    _past_reports(lambda i: functools.partial(inspect.getattr_static, i, "w"), _Plain),
    _past_reports(lambda i: functools.partial(type(i).w.__get__, i), _Slots),
]


class _Color(enum.Enum):
    ONE = 1.0
    TWO = 2.0


LEAVES: list[tuple[Callable[[int], Any], Get]] = [
    (lambda n: n + 1, lambda v: v),
    (lambda n: n + 0.5, lambda v: v),
    (lambda n: Fraction(n + 1, 3), float),
    (lambda n: Decimal(n + 1) / 7, float),
    (lambda n: np.full(3, n + 1.0), lambda v: float(v[1])),
    (lambda n: np.float64(n + 1.5), float),
    (lambda n: (n, [n + 2]), lambda v: v[1][0]),
    (lambda n: "a" * (n + 1), len),
    (lambda n: {n, n + 1, -5}, sum),
    (lambda n: frozenset({n}), sum),
    (lambda n: list(_Color)[n % 2], lambda v: v.value),
    (lambda n: None if n % 2 else 3, lambda v: 1 if v is None else v),
    (lambda n: range(n + 2), len),
    (lambda n: bytes(n + 1), len),
    (lambda n: ctypes.c_double(n + 1.5), lambda v: v.value),
    (lambda n: types.CellType(n + 1), lambda v: v.cell_contents),
    (lambda n: {_Data(n + 1)}, lambda v: sum(x.w for x in v)),
    (lambda n: UserList([0] * (n + 1)), len),
    (lambda n: UserString("a" * (n + 1)), len),
    (lambda n: operator.methodcaller("__add__", [n + 1]), lambda v: v([0])[1]),
]


# What code does with the number.
USES: list[Callable[[Tensor, float], Tensor]] = [
    lambda x, n: x * n,
    lambda x, n: x * (n + 1) if n > 2 else x - n,
    lambda x, n: x * math.cos(n) + round(n, 1),
    lambda x, n: (x + torch.tensor([n, 1.0])) * -n / 3,
    lambda x, n: x * (1 - 0.9**n) if int(n) % 2 else x * max(n, 1.5),
    lambda x, n: x[: int(n) % 3 + 1] * len(f"{n}"),
]


class World:
    """A value, the way to it, and something that is not read."""

    def __init__(self, choose: random.Random, unread: int = 0) -> None:
        """unread: how many more attributes the objects on the way get, and the module, that are not read."""
        make, read = choose.choice(LEAVES)
        value = make(0)
        self._number = 0
        self._make = make
        held, get, self._put = choose.choice(WRAPS)(value)
        gets = [read, get]
        for _ in range(choose.choice((0, 1, 2, 3, 5, 11))):
            held, get, _ = choose.choice(WRAPS)(held)
            gets.append(get)
            if isinstance(held, _Plain):
                _fill(held, unread)
        self.gets = gets[::-1]
        self.root = choose.choice((self._closed, self._global, self._of_module, self._of_default))(held)
        self.use = choose.choice(USES)
        self.unread = _Plain()
        _fill(self.unread, unread)
        _fill(MODULE, unread)

    def change(self) -> None:
        """Put another value where it is."""
        self._number += 1
        self._put(self._make(self._number))

    def disturb(self) -> None:
        """Change what is not read."""
        self.unread.w = [self._number]  # type: ignore[attr-defined]
        MODULE.unread = self.unread  # type: ignore[attr-defined]

    def read(self) -> float:
        """The number, as code of the user's finds it."""
        found = self.root()
        for get in self.gets:
            found = get(found)
        return float(found)

    @staticmethod
    def _closed(held: Any) -> Callable[[], Any]:
        return lambda: held

    @staticmethod
    def _global(held: Any) -> Callable[[], Any]:
        space: dict[str, Any] = {"HELD": held, "__name__": MODULE.__name__}
        exec(compile("def read():\n    return HELD\n", __file__, "exec"), space)
        return space["read"]  # type: ignore[no-any-return]

    @staticmethod
    def _of_module(held: Any) -> Callable[[], Any]:
        MODULE.held = held  # type: ignore[attr-defined]
        return lambda: MODULE.held

    @staticmethod
    def _of_default(held: Any) -> Callable[[], Any]:
        return lambda root=held: root


def _fill(item: Any, count: int) -> None:
    """Give an object attributes that are not read."""
    things: tuple[Callable[[int], Any], ...] = (
        lambda n: [n],
        lambda n: {"a": (n,)},
        lambda n: np.zeros(3),
        lambda n: _Plain(),
    )
    for number in range(count):
        setattr(item, f"more_{number}", things[number % len(things)](number))


def _function(world: World) -> str:
    """What is wrong with a compiled function that reads a world."""

    def f(x: Tensor) -> Tensor:
        return world.use(x, world.read())

    compiled = dovetail.compile(f)
    return _called(world, f, compiled)


def _step(world: World) -> str:
    """What is wrong with a compiled step that reads a world."""
    with torch.random.fork_rng(devices=[]):
        nets = [nn.Linear(2, 1) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]

    def make(which: int) -> Callable[[Tensor], Tensor]:
        net, optimizer = nets[which], optimizers[which]

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = world.use(net(x), world.read()).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return _called(world, make(0), dovetail.compile_step(make(1)))


def _called(world: World, eager: Callable[[Tensor], Tensor], compiled: Callable[[Tensor], Tensor]) -> str:
    x = torch.ones(3, 2)
    change, disturb = world.change, world.disturb
    for call, act in enumerate((None, None, disturb, change, None, change, change, disturb, change)):
        if act is not None:
            act()
        wanted = eager(x)
        try:
            found = compiled(x)
        except DovetailError as error:
            return f"refused: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        except Exception as error:
            return f"call {call} raises {type(error).__name__}: {error}"
        if not torch.equal(found, wanted):
            return f"call {call} gives {found.flatten()[0]}, and eager {wanted.flatten()[0]}"
    return ""


def try_seed(seed: int, unread: int = 0) -> str:
    """What is wrong with the programs of a seed, "" for nothing. A refusal begins with "refused".

    unread: see `World`.
    """
    kind = (_function, _step)[seed % 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(World(random.Random(seed), unread))


def main() -> int:
    """Search."""
    parser = parser_of("tests.reads_sweep", __doc__)
    parser.add_argument("--unread", type=int, default=0, help="attributes that objects on the way get besides")
    options = parser.parse_args()
    standing, step = begin(options, Standing(0))
    refused: Counter[str] = Counter()
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end and (options.programs is None or standing.tried < options.programs):
        wrong = try_seed(standing.next, options.unread)
        if wrong.startswith("refused"):
            refused[wrong] += 1
        elif wrong:
            standing.failures[str(standing.next)] = wrong
            print(f"seed {standing.next}: {wrong}", flush=True)
        standing.next += step
        standing.tried += 1
        if standing.tried % 500 == 0:
            keep(options, standing)
    keep(options, standing)
    print(f"{standing.tried} programs, {len(standing.failures)} failures, {dict(refused)}")
    return 1 if standing.failures else 0


if __name__ == "__main__":
    sys.exit(main())
