"""Random generators outside torch: which functions draw, and what stands in for a generator that a step holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.frontends.step.drawn_values import Source

_OF_PYTHON = (
    *("random", "uniform", "triangular", "betavariate", "expovariate", "gammavariate", "gauss", "lognormvariate"),
    *("normalvariate", "vonmisesvariate", "paretovariate", "weibullvariate", "randint", "randrange", "getrandbits"),
    *("choice", "choices", "sample"),
)
_OF_NUMPY = (
    *("beta", "binomial", "chisquare", "exponential", "f", "gamma", "geometric", "gumbel", "hypergeometric", "laplace"),
    *("logistic", "lognormal", "logseries", "negative_binomial", "noncentral_chisquare", "noncentral_f", "normal"),
    *("pareto", "poisson", "power", "rayleigh", "standard_cauchy", "standard_exponential", "standard_gamma"),
    *("standard_normal", "standard_t", "triangular", "uniform", "vonmises", "wald", "weibull", "zipf", "choice"),
    *("rand", "randn", "randint", "random", "random_sample", "ranf", "sample", "integers", "random_integers"),
    *("dirichlet", "multinomial", "multivariate_normal", "permutation", "permuted"),
)
SHUFFLE = "shuffle"
NAMES = frozenset((*_OF_PYTHON, *_OF_NUMPY, SHUFFLE))

# modules whose functions draw from a generator that they keep
SHARED = tuple(
    (module, getattr(function, "__self__", None))
    for module, function in ((random, random.random), (np.random, np.random.rand))
)


class StandInGenerator:
    """Stands in for a generator, and notes what is drawn from it. _source: the generator."""

    tells_class = True

    def __init__(self, source: Source, drawing: Callable[[Source, str], Callable[..., Any]]) -> None:
        self._source, self._drawing = source, drawing

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For `isinstance`."""
        return type(self._source.generator)

    def __getattr__(self, name: str) -> Any:
        if name in NAMES and hasattr(self._source.generator, name):
            return self._drawing(self._source, name)
        return getattr(self._source.generator, name)


def source_of(item: StandInGenerator) -> Source:
    """The generator that something stands in for."""
    found: Source = object.__getattribute__(item, "_source")
    return found


class OneFunction:
    """Gives one function under every name."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return self._function


def as_it_was(generator: Any) -> Any:
    """A generator whose functions are those from before a recording."""
    return next((hidden for shared, hidden in SHARED if shared is generator), generator)
