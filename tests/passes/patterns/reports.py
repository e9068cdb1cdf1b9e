"""What went wrong elsewhere: reports of wrong results and of copies that were not needed."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.passes.patterns.pattern import BOTH, CONTIGUOUS, SYMBOLIC, Pattern

aten = torch.ops.aten


def _square() -> tuple[Tensor, ...]:
    return (torch.randn(6, 6),)


def _with_rows() -> tuple[Tensor, ...]:
    return torch.randn(6, 6), torch.randn(2, 6)


# --- a result that holds old contents, and then the input is written


def scatter_then_zero(x: Tensor, rows: Tensor) -> Tensor:
    result = aten.slice_scatter(x, rows, 0, 1, 3)
    x.zero_()
    return result


def diagonal_scatter_then_fill(x: Tensor) -> Tensor:
    result = torch.diagonal_scatter(x, x.diagonal())
    x.fill_(2)
    return result


def index_fill_clone_clamp(x: Tensor, index: Tensor) -> Tensor:
    x.index_fill_(0, index, 5.0)
    result = x.clone()
    x.clamp_(0, 3)
    return result


def write_a_part_and_return(x: Tensor, rows: Tensor) -> Tensor:
    x[1:3] = rows
    return x


# --- a tensor is moved onto itself


def shift_down(x: Tensor) -> None:
    x[1:] = x[:-1].clone()


def shift_up(x: Tensor) -> None:
    x[:-1] = x[1:].clone()


def shift_by_steps(x: Tensor) -> None:
    x[1::2] = x[0::2].clone()


def shift_along_two(x: Tensor) -> None:
    x[1:, 1:] = x[:-1, :-1].clone()


def shift_a_view(x: Tensor) -> None:
    flat = x.view(-1)
    flat[1:] = flat[:-1].clone()


def shift_a_transpose(x: Tensor) -> None:
    x.t()[1:] = x.t()[:-1].clone()


def transpose_itself(x: Tensor) -> None:
    x.copy_(x.t().clone())


def put_a_view_of_the_target(x: Tensor, index: Tensor) -> None:
    x[index] = x[1:3].clone()


def put_a_computed_view_of_the_target(x: Tensor, index: Tensor) -> None:
    x[index] = x[1:3] * 2


# --- another operand is a view of what would be written


def add_the_transpose(a: Tensor) -> Tensor:
    y = a * 2
    return y + y.t()


def divide_by_the_transpose(a: Tensor) -> Tensor:
    y = a * 2
    return y / y.t()


def put_rows_of_itself(a: Tensor, index: Tensor) -> Tensor:
    y = a * 2
    return y.index_put((index,), y[1:3])


def scatter_rows_of_itself(a: Tensor) -> Tensor:
    y = a * 2
    return torch.slice_scatter(y, y[:-1], 0, 1, 6)


def scatter_by_an_index_of_itself(a: Tensor, index: Tensor) -> Tensor:
    y = a * 2
    return y.scatter(0, index.view(1, 2).expand(6, 2), y[1:3].t())


# --- a buffer whose elements share bytes


def add_to_expanded(x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(1, 6).expand(4, -1).index_add(0, index, rows)


def accumulate_into_expanded(x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(1, 6).expand(4, -1).index_put((index,), rows, accumulate=True)


def copy_into_expanded(x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(1, 6).expand(4, -1).index_copy(0, index, rows)


def _expanded() -> tuple[Tensor, ...]:
    return torch.zeros(1), torch.randn(2, 6), torch.tensor([0, 2])


# --- the result is the memory of an input


def return_a_view_of_the_written(x: Tensor, rows: Tensor) -> Tensor:
    y = x + 1
    y[1:3] = rows
    return y[:3]


def slice_then_put(x: Tensor, rows: Tensor, index: Tensor) -> None:
    x[2:][index] = rows


def copy_back_a_view(x: Tensor, rows: Tensor) -> None:
    part = x[1:3]
    part.copy_(part * 2 + rows)


def chunked_loss(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    total = x.new_zeros(())
    for start in (0, 3):
        logits = x[start : start + 3] @ weight
        total = total + logits.logsumexp(-1).sum()
        gradient[start : start + 3] = logits.softmax(-1) @ weight.t()
    return total


def scatter_into_empty_by_index(x: Tensor, index: Tensor) -> Tensor:
    out = torch.zeros(6, 6)
    out[index] = x[:2] * 2
    return out


def same_reads_twice(x: Tensor, rows: Tensor) -> Tensor:
    before = x[1:3].sum()
    again = x[1:3].sum()
    x[1:3] = rows
    return before + again


def read_after_a_later_write(x: Tensor, rows: Tensor) -> Tensor:
    old = x[1:3]
    new = torch.slice_scatter(x, rows, 0, 1, 3)
    loss = old.sum() + new.sum()
    x.copy_(new)
    return loss


def reads_then_update(x: Tensor, rows: Tensor) -> Tensor:
    read = x[2:4] * 2
    x[2:4] = rows
    return read.sum()


def update_then_reads(x: Tensor, rows: Tensor) -> Tensor:
    total = x.sum()
    new = x.index_put((torch.tensor([1, 2]),), rows)
    difference = (new - x).abs().sum()
    x.copy_(new)
    return total + difference


_NEW = "the result holds old contents, which the input loses"
_SHIFT = "rows are read after their neighbours are written: a copy out, and one back"
_RETURNED = "the result is a tensor of its own, with contents of another one"

PATTERNS = (
    Pattern("scatter, then zero_", scatter_then_zero, _with_rows, BOTH, 1, _NEW, "pytorch#198094"),
    Pattern("diagonal, then fill_", diagonal_scatter_then_fill, _square, BOTH, 1, _NEW, "pytorch#198094"),
    Pattern(
        "index_fill_, clone, clamp_",
        index_fill_clone_clamp,
        lambda: (torch.randn(6, 6), torch.tensor([0, 3])),
        BOTH,
        1,
        _NEW,
        "pytorch#198094",
    ),
    Pattern("write a part and return", write_a_part_and_return, _with_rows, SYMBOLIC, report="pytorch#195484"),
    Pattern("shift down", shift_down, _square, SYMBOLIC, 2, _SHIFT, "pytorch#197829"),
    Pattern("shift up", shift_up, _square, BOTH, 2, _SHIFT, "pytorch#197829"),
    Pattern(
        "shift by steps",
        shift_by_steps,
        _square,
        BOTH,
        0,
        "",
        "pytorch#197829",
        more={"mutations_and_views": 1},
        weakness=CONTIGUOUS,
    ),
    Pattern(
        "shift along two dimensions",
        shift_along_two,
        _square,
        BOTH,
        1,
        _SHIFT,
        "pytorch#197829",
    ),
    Pattern("shift a flat view", shift_a_view, _square, BOTH, 2, _SHIFT, "pytorch#197829"),
    Pattern(
        "shift a transpose",
        shift_a_transpose,
        _square,
        BOTH,
        2,
        _SHIFT,
        "pytorch#197829",
        more={"mutations_and_views": 3},
        weakness=CONTIGUOUS,
    ),
    Pattern("transpose onto itself", transpose_itself, _square, BOTH, 2, _SHIFT, "pytorch#197829"),
    Pattern(
        "index_put_ a view of the target",
        put_a_view_of_the_target,
        lambda: (torch.randn(9, 6), torch.tensor([2, 3])),
        report="pytorch#197829",
    ),
    Pattern(
        "index_put_ what is computed from the target",
        put_a_computed_view_of_the_target,
        lambda: (torch.randn(9, 6), torch.tensor([2, 3])),
        report="pytorch#197829",
    ),
    Pattern("y + y.t()", add_the_transpose, _square, more={"mutations_and_views": 1}, weakness=CONTIGUOUS),
    Pattern("y / y.t()", divide_by_the_transpose, _square, more={"mutations_and_views": 1}, weakness=CONTIGUOUS),
    Pattern("index_put rows of itself", put_rows_of_itself, lambda: (torch.randn(6, 6), torch.tensor([2, 3]))),
    Pattern("slice_scatter rows of itself", scatter_rows_of_itself, _square, BOTH, 1, _SHIFT),
    Pattern(
        "scatter columns of itself",
        scatter_by_an_index_of_itself,
        lambda: (torch.randn(6, 6), torch.tensor([2, 3])),
        more={"mutations_and_views": 1},
        weakness=CONTIGUOUS,
    ),
    Pattern("index_add to expanded", add_to_expanded, _expanded, BOTH, 1, "rows of it share bytes", "pytorch#188084"),
    Pattern(
        "index_put accumulates into expanded",
        accumulate_into_expanded,
        _expanded,
        BOTH,
        1,
        "rows of it share bytes",
        "pytorch#183986",
    ),
    Pattern(
        "index_copy to expanded", copy_into_expanded, _expanded, BOTH, 1, "rows of it share bytes", "pytorch#188084"
    ),
    Pattern(
        "return a part of the written",
        return_a_view_of_the_written,
        _with_rows,
        report="pytorch#195484",
        more={"mutations_and_views": 1},
        weakness=CONTIGUOUS,
    ),
    Pattern(
        "slice, then index_put_",
        slice_then_put,
        lambda: (torch.randn(9, 6), torch.randn(2, 6), torch.tensor([1, 3])),
        SYMBOLIC,
        report="pytorch#195292",
    ),
    Pattern("copy back of a view", copy_back_a_view, _with_rows, SYMBOLIC, report="pytorch#190548"),
    Pattern(
        "chunked loss",
        chunked_loss,
        lambda: (torch.randn(6, 4), torch.randn(6, 4), torch.randn(4, 3)),
        report="pytorch#190342",
        more={"mutations_and_views": 1},
        weakness=CONTIGUOUS,
    ),
    Pattern(
        "zeros, then index_put_",
        scatter_into_empty_by_index,
        lambda: (torch.randn(6, 6), torch.tensor([4, 1])),
        report="pytorch#189080",
    ),
    Pattern("the same read twice", same_reads_twice, _with_rows, SYMBOLIC, report="pytorch#132865"),
    Pattern("old and new are read", read_after_a_later_write, _with_rows, SYMBOLIC, report="xla#45912"),
    Pattern("reads, then an update", reads_then_update, _with_rows, SYMBOLIC, report="jax#25399"),
    Pattern(
        "an update, old and new read",
        update_then_reads,
        _with_rows,
        copies=2,
        why="old and new contents are subtracted: both are there at once, and the new ones go to the input",
        report="xla#20440",
    ),
)
