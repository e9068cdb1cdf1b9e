"""Numbers that were read off tensors, by line, and handing them out again."""

from __future__ import annotations

import pytest
import torch

from dovetail.capture.item_log import ItemHints, ItemLog
from dovetail.ir.program import Origin

_HERE = Origin("a.py", 3, "step")
_KEY = ("a.py", 3)


def _read_off(x: torch.Tensor) -> list[object]:
    found: list[object] = [x.sum().item()]
    found += [row.item() for row in x]
    found.append(bool(x[0] > 0))
    return found


def test_numbers_are_logged_by_line_in_order() -> None:
    log = ItemLog()
    x = torch.tensor([1.0, -2.0])
    with log:
        found = _read_off(x)
    assert found == [-1.0, 1.0, -2.0, True]
    assert [file for file, _ in log.numbers] == [__file__] * 3
    first = _read_off.__code__.co_firstlineno
    assert {line - first: numbers for (_, line), numbers in log.numbers.items()} == {
        1: [-1.0],
        2: [1.0, -2.0],
        3: [True],
    }


def test_nothing_else_changes() -> None:
    log = ItemLog()
    x = torch.ones(3, requires_grad=True)
    with log:
        (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert log.numbers == {}


def test_complex_numbers_are_not_logged() -> None:
    log = ItemLog()
    with log:
        assert torch.tensor(1j).item() == 1j
    assert log.numbers == {}


def test_hints_come_in_order_and_the_last_one_again() -> None:
    hints = ItemHints({_KEY: [1.5, 2.5]})
    assert [hints.next_at(_HERE, torch.float32) for _ in range(4)] == [1.5, 2.5, 2.5, 2.5]


def test_each_line_has_its_own() -> None:
    hints = ItemHints({_KEY: [1.5], ("a.py", 4): [7.5]})
    other = Origin("a.py", 4, "step")
    assert hints.next_at(other, torch.float64) == 7.5
    assert hints.next_at(_HERE, torch.float64) == 1.5


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bool, bool), (torch.int64, int), (torch.bfloat16, float)])
def test_one_where_nothing_was_logged(dtype: torch.dtype, kind: type) -> None:
    found = ItemHints().next_at(_HERE, dtype)
    assert found == 1
    assert type(found) is kind


def test_a_number_of_another_type_is_no_hint() -> None:
    found = ItemHints({_KEY: [3, 2.5]}).next_at(_HERE, torch.float32)
    assert found == 2.5
    found = ItemHints({_KEY: [True]}).next_at(_HERE, torch.int64)
    assert type(found) is int
