"""Sparse matrices as operands of a program: their parts, which are strided, and operators that put them together.

    g = sparse_coo(indices, values); w.add_(g, alpha=-0.1)  ->  sparse_added_(w, [indices, values], [10, 4], [0], -0.1)

A sparse matrix is a sum of such pairs, as autograd adds up gradients of one weight. Each operator makes the sparse
tensors again, which copies nothing, and runs eager's kernel on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_LIBRARY = torch.library.Library("dovetail", "DEF")
_MATRIX = "Tensor[] parts, SymInt[] size, int[] sorted"
_FLAGS = {0: None, 1: True, 2: False}
"""What is known of whether the indices of a pair are sorted and differ; 0: whoever made it did not say."""


def matrix_of(parts: Sequence[torch.Tensor], size: Sequence[int], is_sorted: Sequence[int]) -> torch.Tensor:
    """The sparse matrix of pairs of indices and values, added up from the first one on."""
    made: list[torch.Tensor] = [
        torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
            indices.shape[0],
            values.dim() - 1,
            list(size),
            indices,
            values,
            dtype=values.dtype,
            layout=torch.sparse_coo,
            device=values.device,
            is_coalesced=_FLAGS[flag],
        )
        for indices, values, flag in zip(parts[::2], parts[1::2], is_sorted, strict=True)
    ]
    total = made[0]
    for matrix in made[1:]:
        total = total.add(matrix)
    return total


def _define(name: str, schema: str, run: Any, fake: Any) -> Any:
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dovetail::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.dovetail, name).default


def _added(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any, alpha: Any = 1) -> torch.Tensor:
    return _add(self.clone(), parts, size, is_sorted, alpha)


def _add(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any, alpha: Any = 1) -> torch.Tensor:
    return self.add_(matrix_of(parts, size, is_sorted), alpha=alpha)


def _sorted_parts(parts: Any, size: Any, is_sorted: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = matrix_of(parts, size, is_sorted).coalesce()
    return made.indices().clone(), made.values().clone()


def _sorted_like(parts: Any, size: Any, is_sorted: Any) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    indices, values = parts[0], parts[1]
    return indices.new_empty((indices.shape[0], count)), values.new_empty((count, *values.shape[1:]))


def _masked(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any) -> torch.Tensor:
    masked = self.sparse_mask(matrix_of(parts, size, is_sorted))
    values: torch.Tensor = torch.ops.aten._values.default(masked)
    return values.clone()


def _masked_like(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any) -> torch.Tensor:
    return self.new_empty(parts[1].shape)


# The dense tensor plus the matrix; written in place by the second one.
SPARSE_ADDED: Any = _define(
    "sparse_added",
    f"(Tensor self, {_MATRIX}, Scalar alpha=1) -> Tensor",
    _added,
    lambda self, *_, **__: torch.empty_like(self),
)
SPARSE_ADD: Any = _define(
    "sparse_added_", f"(Tensor(a!) self, {_MATRIX}, Scalar alpha=1) -> Tensor(a!)", _add, lambda self, *_, **__: self
)
# Indices, each once and in order, and values.
SORTED_PARTS: Any = _define("sorted_parts", f"({_MATRIX}) -> (Tensor, Tensor)", _sorted_parts, _sorted_like)
# The values of the dense tensor where the matrix has any.
MASKED_VALUES: Any = _define("masked_values", f"(Tensor self, {_MATRIX}) -> Tensor", _masked, _masked_like)


# --- matrices that are there before a program -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """What a sparse matrix is besides its parts. layout: "coo", "coalesced" (COO as well) or "csr"."""

    layout: str
    size: tuple[int, int]


def form_of(tensor: torch.Tensor) -> Form | None:
    """The form of a sparse matrix whose products a program can hold: COO or CSR, without a gradient; else None."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.dim() != 2 or tensor.device.type == "meta":
        return None
    if tensor.layout is torch.sparse_coo and tensor.sparse_dim() == 2:
        layout = "coalesced" if tensor.is_coalesced() else "coo"
    elif tensor.layout is torch.sparse_csr and tensor.dense_dim() == 0:
        layout = "csr"
    else:
        return None
    return Form(layout, (tensor.shape[0], tensor.shape[1]))


def parts_of(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """The strided tensors that a COO or CSR matrix consists of, by name; they share its memory."""
    names = ("crow_indices", "col_indices", "values") if matrix.layout is torch.sparse_csr else ("_indices", "_values")
    return {name.lstrip("_"): getattr(torch.ops.aten, name).default(matrix) for name in names}


def _put_together(parts: Sequence[torch.Tensor], size: Sequence[int], layout: str, is_turned: bool) -> torch.Tensor:
    if layout == "csr":
        made = torch.ops.aten._sparse_compressed_tensor_unsafe.default(
            *parts, list(size), dtype=parts[-1].dtype, layout=torch.sparse_csr, device=parts[-1].device
        )
    else:
        made = matrix_of(parts, size, [1 if layout == "coalesced" else 2])
    matrix: torch.Tensor = made.t() if is_turned else made
    return matrix


def _product(parts: Any, size: Any, layout: str, is_turned: bool, dense: torch.Tensor) -> torch.Tensor:
    matrix = _put_together(parts, size, layout, is_turned)
    return matrix.mv(dense) if dense.dim() == 1 else matrix.mm(dense)


def _product_like(parts: Any, size: Any, layout: str, is_turned: bool, dense: torch.Tensor) -> torch.Tensor:
    matrix = dense.new_empty(list(reversed(size)) if is_turned else list(size))
    return matrix.mv(dense) if dense.dim() == 1 else matrix.mm(dense)


def _sum(
    self: torch.Tensor, parts: Any, size: Any, layout: str, is_turned: bool, dense: Any, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    return torch.addmm(self, _put_together(parts, size, layout, is_turned), dense, beta=beta, alpha=alpha)


_FORM = "Tensor[] parts, SymInt[] size, str layout, bool is_turned, Tensor dense"
# A matrix, or the transposed one, times a dense matrix or vector; the second one adds a dense matrix.
SPARSE_PRODUCT: Any = _define("sparse_product", f"({_FORM}) -> Tensor", _product, _product_like)
SPARSE_ADDMM: Any = _define(
    "sparse_addmm",
    f"(Tensor self, {_FORM}, Scalar beta=1, Scalar alpha=1) -> Tensor",
    _sum,
    lambda self, *matrix, **_: _product_like(*matrix[:5]),
)
