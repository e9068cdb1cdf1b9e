"""Random programs that hand objects on: attributes, lists and dictionaries that exchange what they hold.

Between the calls the user's code puts other objects there. What is compared is which object lies where, and what the
tensors hold. Host calls come last: they see objects as they are when the step has ended.
"""

from __future__ import annotations

import copy
import linecache
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import dovetail
from dovetail.errors import DovetailError

CALLS = 8
_LINES = (
    "s.a = s.b",
    "s.b = s.a",
    "s.a, s.b = s.b, s.a",
    "s.a = Box(s.a.w + x)",
    "s.b = Box(s.b.w * 0.5 + x, s.a)",
    "s.b = Box(s.a.w, s.b)",
    "s.l = [s.a, *s.l[:2]]",
    "s.l = s.l[::-1]",
    "s.l[0] = s.b",
    "s.l[-1] = Box(x * 1)",
    "s.d = {**s.d, 'k': s.a}",
    "s.d['k'] = s.b",
    "s.d = {'k': s.l[0], 'z': s.l}",
    "s.a.w = s.a.w + x",
    "s.b.w.add_(x)",
    "s.a = s.l[0]",
    "s.b = s.d['k']",
    "s.a.o = s.b",
    "s.b.o = None",
    "s.a = Box(s.b.w, Box(x * 2))",
    "s.l = [Box(v.w + x, v.o) for v in s.l]",
    "s.l = list(s.l)",
    "s.d = dict(s.d)",
    "t = s.a; s.a = Box(t.w + 1, t)",
    "t = Box(x * 3); t.o = t; s.b = t",
    "s.n = s.n + 1",
    "s.n = 3",
    "s.e = s.a",
    "r.append(s.a.w * 1)",
    "r.append(s.l[0].w + s.b.w)",
    "r.append(s.l)",
    "s.t = (s.a, s.b)",
    "s.a = s.t[1]",
    "s.l.append(s.a)",
    "s.l.pop(0) if len(s.l) > 1 else None",
    "q = s.l; s.l = [q[-1]]; s.e = q",
    "s.a.o = Box(s.b.w - x)",
    "s.w = {'a': [v * 0.5 + x for v in s.w['a']], 'n': s.w['n']}",
    "s.w = {'a': s.w['a'][1:] + [x * 2], 'n': s.w['n'] + 1}",
    "s.w['a'][0].add_(x)",
    "s.w['a'][-1] = x * 5",
    "s.v, s.w = s.w, {'a': [*s.w['a']], 'n': 0}",
    "s.v = s.w['a']",
    "s.p = Pair(s.p.h * 0.5 + x, s.p.n + 1)",
    "s.p = Pair(s.p.h, s.p.n, [s.p.h + x])",
    "s.p.h = s.p.h + x",
    "s.g = Group(s.g.u + x, [s.g.u, *s.g.held[:1]])",
    "s.g = s.g._replace(held=[s.g.u * 2])",
    "r.append(s.w['a'][0] * s.w['n'])",
    "r.append(s.p.h + s.p.n)",
    "r.append(s.g.u + s.g.held[0])",
    "r.append(s.w['a'][0] is s.w['a'][-1])",
    "told(s.b, s.l, x.sum())",
)
_BETWEEN = (
    "s.a = Box(torch.ones(2) * 3)",
    "s.a, s.b = s.b, s.a",
    "s.a = s.b",
    "s.l = [s.a, s.b]",
    "s.l = [copy.deepcopy(v) for v in s.l]",
    "s.d = {'k': s.b}",
    "s.b.w.mul_(2)",
    "s.a.w = torch.ones(2) * 7",
    "s.l.append(Box(torch.zeros(2)))",
    "s.t = (s.b, s.a)",
    "s.a.o = None",
    "s.n = 8",
    "s.b = copy.copy(s.b)",
    "s.e = []",
    "s.w['a'].append(torch.ones(2))",
    "s.w['a'][0] = torch.ones(2) * 5",
    "s.w['a'].reverse()",
    "s.w['a'] = [s.w['a'][0]] * 2",
    "s.w = {'n': s.w['n'], 'a': s.w['a']}",
    "s.w['n'] = 2.5",
    "s.v = s.w['a']",
    "s.v = s.w",
    "s.p.h = torch.ones(2, dtype=torch.float64)",
    "s.p.n = 4",
    "s.p = Pair(s.g.u, 1, s.g.held)",
    "s.g = Group(s.p.h, [s.a.w])",
    "s.g.held.append(s.g.u)",
    "s.g.held[0] = torch.zeros(3)[1:]",
)


class Box:
    def __init__(self, w: torch.Tensor, o: Any = None) -> None:
        self.w = w
        self.o = o


@dataclass(slots=True)
class Pair:
    h: torch.Tensor
    n: float
    more: Any = None


class Group(NamedTuple):
    u: torch.Tensor
    held: list[torch.Tensor]


class State:
    def __init__(self) -> None:
        self.a, self.b = Box(torch.zeros(2)), Box(torch.ones(2))
        self.l, self.d, self.t = [Box(torch.ones(2) * 2), self.a], {"k": self.b}, (self.a, self.b)
        self.n, self.e = 0, None
        self.w, self.v = {"a": [torch.ones(2), torch.zeros(2)], "n": 1}, None
        self.p, self.g = Pair(torch.ones(2), 0), Group(torch.ones(2), [torch.zeros(2)])


def followed(seed: int, wrap: Callable[[Any], Any]) -> tuple[list[Any], str]:
    """What a random program leaves in each call, up to one that is refused. Also the program, with the refusal."""
    rng = random.Random(seed)
    lines = sorted((rng.choice(_LINES) for _ in range(rng.randint(1, 5))), key=lambda line: line.startswith("told"))
    between = {n: rng.choice(_BETWEEN) for n in range(2, CALLS) if rng.random() < 0.4}
    text, name = "\n ".join(["def step(x):", "r = []", *lines, "return r"]) + "\n", f"<objects {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    heard: list[Any] = []
    state = State()

    @dovetail.host_call
    def told(box: Box, boxes: list[Box], number: torch.Tensor) -> None:
        heard.append([float(number), *_shown([box, boxes], {})])

    known = {"s": state, "Box": Box, "Pair": Pair, "Group": Group, "torch": torch, "copy": copy, "told": told}
    exec(compile(text, name, "exec"), known)
    step, seen, refusal = wrap(known["step"]), [], ""
    for n in range(CALLS):
        exec(between.get(n, "pass"), known)
        try:
            result = step(torch.arange(2.0) + n)
        except DovetailError as error:
            refusal = str(error)
            break
        met: dict[int, Any] = {}
        seen.append([_shown(vars(state), met), _shown(result, met), list(heard)])
    return seen, "; ".join([*lines, str(between), refusal])


def _shown(item: Any, met: dict[int, Any]) -> Any:
    """Values, and which objects are one. met: objects, by identity, with their numbers."""
    if isinstance(item, torch.Tensor):
        return item.tolist()
    if isinstance(item, list | dict | tuple | Box | Pair):
        if id(item) in met:
            return f"object {met[id(item)][0]}"
        if not isinstance(item, tuple):
            met[id(item)] = len(met), item
        return [type(item).__name__, *(_shown(part, met) for part in _held(item))]
    return item


def _held(item: Any) -> Iterable[Any]:
    if isinstance(item, Pair):
        return (item.h, item.n, item.more)
    return item.values() if isinstance(item, dict) else vars(item).values() if isinstance(item, Box) else item
