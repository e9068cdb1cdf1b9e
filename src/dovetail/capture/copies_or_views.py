"""Copies that are views where sizes, which data decide, let them: `reshape` and `contiguous` of strided tensors.

    x[: n.item()].flatten()     ->    clone(x[: n]); _unsafe_view(...)      and: n != 1
    y[:, ::2].flatten()         ->    clone(y[:, ::2]); _unsafe_view(...)   and: n != 2 * ((n + 1) // 2), for n columns

A program takes sizes that it does not know for larger than 1, as torch does. With a single row, or an even number of
columns, eager mode hands out a view, with the strides and the memory of what it views. Where a caller could tell, or a
kernel, which sums in the order of strides, the program checks the sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from dovetail.capture.recorder import Recorder
from dovetail.ir.program import Node, Value
from dovetail.ir.sizes import Scalar, SizeExpr
from dovetail.torch_compat.data_sizes import without_hint
from dovetail.torch_compat.kernel_strides import view_strides

_CLONE = torch.ops.aten.clone.default
_VIEW = torch.ops.aten._unsafe_view.default
_FEW = 3  # symbols that are tried
_LARGER = (12, 13, 15, 17)  # sizes for larger ones
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
        of_one, of_more = _tells(source, reshaped.get(made))
        if shares or is_written or of_one:
            recorder.expect([SizeExpr("ne", (size, 1)) for size in _unknown(node, recorder)])
        recorder.expect(of_more)


def _tells(source: Value, reshaped: Value | None) -> tuple[bool, list[SizeExpr]]:
    """Whether strides of a view tell it from those of a copy in another shape, where some unknown sizes are 1.

    Also, what holds of larger sizes where it is a copy, if they can make it a view.
    """
    if reshaped is None:
        return False, []
    numbers = (*source.tensor.shape, *source.tensor.stride, *reshaped.tensor.shape)
    symbols = sorted({name for number in numbers if isinstance(number, SizeExpr) for name in number.symbols()})
    sizes = [x for x in source.tensor.shape if isinstance(x, SizeExpr)]
    if len(symbols) > _FEW or any(size.op != "symbol" for size in sizes):
        of_one = True
    else:
        of_one = any(_is_told(source, reshaped, known) for known in _tried(symbols, (1, 5)) if 1 in known.values())
    return of_one, _facts_of_copies(source, reshaped, symbols) if len(symbols) <= _FEW else []


def _tried(symbols: Sequence[str], sizes: Sequence[int]) -> Iterator[dict[str, int]]:
    return (dict(zip(symbols, some, strict=True)) for some in itertools.product(sizes, repeat=len(symbols)))


def _facts_of_copies(source: Value, reshaped: Value, symbols: Sequence[str]) -> list[SizeExpr]:
    """Which neighbouring dimensions do not lie one in the other, where they do for some sizes, of a view."""
    tried = list(_tried(symbols, _LARGER))
    views = [known for known in tried if _is_told(source, reshaped, known)]
    if not views:
        return []
    shape, stride = source.tensor.shape, source.tensor.stride
    facts = [SizeExpr("ne", (stride[i], SizeExpr("mul", (shape[i + 1], stride[i + 1])))) for i in range(len(shape) - 1)]
    return [
        fact
        for fact in facts
        if not any(fact.evaluate(known) for known in views) and any(fact.evaluate(known) for known in tried)
    ][:1]


def _is_told(source: Value, reshaped: Value, known: Mapping[str, int]) -> bool:
    """Whether it is a view for these sizes, and has other strides than a copy."""
    shape, stride, wanted = (
        [int(x.evaluate(known)) if isinstance(x, SizeExpr) else x for x in dims]
        for dims in (source.tensor.shape, source.tensor.stride, reshaped.tensor.shape)
    )
    view = view_strides(shape, stride, wanted)
    return view is not None and not _is_contiguous(wanted, view)


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
