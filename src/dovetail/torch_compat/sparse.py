"""Sparse matrices, taken apart into strided tensors and put together again, which copies nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

_MAKE = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
_MAKE_COMPRESSED = torch.ops.aten._sparse_compressed_tensor_unsafe.default
_BY_ROWS = ("crow_indices", "col_indices", "values")
_BY_COLUMNS = ("ccol_indices", "row_indices", "values")
_COMPRESSED = {
    torch.sparse_csr: ("csr", _BY_ROWS),
    torch.sparse_csc: ("csc", _BY_COLUMNS),
    torch.sparse_bsr: ("bsr", _BY_ROWS),
    torch.sparse_bsc: ("bsc", _BY_COLUMNS),
}
_LAYOUTS = {name: layout for layout, (name, _) in _COMPRESSED.items()}
_FLAGS = {0: None, 1: True, 2: False}
"""What is known of whether the indices of a pair are sorted and differ; 0: whoever made it did not say."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a sparse matrix is besides its parts.

    layout: "coo", "coalesced" (COO whose indices are sorted and differ), "csr", "csc", "bsr" or "bsc".
    """

    layout: str
    size: tuple[int, int]

    def key(self) -> Hashable:
        """Equal for matrices that are made alike."""
        return self

    def made_of(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The matrix of these parts, in the order of `parts_of`."""
        layout = _LAYOUTS.get(self.layout)
        if layout is None:
            return sum_of_pairs(parts, self.size, [1 if self.layout == "coalesced" else 2])
        values = parts[-1]
        made: torch.Tensor = _MAKE_COMPRESSED(
            *parts, list(self.size), dtype=values.dtype, layout=layout, device=values.device
        )
        return made


@dataclass(frozen=True, slots=True)
class PairsForm:
    """What a sparse sum is besides its pairs of indices and values. is_sorted: one of 0, 1, 2 for each pair."""

    size: tuple[int, ...]
    is_sorted: tuple[int, ...]

    def key(self) -> Hashable:
        """Equal for sums that are made alike."""
        return self

    def made_of(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of these pairs: indices, values, indices, ..."""
        return sum_of_pairs(parts, self.size, self.is_sorted)


def form_of(tensor: object) -> Form | None:
    """The form of a sparse matrix of numbers that requires no gradient; else None."""
    if not (isinstance(tensor, torch.Tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter)):
        return None
    if tensor.layout is torch.strided or tensor.requires_grad or tensor.dim() != 2 or tensor.device.type == "meta":
        return None
    if tensor.layout is torch.sparse_coo:
        layout = "coalesced" if tensor.is_coalesced() else "coo"
        is_known = tensor.sparse_dim() == 2
    else:
        layout = _COMPRESSED.get(tensor.layout, ("", ()))[0]
        is_known = bool(layout) and tensor.dense_dim() == 0
    return Form(layout, (tensor.shape[0], tensor.shape[1])) if is_known else None


def parts_of(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """The strided tensors that such a matrix consists of, by name; they share its memory."""
    _, names = _COMPRESSED.get(matrix.layout, ("", ("_indices", "_values")))
    with _disable_current_modes(), torch.no_grad():
        return {name.lstrip("_"): getattr(torch.ops.aten, name).default(matrix) for name in names}


def turned(matrix: torch.Tensor) -> torch.Tensor:
    """The transposed matrix, of the same memory: real or fake as the matrix is, whatever modes are active."""
    with _disable_current_modes(), torch.no_grad():
        return matrix.t()


def same_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """Another tensor object for it, as `turned` makes one."""
    with _disable_current_modes(), torch.no_grad():
        return matrix.detach()


def cast_matrix(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The matrix with values of another dtype, as `turned` makes one."""
    with _disable_current_modes(), torch.no_grad():
        return matrix.to(dtype)


def sum_of_pairs(parts: Sequence[torch.Tensor], size: Sequence[int], is_sorted: Sequence[int]) -> torch.Tensor:
    """The sparse matrix of pairs of indices and values, added up from the first one on."""
    made: list[torch.Tensor] = [
        _MAKE(
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
