"""Checks of `torch_compat.nested`."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch_compat import nested
from dovetail.torch_compat.checks.difference import first_difference
from dovetail.torch_compat.data_sizes import size_with_hint
from dovetail.torch_compat.symbols import new_shape_env


def check_tensors_in() -> str | None:
    """Those in lists and tuples of any depth."""
    x, y = torch.ones(1), torch.ones(2)
    found = list(nested.tensors_in([1, x, (None, [y, x])]))
    return first_difference(("tensors", [id(each) for each in found], [id(x), id(y), id(x)]))


def check_has_symbolic_numbers() -> str | None:
    """Sizes of fakes are such numbers; sizes of tensors do not count."""
    size = size_with_hint(new_shape_env(), 5)
    given: list[Any] = [[1, [2, size]], [size], torch.Size([3]), [torch.ones(3)], []]
    found = [nested.has_symbolic_numbers(each) for each in given]
    return first_difference(("symbolic numbers", found, [True, True, False, False, False]))


CHECKS = (check_tensors_in, check_has_symbolic_numbers)
