"""Inputs that share memory, donated inputs, outputs that share memory."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import BOTH, CONTIGUOUS, SYMBOLIC, Pattern


def _one(rows: int = 8) -> tuple[Tensor, ...]:
    return (torch.randn(rows, 4),)


def donated_update(state: Tensor, x: Tensor) -> Tensor:
    return state * 0.9 + x


def donated_row(state: Tensor, row: Tensor) -> Tensor:
    return state.index_put((torch.tensor([3]),), row)


def donated_and_returned_view(state: Tensor, row: Tensor) -> Tensor:
    return torch.select_scatter(state, row[0], 0, 3).view(4, 8)


def donated_twice(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return torch.select_scatter(state, row[0], 0, 3), torch.select_scatter(state, row[0], 0, 4)


def donated_part(state: Tensor, row: Tensor) -> Tensor:
    return state[2:4] * 2


def not_donated_row(state: Tensor, row: Tensor) -> Tensor:
    return state.index_put((torch.tensor([3]),), row)


def written_and_returned_part(x: Tensor) -> Tensor:
    x.mul_(2)
    return x[1:3].clone()


def two_views_of_a_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.add_(1)
    return y, y[1:3]


def result_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.add_(1)
    return y, y


def result_and_its_clone(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.clone().add_(1)


def view_then_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    old = y[0].clone()
    y[0] = 0
    return y, old


def swap(x: Tensor, y: Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def swap_rows(x: Tensor) -> None:
    kept = x[0].clone()
    x[0] = x[1]
    x[1] = kept


def exchange_sums(x: Tensor, y: Tensor) -> None:
    total, difference = x + y, x - y
    x.copy_(total)
    y.copy_(difference)


def write_one_read_other(x: Tensor, y: Tensor) -> Tensor:
    total = y.sum()
    x.mul_(2)
    return total


def write_an_overlapping_input(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum()


def write_a_strided_input(x: Tensor) -> None:
    x.add_(1)


def read_an_expanded_input(x: Tensor) -> Tensor:
    y = x + 1
    y[0] = 0
    return y


def update_through_two_views(x: Tensor) -> None:
    x[:4].mul_(2)
    x[2:6].add_(1)


def copy_back_through_a_view(x: Tensor, y: Tensor) -> None:
    x.view(-1)[4:12].copy_((y * 2).view(-1)[:8])


def copy_back_the_whole_through_a_view(x: Tensor, y: Tensor) -> None:
    x.t().copy_(torch.tanh(y.t()))


def fill_an_input_in_parts(x: Tensor, y: Tensor) -> None:
    x[:4] = torch.exp(y[:4])
    x[4:] = torch.tanh(y[4:])


def save_for_backward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = (x @ weight).sigmoid_()
    return y, y * (1 - y)


def input_into_another(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


def write_then_overwrite(x: Tensor, y: Tensor) -> None:
    x.add_(1)
    x.copy_(y * 2)


def write_a_part_of_a_view_that_is_read(x: Tensor) -> Tensor:
    y = x * 2
    head = y[:4]
    y[4:] = 0
    return head.sum() + y.sum()


def _row() -> tuple[Tensor, ...]:
    return torch.randn(8, 4), torch.randn(1, 4)


def _overlapping() -> tuple[Tensor, ...]:
    base = torch.randn(12)
    return base[:8], base[4:]


def _disjoint() -> tuple[Tensor, ...]:
    base = torch.randn(8, 4)
    return base[:4], base[4:]


def _same() -> tuple[Tensor, ...]:
    base = torch.randn(8, 4)
    return base, base


_TWO = "the caller gets two tensors with contents of one"

PATTERNS = (
    Pattern("donated: update", donated_update, lambda: _one() + _one(), SYMBOLIC, donate=(0,)),
    Pattern("donated: a row", donated_row, _row, SYMBOLIC, donate=(0,)),
    Pattern("donated: a view is returned", donated_and_returned_view, _row, donate=(0,)),
    Pattern("donated: twice", donated_twice, _row, BOTH, 1, _TWO, donate=(0,)),
    Pattern(
        "donated: a part is returned",
        donated_part,
        _row,
        donate=(0,),
        report="jax#9675",
        more={"mutations_and_views": 1},
        weakness="a part of the donated tensor would keep all of it alive",
        unproved=("mutations_and_views",),
    ),
    Pattern("not donated", not_donated_row, _row, BOTH, 1, "the input keeps its contents, and is not donated"),
    Pattern("written, a part is returned", written_and_returned_part, _one, SYMBOLIC),
    Pattern("two views of a result", two_views_of_a_result, _one),
    Pattern("a result twice", result_twice, _one),
    Pattern("a result and its clone", result_and_its_clone, _one),
    Pattern("an old row is returned", view_then_write, _one, unproved=BOTH),
    Pattern("swap", swap, lambda: _one() + _one(), BOTH, 3, "two inputs change places through a third buffer"),
    Pattern("swap rows", swap_rows, _one, unproved=BOTH),
    Pattern("sum and difference", exchange_sums, lambda: _one() + _one(), BOTH, 1, "both are read by both"),
    Pattern("write one, read a neighbour", write_one_read_other, _disjoint),
    Pattern("write one, read what overlaps", write_an_overlapping_input, _overlapping),
    Pattern("write a tensor that is there twice", write_an_overlapping_input, _same),
    Pattern("a strided input", write_a_strided_input, lambda: (torch.randn(8, 8)[:, ::2],)),
    Pattern("an expanded input is read", read_an_expanded_input, lambda: (torch.randn(4).expand(8, 4),)),
    Pattern("two views that overlap", update_through_two_views, _one, SYMBOLIC),
    Pattern(
        "copy back through a view", copy_back_through_a_view, lambda: _one() + _one(), unproved=("mutations_and_views",)
    ),
    Pattern(
        "copy back through a transpose",
        copy_back_the_whole_through_a_view,
        lambda: _one() + _one(),
        more={"mutations_and_views": 2},
        weakness=CONTIGUOUS,
    ),
    Pattern("fill an input in parts", fill_an_input_in_parts, lambda: _one() + _one(), SYMBOLIC),
    Pattern("saved for backward", save_for_backward, lambda: (torch.randn(8, 4), torch.randn(4, 4))),
    Pattern(
        "an input into another",
        input_into_another,
        lambda: _one() + _one(),
        BOTH,
        1,
        "the contents are another input's",
    ),
    Pattern("written, then overwritten", write_then_overwrite, lambda: _one() + _one(), SYMBOLIC),
    Pattern("a part is written, the other read", write_a_part_of_a_view_that_is_read, _one, SYMBOLIC),
)
