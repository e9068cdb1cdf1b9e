"""Checks of `torch_compat.kernel_strides`."""

from __future__ import annotations

import itertools

import torch

from dovetail.torch_compat import kernel_strides
from dovetail.torch_compat.checks.difference import first_difference

_SHAPES = ((1, 4, 3, 2), (2, 1, 3, 4), (4, 1, 3), (2, 3, 4))


def check_iterator_strides() -> str | None:
    """Sums of two tensors, and products with a number, over every order of dimensions."""
    found = []
    for shape in _SHAPES:
        laid_out = [_ordered(shape, order) for order in itertools.permutations(range(len(shape)))]
        for x, y in itertools.product(laid_out, (laid_out[0], laid_out[-1], laid_out[2], laid_out[3][:1])):
            told = kernel_strides.iterator_strides(shape, [(tuple(t.shape), t.stride()) for t in (x, y)])
            found.append((f"strides of {x.stride()} + {y.stride()}", told, (x + y).stride()))
        for x in laid_out:
            told = kernel_strides.iterator_strides(shape, [(tuple(x.shape), x.stride()), ((), ())])
            found.append((f"strides of {x.stride()} * 2", told, (x * 2).stride()))
    return first_difference(*found)


def check_like_strides() -> str | None:
    """Tensors like others: dense ones, with dimensions of size 1 whose strides say little, and parts of others."""
    found = []
    for shape in ((1, 4, 1, 8), (5, 1, 6, 1), *_SHAPES):
        for order in itertools.permutations(range(len(shape))):
            x = _ordered(shape, order)
            for one in (x, x[..., ::2], x.narrow(0, 0, 1), x.narrow(0, 0, 1).expand(shape)):
                told = kernel_strides.like_strides(tuple(one.shape), one.stride())
                found.append((f"strides like {one.stride()}", told, torch.empty_like(one).stride()))
    return first_difference(*found)


def check_view_strides() -> str | None:
    """Views as one row, as another shape and as the same, where there are such views."""
    found: list[tuple[str, object, object]] = []
    for shape in _SHAPES:
        for order in itertools.permutations(range(len(shape))):
            x = _ordered(shape, order)
            for wanted in (list(shape), [x.numel()], [1, x.numel()], [*shape[:-2], 1, shape[-2] * shape[-1]]):
                try:
                    stride = x.view(wanted).stride()
                except RuntimeError:
                    stride = None
                told = kernel_strides.view_strides(shape, x.stride(), wanted)
                found.append((f"strides of {x.stride()} as {wanted}", told, stride))
    return first_difference(*found)


def check_expand_strides() -> str | None:
    """Tensors that are expanded, where fakes give a size of 1 another stride."""
    found: list[tuple[str, object, object]] = []
    for shape, wanted in (
        ((), (6, 1)),
        ((), (1, 6)),
        ((3,), (2, 1, 3)),
        ((1,), (6, 1)),
        ((2, 1), (1, 2, 1)),
        ((3,), (3,)),
    ):
        x = torch.ones(shape)
        real = x.expand(wanted).stride()
        fake = tuple([7 if size == 1 else step for size, step in zip(wanted, real, strict=True)])
        found.append(
            (f"strides of {shape} as {wanted}", kernel_strides.expand_strides(shape, x.stride(), wanted, fake), real)
        )
    found[-1] = (found[-1][0], found[-1][1], None)  # which has no size of 1
    return first_difference(*found)


def check_broadcast_strides() -> str | None:
    """Strides of an operand that is expanded to the shape of a result."""
    x = torch.ones(3, 1, 2, device="cpu")
    told = kernel_strides.broadcast_strides((4, 3, 5, 2), tuple(x.shape), x.stride())
    return first_difference(("strides of an expanded operand", told, (0, *x.expand(3, 5, 2).stride())))


def check_order_of_dimensions() -> str | None:
    """Results of elementwise kernels have their dimensions in the order of the first operand's strides."""
    found: list[tuple[str, object, object]] = []
    for order in itertools.permutations(range(3)):
        x = _ordered((2, 3, 4), order)
        told = kernel_strides.order_of_dimensions(tuple(x.shape), [x.stride()])
        found.append((f"order of {x.stride()}", told, sorted(range(3), key=x.neg().stride().__getitem__)))
    return first_difference(*found)


def check_packed_strides() -> str | None:
    """Dimensions one after the other, from the fastest on."""
    told = kernel_strides.packed_strides((2, 3, 4), (1, 2, 0))
    return first_difference(("packed strides", told, torch.ones(2, 4, 3).transpose(1, 2).stride()))


def check_layouts_read() -> str | None:
    """Products and choices of an expanded tensor and one of another dtype, which is converted, or is not."""
    found = []
    x = torch.ones(2, 3, 1, device="cpu").expand(2, 3, 4)
    for dtype in (torch.float64, torch.float32, torch.int64):
        other = torch.ones(2, 4, 3, dtype=dtype, device="cpu").mT
        for operands, made in (((x, other), x * other), ((x > 0, other, x), torch.where(x > 0, other, x))):
            told = kernel_strides.iterator_strides(made.shape, kernel_strides.layouts_read(operands, made))
            found.append((f"strides of {len(operands)} operands with {dtype}", told, made.stride()))
    return first_difference(*found)


def check_operands_read() -> str | None:
    """Tensors, and numbers that stand for tensors: sums and powers with a number."""
    x = torch.ones(2, 1, 4, device="cpu").mT
    found: list[tuple[str, object, object]] = []
    for op, count in ((torch.ops.aten.add.Tensor, 2), (torch.ops.aten.pow.Tensor_Scalar, 1)):
        operands = kernel_strides.operands_read(op, (x, 2))
        made = op(x, 2)
        told = kernel_strides.iterator_strides(made.shape, kernel_strides.layouts_read(operands, made))
        found += [(f"operands of {op}", len(operands), count), (f"strides of {op}", told, made.stride())]
    return first_difference(*found)


def check_place_of_model() -> str | None:
    """Magnitudes of complex numbers lie as these; those of real numbers are asked of `TensorIterator`."""
    found: list[tuple[str, object, object]] = []
    for dtype, place in ((torch.complex64, 0), (torch.float32, None)):
        x = torch.ones(1, 3, dtype=dtype, device="cpu").t()
        told = kernel_strides.place_of_model(torch.ops.aten.abs.default, (x,))
        found += [
            (f"model of {dtype}", told, place),
            (f"strides of {dtype}", x.abs().stride() == x.stride(), told == 0),
        ]
    return first_difference(*found)


def _ordered(shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    made = torch.ones([shape[dim] for dim in order])
    return made.permute([order.index(dim) for dim in range(len(order))])


CHECKS = (
    *(check_iterator_strides, check_like_strides, check_view_strides, check_expand_strides),
    *(check_broadcast_strides, check_order_of_dimensions, check_packed_strides),
    *(check_layouts_read, check_operands_read, check_place_of_model),
)
