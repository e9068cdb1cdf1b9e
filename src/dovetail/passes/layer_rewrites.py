"""What passes that replace layers share: what a weight's new form costs, and results in the shapes that they had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.analysis.infer import MetaInference
from dovetail.analysis.propagate_layouts import LayoutPropagation
from dovetail.ir.program import Node, Value
from dovetail.ir.sizes import Size
from dovetail.ops.layouts import is_reshaping_view
from dovetail.passes.layer_calls import ConvolutionCall, LinearCall
from dovetail.torch_compat.onednn import fuses
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, hint_of

# Elements of a weight up to which BLAS is as fast as oneDNN over a packed one (measured on one thread, AVX-512).
_MOST_IN_ORDER = 1 << 20
_USUAL_SIZE = 14  # what is expected of a symbolic size of an image


def shown_through(state: LayoutPropagation, node: Node, views: Sequence[Node]) -> Node:
    """The last of these views, over the result of a new node. It and the views before are added; the last one is not.

    views: of the old program, each of the result before it. Without any, the node itself, not added.
    """
    for view in views:
        (made,) = node.results()
        state.add(node)
        again = state.described(
            Node(view.target, (made, *view.args[1:]), view.kwargs, view.outputs, phase=view.phase, origin=view.origin)
        )
        assert again is not None, "a view of what is contiguous stays one"
        node = again
    return node


def is_read_in_order(call: LinearCall) -> bool:
    """Whether a product is as fast with a plain weight, stored as BLAS reads it, as with one packed for oneDNN."""
    return _elements_of(call.matrix) <= _MOST_IN_ORDER and not (call.activation != "none" and fuses(call.activation))


def _elements_of(matrix: Value) -> int:
    inner, outer = matrix.tensor.shape
    assert isinstance(inner, int) and isinstance(outer, int), "constants have known sizes"
    return inner * outer


def unflattened(call: LinearCall, producers: Mapping[Value, Node]) -> Value | None:
    """What a product's input is a flat view of, if the call gives the right shape for that."""
    view = producers.get(call.x)
    if view is None or not view.args or not isinstance(view.args[0], Value) or not call.views:
        return None
    whole = view.args[0]
    if view.results()[0].tensor.storage != whole.tensor.storage or call.shape[:-1] != whole.tensor.shape[:-1]:
        return None
    is_flat = whole.tensor.shape[-1:] == call.x.tensor.shape[-1:] and len(call.x.tensor.shape) == 2
    return whole if is_flat and is_reshaping_view(view) else None


def grows(weight: Value, producers: Mapping[Value, Node], itemsize: int | None = None) -> str | None:
    """Why a weight in another form would be larger than the constants that it is computed from.

    Those of few bits stay so. itemsize: bytes of an element of that form; None: as many as in the weight's own.
    """
    sources: set[Value] = set()
    stack, seen = [weight], {weight}
    while stack:
        value = stack.pop()
        if value not in producers:
            sources.add(value)
            continue
        stack += [operand for operand in producers[value].operands() if operand not in seen]
        seen.update(stack)
    spans = {source.tensor.storage: _spanned_bytes(source) for source in sources if source.is_tensor}
    count = weight.tensor.numel()
    assert isinstance(count, int), "constants have known sizes"
    given, needed = sum(spans.values()), count * (weight.tensor.dtype.itemsize if itemsize is None else itemsize)
    return f"GROWS: {needed} bytes in place of {given}" if needed > given else None


def _spanned_bytes(value: Value) -> int:
    """Bytes of the elements that do not share memory with others by a stride of 0."""
    meta, count = value.tensor, 1
    for size, step in zip(meta.shape, meta.stride, strict=True):
        count *= size if isinstance(size, int) and step != 0 else 1
    return count * meta.dtype.itemsize


def expected_size(size: Size, infer: MetaInference) -> int | None:
    """A size as a number: what is expected of a symbolic one; None where that is not known."""
    number = infer.materialize(size)
    hint = hint_of(number) if isinstance(number, SYMBOLIC_TYPES) else number
    return hint if isinstance(hint, int) else None


def expected_sizes(sizes: Sequence[Size], infer: MetaInference) -> list[int] | None:
    """Sizes as numbers, like `expected_size`; None where one is not known."""
    hints = [expected_size(size, infer) for size in sizes]
    known = [hint for hint in hints if hint is not None]
    return known if len(known) == len(hints) else None


def multiplications(call: ConvolutionCall) -> int:
    """How many multiplications a convolution takes, of one image if their number is symbolic."""
    images, _, *space = call.form.result.tensor.shape
    work = images if isinstance(images, int) else 1
    for size in (*space, *call.form.weight.tensor.shape):
        work *= size if isinstance(size, int) else _USUAL_SIZE
    return work
