"""Random numbers that a step draws from Python and NumPy: each call draws them for real, in order, before the program.

While the step is recorded, functions that draw are noted; what they give is an input of the program. When a program
turns out to be the wrong one, the generators are put back. Draws of arrays, and changes of generators otherwise, are
not noted, and are refused as changes.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.captured_memory import generator_is_set
from dovetail.frontends.step.places import Fixed, Path, Place
from dovetail.frontends.step.world import World
from dovetail.ir.program import Origin
from dovetail.reach.values import PLAIN, is_a, random_state, set_random_state

_OF_PYTHON = (
    *("random", "uniform", "triangular", "betavariate", "expovariate", "gammavariate", "gauss", "lognormvariate"),
    *("normalvariate", "vonmisesvariate", "paretovariate", "weibullvariate", "randint", "randrange", "getrandbits"),
    "choice",
)
_OF_NUMPY = (
    *("beta", "binomial", "chisquare", "exponential", "f", "gamma", "geometric", "gumbel", "hypergeometric", "laplace"),
    *("logistic", "lognormal", "logseries", "negative_binomial", "noncentral_chisquare", "noncentral_f", "normal"),
    *("pareto", "poisson", "power", "rayleigh", "standard_cauchy", "standard_exponential", "standard_gamma"),
    *("standard_normal", "standard_t", "triangular", "uniform", "vonmises", "wald", "weibull", "zipf", "choice"),
    *("rand", "randn", "randint", "random", "random_sample", "ranf", "sample", "integers", "random_integers"),
)
_NAMES = frozenset((*_OF_PYTHON, *_OF_NUMPY))


# modules whose functions draw from a generator that they keep
_SHARED = tuple(
    (module, getattr(function, "__self__", None))
    for module, function in ((random, random.random), (np.random, np.random.rand))
)


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw. source: the generator, or where it is held. which: its place among the step's draws."""

    which: int
    source: Any
    path: Path | None
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self, source: Any) -> Any:
        """Draw a number."""
        drawn = getattr(source, self.name)(*self.args, **self.kwargs)
        return drawn.item() if isinstance(drawn, np.generic) else drawn


Take = Callable[[Any], Any]


class Draws:
    """Notes the draws of one recording. made: in order."""

    def __init__(self, world: World, take: Take, line: Callable[[], Origin]) -> None:
        """take: makes an input of a number that was drawn. line: that runs."""
        self.made: list[Draw] = []
        self._world = world
        self._take = take
        self._line = line
        self._thread = threading.get_ident()
        self._held = [(place, source) for place, source in world.generators if not isinstance(place.holder, Fixed)]
        sources = [random, np.random, *(source for _, source in self._held)]
        self._states = {id(source): (source, *random_state(source)) for source in sources}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While active, numbers that are drawn are inputs."""
        with contextlib.ExitStack() as stack:
            instead: dict[int, Any] = {}
            for module in (random, np.random):
                for name in _NAMES & set(dir(module)):
                    function = getattr(module, name)
                    instead[id(function)] = stub = self._drawing(module, None, name)
                    stack.callback(setattr, module, name, function)
                    setattr(module, name, stub)
                for name in {"seed", "setstate", "set_state"} & set(dir(module)):
                    function = getattr(module, name)
                    instead[id(function)] = stub = self._refusing(function)
                    stack.callback(setattr, module, name, function)
                    setattr(module, name, stub)
            for place, held in self._world.holding_any(instead):
                if not isinstance(place.holder, Fixed):
                    self._put(stack, place, held, instead[id(held)])
            for place, source in self._held:
                self._put(stack, place, source, _Generator(source, place.path, self._drawing))
            yield

    def _refusing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            raise generator_is_set(self._line())

        return call

    @staticmethod
    def _put(stack: contextlib.ExitStack, place: Place, held: Any, other: Any) -> None:
        with contextlib.suppress(TypeError, AttributeError):
            place.write(other)
            stack.callback(place.write, held)

    def _drawing(self, source: Any, path: Path | None, name: str) -> Callable[..., Any]:
        real = getattr(source, name)

        def draw(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return real(*args, **kwargs)
            if not all(map(_is_fixed, (*args, *kwargs.values()))):
                raise UnsupportedStep(
                    what=f"draws random numbers ({name}) with arguments that it computes",
                    why="numbers are drawn before the program runs",
                    hint="draw with torch, or outside the step",
                    origin=self._line(),
                )
            made = Draw(len(self.made), source, path, name, args, kwargs)
            drawn = made.make(_Real(real))
            if type(drawn) not in (int, float):
                raise UnsupportedStep(
                    what=f"draws more than one number ({name}) outside torch",
                    why="numbers that are drawn are inputs of the program, one by one",
                    hint="draw with torch (torch.randperm, torch.rand), or outside the step",
                    origin=self._line(),
                )
            self.made.append(made)
            return self._take(drawn)

        return draw

    def explain(self, source: Any) -> bool:
        """Whether a generator is where the draws that were noted have left it. It stays there."""
        source = next((shared for shared, hidden in _SHARED if hidden is source), source)
        if id(source) not in self._states:
            return False
        now, state = random_state(source)
        set_random_state(source, self._states[id(source)][2])
        try:
            for draw in self.made:
                if draw.source is source:
                    draw.make(source)
            return random_state(source)[0] == now
        finally:
            set_random_state(source, state)


class _Real:
    """Gives one function under every name."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return self._function


class _Generator:
    """Stands in for a generator."""

    def __init__(self, source: Any, path: Path, drawing: Callable[[Any, Path, str], Callable[..., Any]]) -> None:
        self._source, self._path, self._drawing = source, path, drawing

    def __getattr__(self, name: str) -> Any:
        if name in _NAMES and hasattr(self._source, name):
            return self._drawing(self._source, self._path, name)
        return getattr(self._source, name)


def _is_fixed(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_fixed, value))
    return type(value) in PLAIN or is_a(value, np.generic) or is_a(value, type)


class Drawn:
    """The numbers of one call, and where the generators were before."""

    def __init__(self, draws: Sequence[Draw], sources: Sequence[Any]) -> None:
        """Draw. sources: the generator of each draw."""
        distinct = {id(source): source for source in sources}
        self._before = [(source, random_state(source)[1]) for source in distinct.values()]
        self.numbers = [draw.make(source) for draw, source in zip(draws, sources, strict=True)]

    def put_back(self) -> None:
        """Let the generators be where they were."""
        for source, state in self._before:
            set_random_state(source, state)
