"""From torch's objects to the IR's: symbolic numbers to size expressions, tensors to descriptions."""

from __future__ import annotations

import torch

from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import Scalar, Size, SizeExpr
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.subclasses import decides_operators, is_wrapper
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, symbolic_tree
from dovetail.torch_compat.traced_numbers import handle_of, is_traced


def scalar_of(number: object) -> Scalar:
    """A Python or symbolic number as a scalar of the IR; of a traced one, what its trace knows it by."""
    if isinstance(number, SYMBOLIC_TYPES):
        if is_traced(number):
            handle: Scalar = handle_of(number)
            return handle
        return _from_tree(symbolic_tree(number))
    assert isinstance(number, bool | int | float), f"not a number: {number!r}"
    return number


def tree_to_scalar(tree: object) -> Scalar:
    """The scalar that nested tuples `(operation, arguments...)` describe."""
    return _from_tree(tree)


def _from_tree(tree: object) -> Scalar:
    if isinstance(tree, tuple):
        op, *arguments = tree
        if op == "symbol":
            return SizeExpr("symbol", (str(arguments[0]),))
        return SizeExpr(str(op), tuple(_from_tree(a) for a in arguments))
    assert isinstance(tree, bool | int | float), f"not a number: {tree!r}"
    return tree


def size_of(number: int | torch.SymInt) -> Size:
    """A tensor dimension, stride or offset as a size of the IR."""
    if type(number) is int:
        return number
    size = scalar_of(number)
    assert isinstance(size, int | SizeExpr), f"not a size: {number!r}"
    return size


_CPU = torch.device("cpu")
QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})
_INSTEAD_OF_SPARSE = (
    "convert it with .to_dense(); add up rows by its indices and values (x.index_add); or multiply by it outside. "
    "Products with sparse matrices that require no gradient, and sparse gradients of embeddings, are taken by compile "
    "and compile_step; embeddings have sparse=False"
)


def unsupported_kind(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Why no program can hold a tensor: what it is and what to do instead; None for a tensor of bytes at strides."""
    if tensor.is_nested:
        return "a nested tensor", "use padded tensors"
    if tensor.layout is not torch.strided:
        return f"a {tensor.layout} tensor", _INSTEAD_OF_SPARSE
    if tensor.dtype in QUANTIZED:
        return "a quantized tensor", "dequantize it first"
    return None


def unsupported_class(tensor: torch.Tensor) -> tuple[str, str] | None:
    """The same for a class that has a say in what operators do; None for wrappers, which are taken apart."""
    if is_fake(tensor) or is_wrapper(tensor) or not decides_operators(type(tensor)):
        return None
    kind = f"a tensor of class {type(tensor).__name__}, with `__torch_function__`"
    return kind, "pass it as a plain tensor (x.as_subclass(torch.Tensor)), or use torch.compile(backend='dovetail')"


def describe(tensor: torch.Tensor, storage: int) -> TensorMeta:
    """The description of a strided tensor whose storage has the number `storage`."""
    return TensorMeta(
        shape=tuple(map(size_of, tensor.shape)),
        stride=tuple(map(size_of, tensor.stride())),
        offset=size_of(tensor.storage_offset()),
        dtype=tensor.dtype,
        device=_CPU if tensor.device.type == "cpu" else tensor.device,  # fakes say "cpu:0" where tensors say "cpu"
        storage=storage,
    )
