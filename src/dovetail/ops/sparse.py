"""Sparse matrices as operands of a program: their parts, which are strided, and operators that put them together.

    g = sparse_coo(indices, values); w.add_(g, alpha=-0.1)  ->  sparse_added_(w, [indices, values], [10, 4], [0], -0.1)

A sparse matrix is a sum of such pairs, as autograd adds up gradients of one weight. Each operator makes the sparse
tensors again, which copies nothing, and runs eager's kernel on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.ops.custom import define
from dovetail.torch_compat.sparse import Form, sum_of_pairs

_MATRIX = "Tensor[] parts, SymInt[] size, int[] sorted"


def _added(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any, alpha: Any = 1) -> torch.Tensor:
    return _add(self.clone(), parts, size, is_sorted, alpha)


def _add(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any, alpha: Any = 1) -> torch.Tensor:
    return self.add_(sum_of_pairs(parts, size, is_sorted), alpha=alpha)


def _sorted_parts(parts: Any, size: Any, is_sorted: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = sum_of_pairs(parts, size, is_sorted).coalesce()
    return made.indices().clone(), made.values().clone()


def _sorted_like(parts: Any, size: Any, is_sorted: Any) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    indices, values = parts[0], parts[1]
    return indices.new_empty((indices.shape[0], count)), values.new_empty((count, *values.shape[1:]))


def _masked(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any) -> torch.Tensor:
    masked = self.sparse_mask(sum_of_pairs(parts, size, is_sorted))
    values: torch.Tensor = torch.ops.aten._values.default(masked)
    return values.clone()


def _masked_like(self: torch.Tensor, parts: Any, size: Any, is_sorted: Any) -> torch.Tensor:
    return self.new_empty(parts[1].shape)


# The dense tensor plus the matrix; written in place by the second one.
SPARSE_ADDED: Any = define(
    "sparse_added",
    f"(Tensor self, {_MATRIX}, Scalar alpha=1) -> Tensor",
    _added,
    lambda self, *_, **__: torch.empty_like(self),
)
SPARSE_ADD: Any = define(
    "sparse_added_", f"(Tensor(a!) self, {_MATRIX}, Scalar alpha=1) -> Tensor(a!)", _add, lambda self, *_, **__: self
)
# Indices, each once and in order, and values.
SORTED_PARTS: Any = define("sorted_parts", f"({_MATRIX}) -> (Tensor, Tensor)", _sorted_parts, _sorted_like)
# The values of the dense tensor where the matrix has any.
MASKED_VALUES: Any = define("masked_values", f"(Tensor self, {_MATRIX}) -> Tensor", _masked, _masked_like)


# --- matrices that are there before a program -------------------------------------------------------------------------


def _put_together(parts: Sequence[torch.Tensor], size: Sequence[int], layout: str, is_turned: bool) -> torch.Tensor:
    made = Form(layout, (size[0], size[1])).made_of(parts)
    return made.t() if is_turned else made


def _product(parts: Any, size: Any, layout: str, is_turned: bool, dense: torch.Tensor) -> torch.Tensor:
    matrix = _put_together(parts, size, layout, is_turned)
    return matrix.mv(dense) if dense.dim() == 1 else matrix.mm(dense)


def _product_like(parts: Any, size: Any, layout: str, is_turned: bool, dense: torch.Tensor) -> torch.Tensor:
    matrix = dense.new_empty(list(reversed(size)) if is_turned else list(size))
    return matrix.mv(dense) if dense.dim() == 1 else matrix.mm(dense)


def _after(parts: Any, size: Any, layout: str, is_turned: bool, dense: torch.Tensor) -> torch.Tensor:
    return dense.mm(_put_together(parts, size, layout, is_turned))


def _after_like(parts: Any, size: Any, layout: str, is_turned: bool, dense: torch.Tensor) -> torch.Tensor:
    made = dense.mm(dense.new_empty(list(reversed(size)) if is_turned else list(size)))
    is_coo = layout in ("coo", "coalesced")
    return made.new_empty((made.shape[1], made.shape[0])).t() if is_coo else made


def _sum(
    self: torch.Tensor, parts: Any, size: Any, layout: str, is_turned: bool, dense: Any, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    return torch.addmm(self, _put_together(parts, size, layout, is_turned), dense, beta=beta, alpha=alpha)


_FORM = "Tensor[] parts, SymInt[] size, str layout, bool is_turned, Tensor dense"
# A matrix, or the transposed one, times a dense matrix or vector; a dense matrix times one; a dense matrix is added.
SPARSE_PRODUCT: Any = define("sparse_product", f"({_FORM}) -> Tensor", _product, _product_like)
PRODUCT_BY_SPARSE: Any = define("product_by_sparse", f"({_FORM}) -> Tensor", _after, _after_like)
SPARSE_ADDMM: Any = define(
    "sparse_addmm",
    f"(Tensor self, {_FORM}, Scalar beta=1, Scalar alpha=1) -> Tensor",
    _sum,
    lambda self, *matrix, **_: _product_like(*matrix[:5]),
)
