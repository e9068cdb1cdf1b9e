"""An executor with a mistake that is easy to make, for `look_inside.py` to find; and a check that sees it.

`x * sigmoid(1.702 * x)` is a known shortcut for GELU. This executor takes it for every GELU, whether the program asks
for the exact one or not. The numbers are close, training goes on, and the results are not eager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import dovetail

aten = torch.ops.aten


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """Nearly GELU: off by up to 0.02."""
    return x * torch.sigmoid(1.702 * x)


class WrongGelu:
    """Claims every GELU, the exact ones too: that is the mistake."""

    name = "wrong_gelu"

    def claim(self, node: Any) -> bool:
        """Whether this executor runs the node."""
        return node.target is aten.gelu.default

    def call(self, names: Any, node: Any) -> str:
        """The line of Python that runs it."""
        return f"{names.constant(quick_gelu, 'quick_gelu')}({names.text(node.args[0])})"


def fails(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Raises where a program, compiled with the executor, gives something else than the program itself."""
    expected = gm(*[item.clone() for item in inputs])
    actual = dovetail.compile(gm, executors=[WrongGelu()])(*[item.clone() for item in inputs])
    for left, right in zip(_as_list(expected), _as_list(actual), strict=True):
        if not torch.equal(left, right):
            raise ValueError("compiled with wrong_gelu, it gives something else")


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]
