"""Rows that copy: parts that are put side by side (`cat`, `stack`), and a part that is put among zeros.

A part is rows of bytes, each copied as it is, so any dtype will do, and there is nothing to be probed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.copy_text import copy_function, shared_copy_function
from dovetail.execute.native.driver import LOOSE, THREADED
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload, has_own_kernels

_aten: Any = torch.ops.aten

Shape = tuple[int, ...]

_PIECE = 1024  # elements, at least, that a thread copies at once
_LONG = 64  # bytes of a row; torch's kernels copy shorter ones in another way


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are copied from a value, in elements. place, pitch: where the first one goes, and how far the next one
    lies behind it; source_pitch: the same in the value. width: of a row.
    """

    source: Value
    rows: int
    width: int
    place: int
    pitch: int
    source_pitch: int


@dataclass(frozen=True, slots=True)
class CopyClaim(PlacedBase):
    """See `rows.RowClaim`. count: elements of the result. is_among_zeros: whether those outside all parts are zero."""

    node: Node
    parts: tuple[Part, ...]
    into: Value | None
    result: Value
    count: int
    is_among_zeros: bool
    layout: None = None
    element: str = "i8"

    @property
    def is_shared(self) -> bool:
        """Whether each part has a row of its own, which threads share: of many elements, in long rows."""
        size = self.written.tensor.dtype.itemsize
        is_long = all(part.width * size >= _LONG for part in self.parts)
        return self.count >= THREADED and is_long and not self.is_among_zeros

    @property
    def operands(self) -> tuple[Operand, ...]:  # type: ignore[override]
        """What it reads."""
        return tuple(part.source for part in self.parts)

    def is_proven(self) -> bool:
        """Whether it is torch's own operator that is claimed."""
        assert isinstance(self.node.target, Overload), "others are not claimed"
        return has_own_kernels(self.node.target)


def copy_claim(node: Node) -> CopyClaim | None:
    """The claim on a node, as far as descriptions say: of few elements, or of rows that threads can share."""
    found = copy_parts(node)
    return found if found is not None and (found.count < THREADED or found.is_shared) else None


def copy_parts(node: Node) -> CopyClaim | None:
    """The same for any number of elements."""
    find = _PARTS.get(node.target) if isinstance(node.target, Overload) else None
    if find is None or len(node.results()) != 1:
        return None
    arguments, (result,) = arguments_of(node), node.results()
    into = arguments.get("out")
    written = into if isinstance(into, Value) else result
    meta = written.tensor
    shape = tuple(size for size in meta.shape if isinstance(size, int))
    if len(shape) < len(meta.shape) or meta.device.type != "cpu" or not meta.is_contiguous():
        return None
    if not prod(shape) or (result.tensor.shape, result.tensor.stride) != (meta.shape, meta.stride):
        return None
    parts = find(arguments, shape)
    if not parts or any(
        part.source.tensor.dtype != meta.dtype
        or part.source.tensor.device != meta.device
        or part.source.tensor.storage == meta.storage
        for part in parts
    ):
        return None
    is_among_zeros, into = node.target in _AMONG_ZEROS, into if isinstance(into, Value) else None
    return CopyClaim(node, tuple(parts), into, result, prod(shape), is_among_zeros)


