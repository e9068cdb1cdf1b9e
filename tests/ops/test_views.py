"""Writing through a view: the view of the new base is the source, and every other element is as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.ir.convert import describe
from dovetail.ir.prim import Prim
from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ops.prims import clone_with_strides
from dovetail.ops.views import BASE, SOURCE, WriteThrough, replayed_args, viewed_meta, write_through
from dovetail.torch_compat.dispatch import Overload

aten = torch.ops.aten
_COUNT = 24


def _numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


BASES = {
    "contiguous": lambda: _numbers(2, 3, 4),
    "transposed": lambda: _numbers(4, 3, 2).transpose(0, 2),
    "strided": lambda: _numbers(2, 3, 8)[:, :, ::2],
    "offset": lambda: _numbers(3, 3, 4)[1:],
}
# view, arguments, item, bases it takes
EVERY = tuple(BASES)
DENSE = ("contiguous", "offset")
VIEWS: list[tuple[Any, tuple[Any, ...], int | None, tuple[str, ...]]] = [
    (aten.view.default, ([6, 4],), None, DENSE),
    (aten.view.default, ([2, 3, 2, 2],), None, (*DENSE, "strided")),
    (aten.view.dtype, (torch.int32,), None, EVERY),
    (aten._reshape_alias.default, ([6, 4], [4, 1]), None, ("contiguous",)),
    (aten.transpose.int, (0, -1), None, EVERY),
    (aten.permute.default, ([2, 0, 1],), None, EVERY),
    (aten.permute.default, ([-1, 0, -2],), None, EVERY),
    (aten.unsqueeze.default, (1,), None, EVERY),
    (aten.unsqueeze.default, (-1,), None, EVERY),
    (aten.squeeze.dim, (0,), None, EVERY),
    (aten.select.int, (1, -1), None, EVERY),
    (aten.slice.Tensor, (2, 1, 4, 2), None, EVERY),
    (aten.slice.Tensor, (0, -1), None, EVERY),
    (aten.slice.Tensor, (0, 5), None, EVERY),
    (aten.diagonal.default, (0, 1, 2), None, EVERY),
    (aten.as_strided.default, ([2, 2], [4, 1]), None, ("contiguous",)),
    (aten.unfold.default, (2, 2, 2), None, EVERY),
    (aten.expand.default, ([2, 3, 4],), None, EVERY),
    (aten.alias.default, (), None, EVERY),
    (aten.split.Tensor, (2, 1), 1, EVERY),
    (aten.split_with_sizes.default, ([1, 2], 1), 0, EVERY),
    (aten.unbind.int, (2,), 3, EVERY),
    (aten.chunk.default, (2, 2), 1, EVERY),
    (aten.tensor_split.indices, ([1], 2), 1, EVERY),
    (aten.narrow.default, (2, 1, 2), None, EVERY),
    (aten.movedim.int, (0, 2), None, EVERY),
    (aten.view_as_real.default, (), None, ()),
    (aten.t.default, (), None, ()),
    (aten.squeeze.default, (), None, ()),
    (aten.squeeze.dims, ([0, 2],), None, ()),
    (aten.real.default, (), None, ()),
    (aten.view_as_complex.default, (), None, ()),
    (aten.lift_fresh.default, (), None, EVERY),
]
SPECIAL = {
    aten.view_as_real.default: lambda: torch.complex(_numbers(3), -_numbers(3)),
    aten.real.default: lambda: torch.complex(_numbers(3), -_numbers(3)),
    aten.view_as_complex.default: lambda: _numbers(3, 2),
    aten.t.default: lambda: _numbers(2, 3),
    aten.squeeze.default: lambda: _numbers(1, 3, 1),
    aten.squeeze.dims: lambda: _numbers(1, 3, 1),
}
CASES = [
    pytest.param(view, args, index, make, id=f"{view}-{name}-{place}")
    for place, (view, args, index, bases) in enumerate(VIEWS)
    for name, make in ([(base, BASES[base]) for base in bases] or [("special", SPECIAL[view])])
]


def _item(made: Any, index: int | None) -> Tensor:
    item: Tensor = made if index is None else made[index]
    return item


def _source(view: Tensor) -> Tensor:
    count = view.numel()
    values = torch.arange(1000, 1000 + count).view(view.shape)
    source = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype)
    return source.copy_(values.to(view.dtype))


def _through(
    view: Any, args: tuple[Any, ...], index: int | None, base: torch.Tensor, whole_storage: bool = True
) -> WriteThrough:
    shown = describe(_item(view(base, *args), index), 0)
    operands = (base, *args)
    return write_through(
        view, operands, (), index, describe(base, 0), view=shown, on_copy=operands, whole_storage=whole_storage
    )


@pytest.mark.parametrize("whole_storage", [True, False])
@pytest.mark.parametrize(("view", "args", "index", "make"), CASES)
def test_the_view_of_the_new_base_is_the_source(
    view: Any, args: tuple[Any, ...], index: int | None, make: Any, whole_storage: bool
) -> None:
    base = make()
    kept = base.clone()
    source = _source(_item(view(base, *args), index))
    expected = clone_with_strides(base)
    _item(view(expected, *args), index).copy_(source)

    rule = _through(view, args, index, base, whole_storage)
    operands = [base if a is BASE else source if a is SOURCE else a for a in rule.args]
    result: Any = rule.target(*operands, **dict(rule.kwargs))
    assert torch.equal(result, expected)
    assert result.dtype == base.dtype
    assert torch.equal(_item(view(result, *args), index), source)
    assert torch.equal(base, kept)
    shares = result.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    assert shares == rule.is_view
    if not rule.is_view:
        assert result.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    if isinstance(rule.target, Prim):
        assert result.stride() == base.stride()


@pytest.mark.parametrize(
    ("view", "args", "target"),
    [
        (aten.select.int, (0, 0), aten.select_scatter.default),
        (aten.slice.Tensor, (0, 1, 2), aten.slice_scatter.default),
        (aten.diagonal.default, (), aten.diagonal_scatter.default),
        (aten.as_strided.default, ([2], [1]), aten.as_strided_scatter.default),
        (aten.transpose.int, (0, 1), aten.transpose.int),
        (aten.view.default, ([24],), aten.view.default),
        (aten.unsqueeze.default, (0,), aten.squeeze.dim),
    ],
)
def test_which_operator_writes_through(view: Any, args: tuple[Any, ...], target: Any) -> None:
    base = _numbers(2, 3, 4)
    assert _through(view, args, None, base).target is target
    copies_a_region = _through(view, args, None, base, whole_storage=False)
    assert copies_a_region.is_view or isinstance(copies_a_region.target, Prim)


def test_a_base_whose_elements_share_bytes_is_written_by_a_primitive() -> None:
    base = torch.zeros(1, 3).expand(2, 3)
    rule = _through(aten.select.int, (1, 0), None, base)
    assert isinstance(rule.target, Prim)
    source = torch.ones(1).expand(2)
    result = rule.target(base, source, 1, 0)
    assert torch.equal(result, torch.tensor([[1.0, 0, 0], [1, 0, 0]]))  # type: ignore[arg-type]
    assert result.stride() == (0, 1)  # type: ignore[attr-defined]


def test_addresses_move_with_the_base() -> None:
    args = (None, [2], [1], 7)
    assert replayed_args(aten.as_strided.default, args, 0) == args
    assert replayed_args(aten.as_strided.default, args, -3) == (None, [2], [1], 4)
    assert replayed_args(aten.as_strided.default, args[:3], -3) == args[:3]
    assert replayed_args(aten.select.int, (None, 0, 7), -3) == (None, 0, 7)
    late = replayed_args(aten.as_strided.default, (None, [2], [1], symbol("s0")), 2)
    assert late[3] == SizeExpr("add", (symbol("s0"), 2))


@pytest.mark.parametrize(
    ("view", "args", "shape"),
    [
        (aten.slice.Tensor, (0, 0, 2), (4,)),
        (aten.slice.Tensor, (0, 0, 2), (1, 4)),
        (aten.slice.Tensor, (0, 0, 2), (2, 1)),
        (aten.select.int, (0, 1), (1,)),
        (aten.as_strided.default, ([4], [1]), (2, 2)),
    ],
)
def test_a_tensor_of_another_shape_is_no_such_view(
    view: Overload, args: tuple[object, ...], shape: tuple[int, ...]
) -> None:
    base = TensorMeta((3, 4), (4, 1), 0, torch.float32, torch.device("cpu"), 0)
    assert viewed_meta(view, None, args, base, replace(base, shape=shape, stride=(1,) * len(shape))) is None
