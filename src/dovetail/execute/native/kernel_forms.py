"""Operators whose functions in torch's library are called as rows: which function, and with what.

The results come first, then the operands, in the order in which the function of a row gets them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from dovetail.execute.native.bounds import Bounds
from dovetail.execute.native.kernel_text import Taken
from dovetail.ir.program import Operand, TensorMeta, Value
from dovetail.torch_compat.native_kernels import DTYPE_CODES

Arguments = Mapping[str, Operand]
Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""


@dataclass(frozen=True, slots=True)
class Form:
    """name: of the function. operands: arguments that are tensors. seen: how the function sees tensors, where that is
    not as they lie, by place. taken, numbers: what it takes. bounds: of an operand, checked before. is_by_rows: each
    element of a result, or row of elements, is computed by itself, in as much time as it is large.
    """

    name: str
    operands: tuple[str, ...]
    taken: tuple[Taken, ...]
    numbers: bytes = b""
    seen: tuple[tuple[int, Layout], ...] = ()
    bounds: Bounds | None = None
    is_by_rows: bool = False


def _tensor(*places: int) -> tuple[Taken, ...]:
    return tuple(Taken("tensor", place) for place in places)


def _whole(*numbers: int) -> bytes:
    return struct.pack(f"{len(numbers)}q", *numbers)


_WHOLE, _FLAG, _REAL, _NOTHING = Taken("whole"), Taken("flag"), Taken("real"), Taken("nothing")


def known_layout(meta: TensorMeta) -> Layout | None:
    """Sizes and strides, if they are known."""
    numbers = (*meta.shape, *meta.stride)
    known = tuple(number for number in numbers if isinstance(number, int))
    dims = len(meta.shape)
    return (known[:dims], known[dims:]) if len(known) == len(numbers) else None


def _layout(arguments: Arguments, name: str) -> Layout:
    operand = arguments.get(name)
    assert isinstance(operand, Value), "tensors are looked at before"
    found = known_layout(operand.tensor)
    assert found is not None, "tensors are looked at before"
    return found


def _is_whole(*operands: Operand) -> bool:
    return all(isinstance(operand, int) and not isinstance(operand, bool) for operand in operands)


def _in_order(shape: Sequence[int]) -> Layout:
    """The layout of a new tensor."""
    strides, reach = list[int](), 1
    for size in reversed(shape):
        strides.append(reach)
        reach *= max(size, 1)
    return tuple(shape), tuple(reversed(strides))


def is_in_order(layout: Layout) -> bool:
    """Whether elements lie one after the other."""
    shape, stride = layout
    return all(size == 1 or step == whole for size, step, whole in zip(shape, stride, _in_order(shape)[1], strict=True))


def _flat(layout: Layout) -> Layout | None:
    """The layout of all elements as one dimension, if they lie in order."""
    return ((prod(layout[0]),), (1,)) if is_in_order(layout) else None


def _turned(layout: Layout) -> Layout:
    """With its second and third dimensions exchanged."""
    (a, b, c, *more), (d, e, f, *rest) = layout
    return (a, c, b, *more), (d, f, e, *rest)


def _softmax(name: str) -> Callable[[Arguments, Sequence[Layout]], Form | None]:
    def form(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
        dim = arguments["dim"]
        if not isinstance(dim, int) or arguments["half_to_float"] is not False:
            return None
        return Form(name, ("self",), (*_tensor(0, 1), _WHOLE, _FLAG), _whole(dim, 0), is_by_rows=True)

    return form


def _softmax_backward(name: str) -> Callable[[Arguments, Sequence[Layout]], Form | None]:
    def form(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
        dim, dtype, output = arguments["dim"], arguments["input_dtype"], arguments["output"]
        if not isinstance(dim, int) or not isinstance(output, Value) or dtype is not output.tensor.dtype:
            return None
        taken = (*_tensor(0, 1, 2), _WHOLE, Taken("code", DTYPE_CODES[dtype]))
        return Form(name, ("grad_output", "output"), taken, _whole(dim), is_by_rows=True)

    return form


def _gelu(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    is_plain = arguments["approximate"] == "none" and _is_float32(arguments["self"])
    return Form("gelu", ("self",), (*_tensor(0, 1), Taken("text", text="none"))) if is_plain else None


def _gelu_backward(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    is_plain = arguments["approximate"] == "none" and _is_float32(arguments["self"])
    taken = (*_tensor(0, 1, 2), Taken("text", text="none"))
    return Form("gelu_backward", ("grad_output", "self"), taken) if is_plain else None


def _is_float32(operand: Operand) -> bool:
    """Of which GELU has no formula."""
    return isinstance(operand, Value) and operand.tensor.dtype is torch.float32


def _bmm(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    return Form("bmm", ("self", "mat2"), _tensor(0, 1, 2))


def _layer_norm(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    rows, columns = _rows(arguments, "input")
    eps = arguments["eps"]
    if not isinstance(eps, float) or not columns:
        return None
    taken = (*_tensor(3, 4, 5), _WHOLE, _WHOLE, _REAL, *_tensor(0, 1, 2))
    numbers = struct.pack("2qd", rows, columns, eps)
    form = Form("layer_norm", ("input", "weight", "bias"), taken, numbers, is_by_rows=True)
    return form if _are_in_order(arguments, results) else None


def _layer_norm_backward(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    rows, columns = _rows(arguments, "input")
    if arguments["output_mask"] not in ([True] * 3, (True,) * 3) or not columns or len(results) < 3:
        return None
    taken = (*_tensor(3, 4, 5, 6, 7), _WHOLE, _WHOLE, *_tensor(0, 1, 2))
    operands = ("grad_out", "input", "mean", "rstd", "weight")
    form = Form("layer_norm_backward", operands, taken, _whole(rows, columns))
    return form if _are_in_order(arguments, results) else None


def _rows(arguments: Arguments, name: str) -> tuple[int, int]:
    """Rows and columns of what is normalized; no columns where they are not known."""
    shape, normalized = _layout(arguments, name)[0], arguments["normalized_shape"]
    count = len(normalized) if isinstance(normalized, list | tuple) else 0
    columns = prod(shape[len(shape) - count :]) if count else 0
    return (prod(shape) // columns, columns) if columns else (0, 0)


def _are_in_order(arguments: Arguments, results: Sequence[Layout]) -> bool:
    given = [_layout(arguments, name) for name, each in arguments.items() if isinstance(each, Value)]
    return all(map(is_in_order, (*given, *results)))


def _attention(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    numbers = _attention_numbers(arguments)
    if numbers is None or len(results) < 2 or not all(is_in_order(_turned(each)) for each in results):
        return None
    seen = tuple((place, _turned(layout)) for place, layout in enumerate(results))
    mask, more = _mask(arguments, 5)
    taken = (*_tensor(0, 1, 2, 3, 4), _REAL, _FLAG, mask, Taken("maybe"))
    return Form("attention", ("query", "key", "value", *more), taken, numbers, seen)


def _attention_backward(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    numbers = _attention_numbers(arguments)
    operands = ("grad_out", "query", "key", "value", "out", "logsumexp")
    if numbers is None or len(results) < 3 or not all(is_in_order(_turned(each)) for each in results):
        return None
    seen = [*results, *(_layout(arguments, name) for name in operands)]
    sizes = []
    for (shape, _), name in zip(results, operands[1:4], strict=True):
        operand = arguments[name]
        assert isinstance(operand, Value), "tensors are looked at before"
        sizes.append(prod(shape) * operand.tensor.dtype.itemsize)
    mask, more = _mask(arguments, 9)
    taken = (*(Taken("zeros", place) for place in range(3)), *_tensor(*range(3, 9)), _REAL, _FLAG, mask)
    turned = tuple((place, _turned(layout)) for place, layout in enumerate(seen))
    numbers = _whole(*sizes) + numbers
    return Form("attention_backward", (*operands, *more), (*taken, Taken("maybe")), numbers, turned)


def _mask(arguments: Arguments, place: int) -> tuple[Taken, tuple[str, ...]]:
    """How a mask is handed over, and its name, if there is one."""
    has_mask = arguments["attn_mask"] is not None
    return (Taken("given", place), ("attn_mask",)) if has_mask else (_NOTHING, ())


def _attention_numbers(arguments: Arguments) -> bytes | None:
    """No dropout, whether it is causal, and the scale, if there is one."""
    scale, causal = arguments["scale"], arguments["is_causal"]
    if arguments["dropout_p"] != 0.0 or not isinstance(causal, bool):
        return None
    if not (scale is None or isinstance(scale, float)):
        return None
    return struct.pack("dqdq", 0.0, causal, scale or 0.0, scale is not None)


def _nll_loss(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    bounds, numbers = _classes(arguments)
    if bounds is None or len(results) < 2:
        return None
    taken = (Taken("references"), *_tensor(0, 1, 2, 3), _NOTHING, _WHOLE, _WHOLE)
    return Form("nll_loss", ("self", "target"), taken, numbers, bounds=bounds)


def _nll_loss_backward(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    bounds, numbers = _classes(arguments)
    if bounds is None:
        return None
    taken = (*_tensor(0, 1, 2, 3), _NOTHING, _WHOLE, _WHOLE, *_tensor(4))
    operands = ("grad_output", "self", "target", "total_weight")
    return Form("nll_loss_backward", operands, taken, numbers, bounds=bounds)


def _classes(arguments: Arguments) -> tuple[Bounds | None, bytes]:
    """Bounds of the targets, and the numbers of a loss."""
    reduction, ignored = arguments["reduction"], arguments["ignore_index"]
    shape = _layout(arguments, "self")[0]
    if arguments["weight"] is not None or not _is_whole(reduction, ignored) or len(shape) not in (1, 2):
        return None, b""
    assert isinstance(reduction, int)
    assert isinstance(ignored, int)
    return Bounds("target", shape[-1], ignored), _whole(reduction, ignored)


def _embedding(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    weight, indices = _layout(arguments, "weight"), _flat(_layout(arguments, "indices"))
    if indices is None or len(weight[0]) != 2 or not is_in_order(results[0]):
        return None
    seen = ((0, _in_order((*indices[0], weight[0][1]))), (2, indices))
    taken = (*_tensor(0, 1), _WHOLE, *_tensor(2))
    bounds = Bounds("indices", weight[0][0])
    return Form("index_select", ("weight", "indices"), taken, _whole(0), seen, bounds, is_by_rows=True)


def _embedding_backward(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    count, padding, scaled = (arguments[name] for name in ("num_weights", "padding_idx", "scale_grad_by_freq"))
    if not _is_whole(count, padding) or not isinstance(scaled, bool) or not is_in_order(results[0]):
        return None
    assert isinstance(count, int)
    assert isinstance(padding, int)
    grad = arguments["grad_output"]
    assert isinstance(grad, Value), "tensors are looked at before"
    size = prod(results[0][0]) * grad.tensor.dtype.itemsize
    taken = (Taken("new"), *_tensor(1, 2), _WHOLE, _WHOLE, _FLAG)
    numbers = _whole(count, padding, scaled, size)
    bounds = Bounds("indices", count)
    return Form("embedding_backward", ("grad_output", "indices"), taken, numbers, bounds=bounds)


def _gather(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    dim, (shape, _) = arguments["dim"], _layout(arguments, "self")
    if not isinstance(dim, int) or not shape or arguments["sparse_grad"] is not False:
        return None
    taken = (*_tensor(0, 1), _WHOLE, *_tensor(2), _FLAG)
    bounds = Bounds("index", shape[dim])
    return Form("gather", ("self", "index"), taken, _whole(dim, 0), bounds=bounds, is_by_rows=True)


def _index_select(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    dim, (shape, _) = arguments["dim"], _layout(arguments, "self")
    if not isinstance(dim, int) or not shape:
        return None
    taken = (*_tensor(0, 1), _WHOLE, *_tensor(2))
    bounds = Bounds("index", shape[dim])
    return Form("index_select", ("self", "index"), taken, _whole(dim), bounds=bounds, is_by_rows=True)


def _scatter_add(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    dim, (shape, _) = arguments["dim"], results[0]
    if not isinstance(dim, int) or not shape:
        return None
    taken = (*_tensor(0), _WHOLE, *_tensor(1, 2))
    return Form("scatter_add", ("index", "src"), taken, _whole(dim), bounds=Bounds("index", shape[dim]))


def _extreme(name: str) -> Callable[[Arguments, Sequence[Layout]], Form | None]:
    def form(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
        dim, keeps = arguments.get("dim"), arguments.get("keepdim")
        if not isinstance(dim, int) or not isinstance(keeps, bool) or len(results) < 2:
            return None
        taken = (Taken("references"), *_tensor(0, 1, 2), _WHOLE, _FLAG)
        return Form(name, ("self",), taken, _whole(dim, keeps))

    return form


def _smooth_l1(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    if not _has_beta(arguments) or not is_in_order(results[0]):
        return None
    numbers = struct.pack("qd", arguments["reduction"], arguments["beta"])
    if "grad_output" in arguments:
        operands = ("grad_output", "self", "target")
        return Form("smooth_l1_loss_backward", operands, (*_tensor(0, 1, 2, 3), _WHOLE, _REAL), numbers)
    operand = arguments["self"]
    assert isinstance(operand, Value), "tensors are looked at before"
    size = prod(results[0][0]) * operand.tensor.dtype.itemsize
    taken = (Taken("new"), *_tensor(1, 2), _WHOLE, _REAL)
    return Form("smooth_l1_loss", ("self", "target"), taken, numbers + _whole(size))


def _has_beta(arguments: Arguments) -> bool:
    """Whether the numbers of a loss are known, and nothing is broadcast."""
    sizes = {_layout(arguments, name)[0] for name in ("self", "target")}
    return _is_whole(arguments["reduction"]) and isinstance(arguments["beta"], float) and len(sizes) == 1


def _max_pool(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    kernel = _pair(arguments["kernel_size"])
    pairs = [kernel, _pair(arguments["stride"] or arguments["kernel_size"])]
    pairs += [_pair(arguments[name]) for name in ("padding", "dilation")]
    if None in pairs or len(results) < 2 or not _is_picture(arguments, results):
        return None
    numbers = _whole(*(number for pair in pairs if pair is not None for number in reversed(pair)))
    return Form("max_pool2d", ("self",), (*_tensor(0, 1, 2), *[Taken("int")] * 8), numbers)


def _max_pool_backward(arguments: Arguments, results: Sequence[Layout]) -> Form | None:
    grad = arguments["grad_output"]
    if not isinstance(grad, Value) or not _is_picture(arguments, results):
        return None
    shape = results[0][0]
    taken, size = (Taken("zeros", 0), *_tensor(1, 2)), prod(shape) * grad.tensor.dtype.itemsize
    bounds = Bounds("indices", shape[-1] * shape[-2])
    return Form("max_pool2d_backward", ("grad_output", "indices"), taken, _whole(size), bounds=bounds)


def _is_picture(arguments: Arguments, results: Sequence[Layout]) -> bool:
    return len(results[0][0]) == 4 and _are_in_order(arguments, results)


def _pair(operand: Operand) -> tuple[int, int] | None:
    """Two numbers; one stands for both."""
    found = [number for number in operand if isinstance(number, int)] if isinstance(operand, list | tuple) else []
    return (found[0], found[-1]) if 0 < len(found) <= 2 else None


FORMS: dict[str, Callable[[Arguments, Sequence[Layout]], Form | None]] = {
    **{f"_{name}": _softmax(name) for name in ("softmax", "log_softmax")},
    **{f"_{name}_backward_data": _softmax_backward(f"{name}_backward") for name in ("softmax", "log_softmax")},
    "gelu": _gelu,
    "gelu_": _gelu,
    "gelu_backward": _gelu_backward,
    "bmm": _bmm,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "nll_loss_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "gather": _gather,
    "index_select": _index_select,
    "scatter_add_": _scatter_add,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "smooth_l1_loss": _smooth_l1,
    "smooth_l1_loss_backward": _smooth_l1,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
}
"""By the name of an operator of torch: the form of a node, given its arguments and the layouts of its results."""

DTYPES = frozenset(DTYPE_CODES)
"""Of the tensors that functions get."""
