"""Numbers that a compiled function leaves in Python objects: no symbol of a recording is left to the user."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import DovetailError


class Sized(torch.nn.Module):
    """Keeps sizes of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Any = 0
        self.shapes: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Times the number of rows."""
        self.rows = x.shape[0]
        self.shapes = [x.shape]
        return x * self.rows


def test_sizes_that_a_module_keeps_are_plain_numbers() -> None:
    module = Sized()
    run = dovetail.compile(module, dynamic=True)
    for rows in (2, 3, 4, 3):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(run(x), x * rows, rtol=0, atol=0)
        assert (type(module.rows), module.rows) == (int, rows)
        assert module.shapes == [torch.Size((rows, 2))]
        assert type(module.shapes[0][0]) is int


@pytest.mark.parametrize("put", ["append", "__setitem__"])
def test_a_number_of_data_is_not_left_in_a_container(put: str) -> None:
    held: Any = [] if put == "append" else {}

    def function(x: torch.Tensor) -> torch.Tensor:
        getattr(held, put)(*([] if put == "append" else ["last"]), x.sum().item())
        return x * 2

    with pytest.raises(DovetailError):
        dovetail.compile(function)(torch.ones(3))
    assert not held
