"""Decompositions of matrices of which only values are wanted, as torch's C++ runs them where no mode watches.

Source: `_may_require_fw_or_bw_grad` in torch's BatchLinearAlgebra.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.torch_compat.dispatch import decompose, schema_of

_aten: Any = torch.ops.aten
_PLACE = 2  # of the argument that asks for vectors
_VECTORS = {_aten._linalg_svd.default: "compute_uv", _aten._linalg_eigh.default: "compute_v"}
_COMPOSED = frozenset(
    {"linalg_svdvals", "linalg_eigvals", "linalg_eigvalsh", "linalg_matrix_norm", "linalg_norm", "linalg_cond"}
    | {"linalg_matrix_rank", "norm", "nuclear_norm", "svd"}
)


class WithoutVectors(TorchDispatchMode):
    """A dispatch mode in which decompositions are those that eager mode takes for values alone."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if schema_of(func).name in _COMPOSED and (made := self._composed(func, args, keywords)) is not NotImplemented:
            return made
        if func in _VECTORS and not _may_want_gradient(args[0]):
            return func(*args[:_PLACE], **{**keywords, _VECTORS[func]: False})
        if func is _aten.linalg_eig.default and not _may_want_gradient(args[0]):
            values = _aten._linalg_eigvals.default(args[0])
            return values, values  # the second is not read
        return func(*args, **keywords)

    def _composed(self, func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        with self:
            return decompose(func, args, keywords)


def _may_want_gradient(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad
