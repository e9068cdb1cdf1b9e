"""Operators whose results torch's fakes lay out otherwise than the operators themselves.

Kernels that read these results may round by their layout, autograd chooses what it calls by it, a later `reshape` is a
view or a copy by it, and work in place keeps to it: so programs must say what the kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.torch_compat.acting import numbers_unknown
from dovetail.torch_compat.convolutions import convolved_on_fakes
from dovetail.torch_compat.cudnn_layers import run_layer_on_fakes
from dovetail.torch_compat.kernel_strides import (
    CONTIGUOUS,
    DTYPE_OF_FIRST,
    ELEMENTWISE,
    IN_MEMORY_FORMAT,
    LOSSES,
    VIEWS,
    Layout,
    expand_strides,
    is_elementwise,
    iterator_strides,
    layouts_read,
    like_strides,
    operands_read,
    place_of_model,
    view_strides,
)
from dovetail.torch_compat.nested import has_symbolic_numbers, tensors_in
from dovetail.torch_compat.own_fakes import DRAWN_BY_REFERENCE, OWN_FAKES
from dovetail.torch_compat.resampling import resampled_on_fakes
from dovetail.torch_compat.sized_fakes import sized_on_fakes
from dovetail.torch_compat.symbolic_strides import is_one_number, strides_of_any_size
from dovetail.torch_compat.symbolic_views import viewed
from dovetail.torch_compat.taken_dtypes import refuse_dtypes
from dovetail.torch_compat.zero_tensors import answered_anew

_aten = torch.ops.aten


def as_laid_out(op: Any, args: Sequence[Any], result: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """The results of an operator on fakes, in the layout that the operator gives them.

    Many fakes run a decomposition, which reads the operands in another order than the kernel, or keeps strides where
    the kernel gives a contiguous tensor: gradients of activations, losses and norms, and a few elementwise operators.
    """
    if op in DTYPE_OF_FIRST and result.dtype is not args[0].dtype:
        result = torch.empty_strided(result.shape, result.stride(), dtype=args[0].dtype, device=result.device)
    if (rule := _RULES.get(op)) is not None:
        return rule(args[0], result if rule is not _batch_norm else _with_mixed_statistics(args, result))
    if op in IN_MEMORY_FORMAT:
        return _in_memory_format(args[IN_MEMORY_FORMAT[op]], result)
    if op is _aten.roll.default:
        return _rolled(args[0], result, *args[1:])
    if op in CONTIGUOUS:
        is_meant = "cuda" in CONTIGUOUS[op] or _first_of(result).device.type == "cpu"
        return _each(_contiguous, result) if is_meant else result
    if op in LOSSES and args[1].shape == result.shape:
        return _contiguous(result)
    if op is _aten.expand.default:
        stride = expand_strides(args[0].shape, args[0].stride(), result.shape, result.stride())
        return args[0].as_strided(result.shape, stride) if stride else result
    if kwargs and kwargs.get("memory_format") not in (None, torch.preserve_format):
        return result
    place = place_of_model(op, args)
    if place is not None and _first_of(result).device.type == "cpu" and _is_plain(args[place]):
        return _alike(args[place], result)
    return _of_elementwise(op, args, result)


def _of_elementwise(op: Any, args: Sequence[Any], result: Any) -> Any:
    on_cpu = isinstance(result, torch.Tensor) and result.device.type == "cpu"
    if op is _aten.ldexp.Tensor and on_cpu:
        if args[1].is_floating_point() or args[1].is_complex() or not args[0].is_floating_point():
            # a product with a power of two, which is contiguous unless a tensor of the first dtype holds the two
            is_number = args[0].dtype is torch.float32 or not (args[0].is_floating_point() or args[0].is_complex())
            power = args[1].new_empty(args[1].shape) if is_number else _like_operands([args[1]], args[1])
            return _like_operands([args[0], power], result)
        if args[0].shape == result.shape and _is_plain(args[0]):
            return _alike(args[0], result)
    if op is _aten.soft_margin_loss_backward.default and on_cpu:  # targets times what grows with (-targets) * inputs
        grown = _like_operands([_like_operands([args[2]], args[2]), args[1]], result)
        return _like_operands([args[2], grown], result)
    if op is _aten.isinf.default and on_cpu and args[0].is_complex():  # of real parts, as of others
        return _like_operands([torch.view_as_real(args[0])[..., 0]], result)
    if op is _aten.angle.default and on_cpu and args[0].is_complex():
        return _contiguous(result)
    if (order := _order_of_operands(op, args)) is not None:
        return _each(lambda made: _like_operands([args[place] for place in order], made), result)
    return _with_small_dimensions(op, args, result)


def run_on_fakes(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives on fakes, also where those of torch refuse what its kernel takes, or the reverse."""
    refuse_dtypes(op, args, kwargs)
    if op is _aten._grouped_mm.default and args[0].device.type == "cpu":
        return _grouped_product(*args)
    if (answer := run_layer_on_fakes if op is _aten._cudnn_rnn.default else OWN_FAKES.get(op)) is not None:
        return answer(*args)
    if (made := convolved_on_fakes(op, args)) is not None or (made := resampled_on_fakes(op, args)) is not None:
        return made
    if (made := sized_on_fakes(op, args, kwargs)) is not None:
        return made
    if op is _aten.native_batch_norm.default and (normed := _normed(*args)) is not None:
        return normed
    if op is _aten.linalg_lstsq.default and (made := least_squares(*args, **kwargs)) is not None:
        return made
    if kwargs.get("generator") is not None and (op in DRAWN_BY_REFERENCE or _has_symbolic_sizes(args)):
        meant = op if op in DRAWN_BY_REFERENCE else op.overloadpacket  # torch has fakes for its own generator only
        return meant(*args, **{name: kwargs[name] for name in kwargs if name != "generator"})
    if op in LOSSES and 0 in args[1].shape:  # torch's fakes divide by the number of elements
        return args[1].new_empty(torch.broadcast_shapes(args[1].shape, args[2].shape))
    with answered_anew(op, args), numbers_unknown(op, args):
        return op(*args, **kwargs)


