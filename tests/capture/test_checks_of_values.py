"""Values that functions of torch look at before they compute are looked at by programs, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import dovetail

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], list[list[Any]]]] = {
    "classes": (lambda y: functional.one_hot(y, 4) * 2, [[0, 1], [0, 4], [-1, 2], [3, 3]]),
    "classes by name": (lambda y: functional.one_hot(y, num_classes=3).float(), [[0, 1], [0, 3], [2, 2]]),
    "quantiles": (lambda q: torch.quantile(torch.arange(4.0), q), [[0.5, 0.2], [1.0, -1.0], [2.0, 0.0], [0.0, 1.0]]),
    "of numbers": (lambda q: torch.arange(4.0).nanquantile(q), [[0.5, 0.2], [1.0, -1.0], [2.0, 0.0], [0.0, 1.0]]),
}


def _called(function: Callable[[Tensor], Tensor], values: Tensor) -> Any:
    try:
        return function(values).tolist()
    except RuntimeError as error:
        return str(error).partition("\n")[0]


@pytest.mark.parametrize(
    ("name", "wrap"),
    [*((name, dovetail.compile) for name in FUNCTIONS), ("classes", dovetail.compile_step)],
)
def test_wrong_values_raise_what_eager_mode_raises(name: str, wrap: Any) -> None:
    function, given = FUNCTIONS[name]
    compiled = wrap(function)
    for values in (given[0], given[0], *given, given[0]):
        wanted, found = (_called(each, torch.tensor(values)) for each in (function, compiled))
        assert found == wanted
    assert compiled.stats.captures <= 2


def test_frozen_programs_look_at_values() -> None:
    class Model(torch.nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return functional.one_hot(y, 4)

    frozen = dovetail.freeze(Model(), (torch.tensor([0, 1]),))
    assert frozen(torch.tensor([3, 1])).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        frozen(torch.tensor([3, 4]))
