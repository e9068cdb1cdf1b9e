"""Copies that are views where a size, which data decide, is 1: `reshape` and `contiguous` of strided tensors.

    x[: n.item()].flatten()     ->    clone(x[: n]); _unsafe_view(...)      and: n != 1

A program takes sizes that it does not know for larger than 1, as torch does. With a single row, eager mode hands out a
view, with the strides and the memory of what it views. Where a caller could tell, or a kernel, which sums in the order
of strides, the program checks the size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from dovetail.capture.recorder import Recorder
from dovetail.ir.program import Node, Value
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.kernel_strides import view_strides

_CLONE = torch.ops.aten.clone.default
_VIEW = torch.ops.aten._unsafe_view.default
_FEW = 3  # symbols that are tried
_FORMAT = ("memory_format", torch.contiguous_format)


def expect_copies(recorder: Recorder, results: Sequence[object], inputs: Sequence[Value]) -> None:
    """Let the program check that what it copies is no view, where results, writes or strides tell the two apart."""
    copies = [node for node in recorder.nodes if node.target is _CLONE and _FORMAT in node.kwargs]
    copies = [node for node in copies if _unknown(node, recorder)]
    if not copies:
        return
    returned = {recorder.value_of(x).tensor.storage for x in results if isinstance(x, torch.Tensor)}
    given = {value.tensor.storage for value in inputs if value.is_tensor}
    written = {value.tensor.storage for value, _, _ in recorder.written}
    reshaped = {node.args[0]: node.outputs[0] for node in recorder.nodes if node.target is _VIEW}
    sources: dict[int, set[int]] = {}  # of the memory of each copy, that of which it may be a view, copies among it
    for node in copies:
        source, made = node.args[0], node.outputs[0]
        assert isinstance(source, Value), "it clones a tensor"
        assert made is not None, "it gives a tensor"
        storage, viewed = made.tensor.storage, source.tensor.storage
        sources[storage] = {viewed} | sources.get(viewed, set())
        shares = storage in returned and not sources[storage].isdisjoint(returned | given)
        is_written = not written.isdisjoint({storage} | sources[storage])
        if shares or is_written or _tells(source, reshaped.get(made)):
            recorder.expect([SizeExpr("ne", (size, 1)) for size in _unknown(node, recorder)])


def _tells(source: Value, reshaped: Value | None) -> bool:
    """Whether strides of a view tell it from those of a copy in another shape, where some unknown sizes are 1."""
    if reshaped is None:
        return False
    numbers = (*source.tensor.shape, *source.tensor.stride, *reshaped.tensor.shape)
    symbols = sorted({name for number in numbers if isinstance(number, SizeExpr) for name in number.symbols()})
    sizes = [x for x in source.tensor.shape if isinstance(x, SizeExpr)]
    if len(symbols) > _FEW or any(size.op != "symbol" for size in sizes):
        return True
    for some in itertools.product((1, 5), repeat=len(symbols)):
        known = dict(zip(symbols, some, strict=True))
        shape, stride, wanted = (
            [int(x.evaluate(known)) if isinstance(x, SizeExpr) else x for x in dims]
            for dims in (source.tensor.shape, source.tensor.stride, reshaped.tensor.shape)
        )
        view = view_strides(shape, stride, wanted) if 1 in some else None
        if view is not None and not _is_contiguous(wanted, view):
            return True
    return False


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True


def _unknown(node: Node, recorder: Recorder) -> list[Scalar]:
    """The sizes of what a node copies that only data tell."""
    source = node.args[0]
    sizes = source.tensor.shape if isinstance(source, Value) else ()
    return [
        size
        for size in sizes
        if isinstance(size, SizeExpr) and any(without_hint(recorder.symbols.get(name)) for name in size.symbols())
    ]