def _has_symbolic_sizes(args: Sequence[Any]) -> bool:
    """Whether arguments are numbers only, and some of them symbols: sizes of what an operator makes."""
    return has_symbolic_numbers(args) and next(tensors_in(args), None) is None


def least_squares(
    a: torch.Tensor, b: torch.Tensor, _: Any = None, *, driver: str | None = None, full_rank: bool = False
) -> Any:
    """What `linalg_lstsq` gives on fakes. Torch's take the sizes for unknown: those of the residuals may hang on ranks.

    full_rank: take these for full. None where sizes hang on ranks, or on another device.
    """
    rows, columns = a.shape[-2:]
    if a.device.type != "cpu" or (driver in ("gelss", "gelsd") and rows > columns and not full_rank):
        return None
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    beside = (*b.shape, 1) if is_vector else tuple(b.shape)
    batch = torch.broadcast_shapes(a.shape[:-2], beside[:-2])
    width = beside[-1]
    solution = a.new_empty((*batch, width, max(rows, columns)))[..., :columns].transpose(-2, -1)
    has_residuals = driver in ("gels", "gelss", "gelsd") and rows > columns
    residuals = a.new_empty((*batch, width) if has_residuals else (0,))
    rank = a.new_empty((0,) if driver == "gels" else a.shape[:-2], dtype=torch.int64)
    values = a.new_empty((*a.shape[:-2], min(rows, columns)) if driver in ("gelss", "gelsd") else (0,))
    values = values.real if values.is_complex() else values
    return (solution.squeeze(-1) if is_vector else solution), residuals, rank, values


def _normed(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    *_: Any,
) -> Any:
    """Batch norm with fixed statistics on a CPU, of which torch's fakes run a decomposition of a dozen operators.

    None for all other calls. `as_laid_out` says how the result lies.
    """
    given = [mean, variance, *(each for each in (weight, bias) if each is not None)]
    if training or x.dim() < 2 or not isinstance(x.shape[1], int):
        return None
    for each in given:
        if each is None or each.shape != x.shape[1:2] or each.device != x.device or each.dtype is not x.dtype:
            return None
    if x.device.type != "cpu" or not x.is_floating_point():
        return None
    return x.new_empty(x.shape), x.new_empty((0,)), x.new_empty((0,))


def _grouped_product(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None = None, *_: Any) -> torch.Tensor:
    """Fakes take bfloat16 only. The kernel begins each row at a multiple of 16 bytes."""
    groups = [] if a.dim() != b.dim() else [a.shape[0]] if offsets is None else [offsets.shape[0]]
    rows, columns = a.shape[-2], b.shape[-1]
    step = 16 // a.dtype.itemsize
    row = (columns + step - 1) // step * step
    strides = ([rows * row] if groups else []) + [row, 1]
    return torch.empty_strided([*groups, rows, columns], strides, dtype=a.dtype, device=a.device)