def copy_row(claims: Sequence[CopyClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    function, size = copy_function(), claim.written.tensor.dtype.itemsize
    if function is None:
        return None
    values = [claim.written, *(part.source for part in claim.parts)]
    pointers = tuple(addresses.get(value, Address(value)) for value in values)
    if claim.is_shared:
        return _shared_row(claim.parts, pointers, size)
    slots = [size * claim.count if claim.is_among_zeros else 0]
    for part in claim.parts:
        slots += [part.rows, *(size * each for each in (part.width, part.place, part.pitch, part.source_pitch))]
    return ReadyRow(function, len(claim.parts), pointers, more=struct.pack(f"{len(slots)}q", *slots))


def _shared_row(parts: Sequence[Part], pointers: Sequence[Address], size: int) -> ReadyRow | None:
    """The row of the last part, with those of others before it. size: bytes of an element."""
    function, rows = shared_copy_function(), list[ReadyRow]()
    if function is None:
        return None
    for part, source in zip(map(_in_pieces, parts), pointers[1:], strict=True):
        sizes = (size * each for each in (part.width, part.place, part.pitch, part.source_pitch))
        more = struct.pack("5q", part.rows, *sizes)
        rows.append(ReadyRow(function, part.rows * part.width, (pointers[0], source), more=more, marks=LOOSE))
    return replace(rows[-1], before=tuple(rows[:-1]))


def _in_pieces(part: Part) -> Part:
    """A part of one row, as rows of some thousand elements, where that can be."""
    count = next((count for count in range(part.width // _PIECE, 0, -1) if part.width % count == 0), 1)
    if part.rows > 1 or count == 1:
        return part
    width = part.width // count
    return replace(part, rows=count, width=width, pitch=width, source_pitch=width)


def _side_by_side(arguments: Mapping[str, Operand], shape: Shape) -> list[Part] | None:
    dim, placed = _dim(arguments, len(shape)), _placed(arguments["tensors"])
    if dim is None or placed is None:
        return None
    parts, place, behind = list[Part](), 0, prod(shape[dim + 1 :])
    for each in placed:
        if each.shape == (0,) and len(shape) > 1:  # torch skips it, whatever the others are
            continue
        width = each.shape[dim] * behind if len(each.shape) == len(shape) else -1
        part = _part(each, dim, width, place, shape[dim] * behind) if width else None
        if width and part is None:
            return None
        parts += [] if part is None else [part]
        place += width
    return parts if place == shape[dim] * behind else None


def _stacked(arguments: Mapping[str, Operand], shape: Shape) -> list[Part] | None:
    dim, placed = _dim(arguments, len(shape)), _placed(arguments["tensors"])
    if dim is None or placed is None or len(placed) != shape[dim]:
        return None
    width = prod(shape[dim + 1 :])
    parts = [_part(each, dim, width, at * width, shape[dim] * width) for at, each in enumerate(placed)]
    found = [part for part in parts if part is not None]
    return found if len(found) == len(parts) else None


def _selected(arguments: Mapping[str, Operand], shape: Shape) -> list[Part] | None:
    dim, index, placed = _dim(arguments, len(shape)), arguments["index"], _placed([arguments["grad_output"]])
    if dim is None or not isinstance(index, int) or placed is None:
        return None
    width = prod(shape[dim + 1 :])
    at = index + shape[dim] if index < 0 else index
    part = _part(placed[0], dim, width, at * width, shape[dim] * width)
    return [part] if part is not None and 0 <= at < shape[dim] else None


def _sliced(arguments: Mapping[str, Operand], shape: Shape) -> list[Part] | None:
    dim, placed = _dim(arguments, len(shape)), _placed([arguments["grad_output"]])
    start, end = arguments["start"], arguments["end"]
    is_plain = isinstance(start, int) and isinstance(end, int) and arguments["step"] == 1
    if dim is None or not is_plain or placed is None:
        return None
    first, last, _ = slice(start, end).indices(shape[dim])
    behind = prod(shape[dim + 1 :])
    if placed[0].shape != (*shape[:dim], last - first, *shape[dim + 1 :]):
        return None
    part = _part(placed[0], dim, (last - first) * behind, first * behind, shape[dim] * behind)
    return None if part is None else [part]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor whose elements lie at known places."""

    value: Value
    shape: Shape
    stride: Shape


def _placed(operands: Operand) -> list[_Placed] | None:
    found = []
    for each in operands if isinstance(operands, list | tuple) else [None]:
        if not isinstance(each, Value) or not each.is_tensor:
            return None
        shape, stride = each.tensor.shape, each.tensor.stride
        if not all(isinstance(number, int) for number in (*shape, *stride)):
            return None
        found.append(_Placed(each, tuple(shape), tuple(stride)))  # type: ignore[arg-type]
    return found


def _part(source: _Placed, dim: int, width: int, place: int, pitch: int) -> Part | None:
    """A value as a part whose rows are its dimensions from one on; None where those do not lie in one piece."""
    reach = 1
    for size, stride in zip(reversed(source.shape[dim:]), reversed(source.stride[dim:]), strict=True):
        if size != 1 and stride != reach:
            return None
        reach *= size
    found = blocks_of(source.shape[:dim], source.stride[:dim], width)
    if found is None or reach != width or not found[0] * width:
        return None
    rows, source_pitch = found
    return Part(source.value, rows, width, place, pitch, source_pitch)


def blocks_of(shape: Shape, strides: Shape, alone: int) -> tuple[int, int] | None:
    """How many blocks some dimensions make, and how far one lies behind the other; None where that is not always as
    far. alone: how far, where there is but one.
    """
    count, pitch = 1, alone
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if count == 1:
            pitch = stride
        elif stride != pitch * count:
            return None
        count *= size
    return count, pitch


def _dim(arguments: Mapping[str, Operand], dims: int) -> int | None:
    dim = arguments.get("dim", 0)
    return dim % dims if isinstance(dim, int) and not isinstance(dim, bool) and dims else None


_PARTS: dict[Overload, Callable[[Mapping[str, Operand], Shape], list[Part] | None]] = {
    _aten.cat.default: _side_by_side,
    _aten.cat.out: _side_by_side,
    _aten.stack.default: _stacked,
    _aten.select_backward.default: _selected,
    _aten.slice_backward.default: _sliced,
}
_AMONG_ZEROS = frozenset({_aten.select_backward.default, _aten.slice_backward.default})
