"""Views and their inverses: how to write through a view without writing.

`write_through` answers: given new contents for a view of `base`, which operator application gives the new contents of
`base`? Reshuffling views (transpose, reshape, ...) are undone; selecting views (slice, select, ...) have a scatter
operator, found by name and schema; any other view has `ops.prims.view_scatter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.ir.calling import ReplayStep
from dovetail.ir.program import Node, Operand, Target, TensorMeta, Value, symbols_in, values_in
from dovetail.ir.sizes import Size, SizeExpr, product, shifted
from dovetail.ops.prims import view_scatter
from dovetail.torch_compat.dispatch import Overload, overloads, schema_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class WriteThrough:
    """An operator application that makes the new base.

    args: operands; `BASE` stands for the current base, `SOURCE` for the new contents of the view.
    needs_layout: whether the source must have the view's strides, because the result is a view of it.
    """

    target: Target
    args: tuple[Operand, ...]
    kwargs: tuple[tuple[str, Operand], ...] = ()
    is_view: bool = False


class _Slot:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


BASE = _Slot("BASE")
SOURCE = _Slot("SOURCE")


def write_through(
    target: Overload,
    args: Sequence[Operand],
    kwargs: tuple[tuple[str, Operand], ...],
    index: int | None,
    base: TensorMeta,
    *,
    view: TensorMeta,
    on_copy: Sequence[Operand],
    whole_storage: bool,
) -> WriteThrough:
    """The application that replaces the contents of `target(BASE, *args[1:])` (item `index` of it) by SOURCE.

    args: the view's operands; the first is the base. base, view: what the base and the view look like. on_copy: the
    operands for a base that starts where its storage does. whole_storage: the base's storage holds little else, so that
    an ATen scatter, which copies the whole storage of its base, may be used.
    """
    scatter = WriteThrough(view_scatter(target, index), (BASE, SOURCE, *on_copy[1:]), kwargs)
    if base.overlaps_itself() or view.overlaps_itself():
        return scatter
    undo = _UNDO.get(schema_of(target).name) if index is None and schema_of(target).namespace == "aten" else None
    if undo is not None:
        undone = undo(target, args, base)
        if undone is not None:
            return undone
    if index is None and whole_storage:
        for candidate in overloads("aten", f"{schema_of(target).name}_scatter"):
            if [a.type for a in schema_of(candidate).arguments][2:] == [a.type for a in schema_of(target).arguments][
                1:
            ]:
                return WriteThrough(candidate, (BASE, SOURCE, *args[1:]), kwargs)
    return scatter


def _undo_reshape(view: Overload, args: Sequence[Operand], base: TensorMeta) -> WriteThrough | None:
    if not base.is_contiguous() or any(isinstance(a, torch.dtype) for a in args):
        return None
    return WriteThrough(aten.view.default, (SOURCE, list(base.shape)), is_view=True)


def _undo_transpose(view: Overload, args: Sequence[Operand], base: TensorMeta) -> WriteThrough | None:
    return WriteThrough(view, (SOURCE, *args[1:]), is_view=True)


def _undo_permute(view: Overload, args: Sequence[Operand], base: TensorMeta) -> WriteThrough | None:
    order = args[1]
    assert isinstance(order, list | tuple), "permute takes a list of dimensions"
    rank = len(order)
    inverse = [0] * rank
    for place, dim in enumerate(order):
        assert isinstance(dim, int), "dimensions are plain numbers"
        inverse[dim % rank] = place
    return WriteThrough(view, (SOURCE, inverse), is_view=True)


def _undo_unsqueeze(view: Overload, args: Sequence[Operand], base: TensorMeta) -> WriteThrough | None:
    return WriteThrough(aten.squeeze.dim, (SOURCE, args[1]), is_view=True)


_UNDO: dict[str, Callable[[Overload, Sequence[Operand], TensorMeta], WriteThrough | None]] = {
    "view": _undo_reshape,
    "_unsafe_view": _undo_reshape,
    "squeeze": _undo_reshape,
    "_reshape_alias": _undo_reshape,
    "t": _undo_transpose,
    "transpose": _undo_transpose,
    "permute": _undo_permute,
    "unsqueeze": _undo_unsqueeze,
}


def viewed_meta(
    view: Overload, index: int | None, args: Sequence[Operand], base: TensorMeta, like: TensorMeta | None
) -> TensorMeta | None:
    """What `view(base, *args)`, item `index` of it, looks like, given a tensor `like` of its shape; None if unknown.

    Without `like`, only views of sizes that are known are.

    Unknown are views of symbolic sizes other than slices, selections, diagonals and strided ones.
    """
    known = _LAYOUTS.get(schema_of(view).name) if index is None and schema_of(view).namespace == "aten" else None
    laid = known(args, base, like) if known is not None and like is not None else None
    if laid is None:
        made = _made_by_torch(view, args, base)
        if made is None:
            return None
        item = made if index is None else made[index]
        base = replace(base, dtype=item.dtype)
        laid = tuple(item.shape), tuple(item.stride()), item.storage_offset()
    if like is not None and laid[0] != like.shape:
        return None
    shape, stride, offset = laid
    return replace(base, shape=shape, stride=stride, offset=offset)


_Laid = tuple[tuple[Size, ...], tuple[Size, ...], Size]


def _argument(args: Sequence[Operand], place: int, default: Operand) -> Any:
    return args[place] if len(args) > place else default


def _sliced(args: Sequence[Operand], base: TensorMeta, like: TensorMeta) -> _Laid | None:
    dim, start, step = _argument(args, 0, 0), _argument(args, 1, None), _argument(args, 3, 1)
    if len(like.shape) != len(base.shape):
        return None
    dim %= len(base.shape)
    start = 0 if start is None else start
    size, end = base.shape[dim], _argument(args, 2, None)
    if isinstance(start, int) and start < 0:
        if not isinstance(size, int):
            return None
        start = max(0, start + size)
    shape, strides = list(base.shape), list(base.stride)
    shape[dim] = like.shape[dim]
    if isinstance(size, int) and isinstance(start, int) and isinstance(step, int) and isinstance(end, int | None):
        shape[dim] = len(range(*slice(start, end, step).indices(size)))
    offset = shifted(base.offset, product((start, strides[dim])))
    strides[dim] = product((strides[dim], step))
    return tuple(shape), tuple(strides), offset


def _selected(args: Sequence[Operand], base: TensorMeta, like: TensorMeta) -> _Laid | None:
    dim, index = _argument(args, 0, 0), _argument(args, 1, 0)
    dim %= len(base.shape)
    if isinstance(index, int) and index < 0:
        size = base.shape[dim]
        if not isinstance(size, int):
            return None
        index += size
    shape, strides = list(base.shape), list(base.stride)
    del shape[dim]
    step = strides.pop(dim)
    return tuple(shape), tuple(strides), shifted(base.offset, product((index, step)))


def _strided(args: Sequence[Operand], base: TensorMeta, like: TensorMeta) -> _Laid | None:
    offset = _argument(args, 2, None)
    stride = args[1]
    assert isinstance(stride, list | tuple), "as_strided takes a list of strides"
    if len(stride) != len(like.shape):
        return None
    return like.shape, tuple(stride), base.offset if offset is None else offset


_LAYOUTS: dict[str, Callable[[Sequence[Operand], TensorMeta, TensorMeta], _Laid | None]] = {
    "slice": _sliced,
    "select": _selected,
    "as_strided": _strided,
}


def _made_by_torch(view: Overload, args: Sequence[Operand], base: TensorMeta) -> Any:
    """The view of a tensor without contents; None where a number is symbolic, or torch has no such view."""
    numbers = (*base.shape, *base.stride, base.offset)
    if not all(isinstance(number, int) for number in numbers) or any(symbols_in(args)) or any(values_in(args)):
        return None
    shape, stride, offset = _numbers(base.shape), _numbers(base.stride), _numbers((base.offset,))[0]
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size)
    memory = torch.empty(offset + reach, dtype=base.dtype, device="meta")
    try:
        return view(memory.as_strided(shape, stride, offset), *args)
    except RuntimeError:
        return None  # `view_copy` takes any tensor


def view_node(
    view: Overload, index: int | None, operands: Sequence[Operand], base: TensorMeta, made: Value, like: Node
) -> Node:
    """The application `view(*operands)` whose result, or item `index` of it, is `made`; else as the node `like`."""
    outputs: list[Value | None] = [made]
    if index is not None:
        items = _made_by_torch(view, operands[1:], base)
        outputs = [Value(f"{made.name}_item_{k}", _meta_of(item, made.tensor)) for k, item in enumerate(items)]
        outputs[index] = made
    return replace(like, target=view, args=tuple(operands), kwargs=(), outputs=tuple(outputs), unpack=index is not None)


def _meta_of(item: torch.Tensor, like: TensorMeta) -> TensorMeta:
    offset = int(item.storage_offset())
    return replace(like, shape=tuple(item.shape), stride=tuple(item.stride()), offset=offset, dtype=item.dtype)


def _numbers(sizes: Sequence[Size]) -> list[int]:
    return [size for size in sizes if isinstance(size, int)]


def replayed_args(view: Overload, args: Sequence[Operand], moved_by: Size) -> tuple[Operand, ...]:
    """The view's operands for a base that starts `moved_by` elements later in its storage than the recorded one.

    Only a view that addresses its storage absolutely cares.
    """
    if moved_by == 0 or not addresses_storage(view, args):
        return tuple(args)
    offset = args[3]
    assert isinstance(offset, int | SizeExpr), "storage offsets are sizes"
    return (*args[:3], shifted(offset, moved_by))


def addresses_storage(view: Overload, args: Sequence[Operand]) -> bool:
    """Whether the view names a place in the storage, wherever its operand lies."""
    return schema_of(view).name == "as_strided" and len(args) > 3 and args[3] is not None


def is_strided(target: Target) -> bool:
    """Whether the operator can show or replace what lies beside its operand in the same storage."""
    return isinstance(target, Overload) and schema_of(target).name in ("as_strided", "as_strided_scatter")


def copies_from_place(target: Target, args: Sequence[Operand]) -> bool:
    """Whether the operator copies its first operand, and names a place in the storage of that."""
    offset = _PLACES.get(schema_of(target).name) if isinstance(target, Overload) else None
    return offset is not None and len(args) > offset and args[offset] is not None


def copies_from_some_place(target: Target) -> bool:
    """Whether `copies_from_place` may hold for some operands."""
    return isinstance(target, Overload) and schema_of(target).name in _PLACES


_PLACES = {"as_strided_copy": 3, "as_strided_scatter": 4}


def keeps_offset(target: Target) -> bool:
    """Whether the operator copies its first operand so that the result lies as far into its storage as that does."""
    if not isinstance(target, Overload):
        return False
    schema = schema_of(target)
    return schema.namespace == "aten" and schema.name in _KEEP_OFFSET


_KEEP_OFFSET = frozenset({"copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"})


def replay(tensor: torch.Tensor, steps: Sequence[ReplayStep]) -> torch.Tensor:
    """The view that `steps` make of a tensor."""
    for step in steps:
        made: Any = step.target(tensor, *step.args, **dict(step.kwargs))
        tensor = made if step.index is None else made[step.index]
    return tensor