def as_on_cpu(op: Any, args: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """An operator's results on the CPU, from those on the meta device: batch norm keeps nothing in evaluation."""
    place = _TRAINING.get(op)
    if place is None or (place >= 0 and (place >= len(args) or args[place] is not False)):
        return results
    made, *others = _laid_out_as_on_cpu(args[0], results)
    return [made, *(torch.empty(0, dtype=other.dtype, device=other.device) for other in others)]


def _each(put_right: Callable[[Any], Any], result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return put_right(result)
    return type(result)(made if made is None else put_right(made) for made in result)


def _first_of(result: Any) -> torch.Tensor:
    items = [result] if isinstance(result, torch.Tensor) else result
    made: torch.Tensor = next(one for one in items if one is not None)
    return made


def _like_operands(operands: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """The result of an elementwise kernel that reads its operands in this order; numbers are among them."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if all(map(_is_plain, (result, *tensors))):
        return _blank(result, iterator_strides(result.shape, layouts_read(operands, result)))
    if any(operand.shape != result.shape for operand in tensors):
        tensors = list(torch.broadcast_tensors(*tensors))
    return _blank(result, compute_elementwise_output_strides(*tensors))


def _blank(result: torch.Tensor, stride: Sequence[Any]) -> torch.Tensor:
    if len(stride) == result.dim() and all(map(is_one_number, stride, result.stride())):
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)


def _is_plain(tensor: torch.Tensor) -> bool:
    return all(type(number) is int for number in (*tensor.shape, *tensor.stride()))


def _contiguous(result: torch.Tensor) -> torch.Tensor:
    return _blank(result, torch.empty(result.shape, device="meta").stride())


def _order_of_operands(op: Any, args: Sequence[Any]) -> tuple[int, ...] | None:
    """In which order an elementwise kernel reads its operands, where its fake reads them in another."""
    if op is _aten.rrelu_with_noise_backward.default:
        return (2, 0) if args[5] else (1, 0)
    return LOSSES.get(op) or ELEMENTWISE.get(op)


def _with_small_dimensions(op: Any, args: Sequence[Any], result: Any) -> Any:
    """Results with the strides that kernels on CPU give dimensions of size 1, by which others tell memory formats."""
    first = result[0] if type(result) is tuple and result else result
    if not isinstance(first, torch.Tensor) or first.device.type != "cpu":
        return result
    if not any(type(size) is int and size == 1 for size in first.shape):
        return result
    if not _is_plain(first):
        if op in VIEWS:
            return viewed(args[0], first)
        stride = strides_of_any_size(operands_read(op, args), first) if is_elementwise(op) and first is result else None
        return result if stride is None else _blank(first, stride)
    if op in VIEWS and _is_plain(args[0]):
        stride = view_strides(tuple(args[0].shape), args[0].stride(), tuple(first.shape))
        return first if stride in (None, first.stride()) else args[0].as_strided(first.shape, stride)
    if op is _aten.glu.default:
        halves: list[Layout] = [(tuple(first.shape), args[0].stride())]
        return _blank(first, iterator_strides(first.shape, halves))
    if op is _aten.index.Tensor:
        return _indexed(args[0], args[1], first)
    if not is_elementwise(op) or first is not result:
        return result
    return _like_operands(operands_read(op, args), first)


def _alike(like: torch.Tensor, result: Any) -> Any:
    stride = like_strides(like.shape, like.stride())
    return _each(lambda made: _blank(made, stride) if made.shape == like.shape else made, result)


def _indexed(x: torch.Tensor, indices: Sequence[torch.Tensor | None], result: torch.Tensor) -> torch.Tensor:
    """Rows that one index tensor takes: the iterator reads the tensor, with that dimension still, and the index."""
    places = [place for place, index in enumerate(indices) if index is not None]
    index = indices[places[0]]
    if len(places) != 1 or index is None or index.dtype in (torch.bool, torch.uint8) or not _is_plain(index):
        return result
    before, after = places[0], x.dim() - places[0] - 1
    stride = view_strides(tuple(index.shape), index.stride(), (*[1] * before, *index.shape, *[1] * after))
    if stride is None:
        return result
    stands = (*x.stride()[:before], *[0] * index.dim(), *x.stride()[before + 1 :])
    layouts: list[Layout] = [(tuple(result.shape), stands), ((*[1] * before, *index.shape, *[1] * after), stride)]
    return _blank(result, iterator_strides(result.shape, layouts))


class RightLayouts(TorchDispatchMode):
    """While active, above a mode of fakes, operators give fakes in the layout of the operators themselves."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, and put its results right."""
        return as_laid_out(func, args, run_on_fakes(func, args, kwargs or {}), kwargs)


def _batch_norm(x: torch.Tensor, result: Sequence[Any]) -> Any:
    return _laid_out_as_on_cpu(x, result) if x.device.type == "cpu" else result


def _with_mixed_statistics(args: Sequence[Any], result: Sequence[Any]) -> Sequence[Any]:
    """On CPU, statistics of numbers of 16 bits have the dtype of the parameters, where that is wider."""
    kinds = {one.dtype for one in args[1:5] if isinstance(one, torch.Tensor)}
    if args[0].device.type != "cpu" or args[0].dtype.itemsize > 2 or torch.float32 not in kinds:
        return result
    made, *others = result
    return (made, *(one.float() if one.dtype is args[0].dtype and one.numel() else one for one in others))


def _laid_out_as_on_cpu(x: torch.Tensor, result: Sequence[Any]) -> Any:
    made, *others = result
    if x.dim() < 2:
        return result
    wanted = torch.contiguous_format if x.is_contiguous() else _format_of(x)
    right = torch.empty(made.shape, dtype=made.dtype, device=made.device, memory_format=wanted)
    return result if right.stride() == made.stride() else (right, *others)


def _format_of(x: torch.Tensor) -> torch.memory_format:
    for rank, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == rank and x.is_contiguous(memory_format=memory_format):
            return memory_format
    found: torch.memory_format = suggest_memory_format(x)
    return found


def _padded(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    wanted = torch.channels_last
    if x.device.type != "cpu" or x.dim() != 4 or suggest_memory_format(x) != wanted:
        return result
    if result.is_contiguous(memory_format=wanted):
        return result
    return torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=wanted)


def _rolled(x: torch.Tensor, result: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """On CPU, two parts are put together in their memory format, dimension by dimension; without one, all in a row."""
    if x.device.type != "cpu" or not all(map(_is_plain, (x, result))) or 0 in x.shape:
        return _in_memory_format(x, result) if dims else result
    if not dims:
        return _contiguous(result)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        shapes = [(*x.shape[:dim], part, *x.shape[dim % x.dim() + 1 :]) for part in (start, size - start)]
        formats = {suggest_memory_format(x.as_strided(shape, x.stride())) for shape in shapes}
        wanted = formats.pop() if len(formats) == 1 else torch.contiguous_format
        x = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=wanted)
    return _blank(result, x.stride())


def _zeroed(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=result.dtype)


def _in_memory_format(x: torch.Tensor, result: Any) -> Any:
    """On CPU, the first result is laid out in the memory format that suits this operand."""
    first, *others = [result] if isinstance(result, torch.Tensor) else result
    if x.device.type != "cpu" or first is None or first.dim() < 2:
        return result
    right = torch.empty(first.shape, dtype=first.dtype, device=first.device, memory_format=suggest_memory_format(x))
    if right.stride() == first.stride():
        return result
    return right if isinstance(result, torch.Tensor) else (right, *others)


_RULES: dict[Any, Callable[[torch.Tensor, Any], Any]] = {
    _aten.reflection_pad2d.default: _padded,
    _aten.replication_pad2d.default: _padded,
    _aten.zero.default: _zeroed,
}
_RULES |= dict.fromkeys(
    (
        _aten.native_batch_norm.default,
        _aten._native_batch_norm_legit.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_no_training.default,
        _aten._native_batch_norm_legit_functional.default,
        _aten._batch_norm_with_update.default,
        _aten._batch_norm_with_update_functional.default,
        _aten._batch_norm_no_update.default,
    ),
    _batch_norm,
)
# Where these have the argument that tells training from evaluation; -1 for what only evaluates.
_TRAINING: dict[Any, int] = {
    _aten.native_batch_norm.default: 5,
    _aten._native_batch_norm_legit.default: 5,
    _aten._native_batch_norm_legit_no_training.default: -1,
}
