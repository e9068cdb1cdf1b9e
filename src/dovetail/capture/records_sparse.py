"""The part of the recorder that takes sparse matrices: see `capture.sparse_operands` and `capture.sparse_gradients`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from dovetail.capture.moved_tensors import MovesTensors
from dovetail.capture.sparse_gradients import SparseGradients
from dovetail.capture.sparse_operands import KnownMatrix
from dovetail.errors import UnsupportedDistributed, UnsupportedTensor
from dovetail.ir.program import Origin, TensorMeta, Value
from dovetail.torch_compat.dispatch import Overload, is_composite
from dovetail.torch_compat.sparse import Form

_INSTEAD = "compute it outside, or convert the matrix with .to_dense()"


class RecordsSparse(MovesTensors):
    """See the module docstring. Attributes: sparse, what sparse tensors stand for; meets, see `SparseOperands`."""

    sparse: SparseGradients
    meets: bool
    _values: dict[int, Value]

    def add_matrix(self, fake: torch.Tensor, name: str, form: Form, parts: Sequence[torch.Tensor]) -> Value:
        """Declare an input that is a sparse matrix, made of the inputs `parts`. No operator takes it as a whole."""
        meta = TensorMeta(form.size, (form.size[1], 1), 0, fake.dtype, parts[-1].device, self.new_storage())
        self.sparse.operands.add(fake, KnownMatrix(name, fake, form, tuple(parts)))
        value = Value(name, meta)
        self._values[id(fake)] = value
        return value

    def recorded(self, make: Callable[[], Any]) -> Any:
        """What is made by operators that are recorded."""
        mode: Any = self
        with mode:
            return make()

    def here(self) -> Origin:
        """The user's line that runs."""
        return self._origins.here()

    def refuse_sparse(self, func: Any) -> NoReturn:
        """Raises: UnsupportedTensor for an operator on a sparse tensor that was made while recording."""
        raise UnsupportedTensor(
            name=f"what {func} takes or gives",
            kind="a sparse tensor that is made inside, and is no gradient of an input or a weight",
            hint="make it outside; or use dense tensors: sparse=False for embeddings, index_add for sums over edges",
            origin=self.here(),
        )

    def refuse_matrix(self, label: str, what: str) -> NoReturn:
        """Raises: UnsupportedTensor for a use of a sparse matrix that programs do not have."""
        raise UnsupportedTensor(
            name=label,
            kind=f"a sparse matrix, used for more than products with dense matrices ({what})",
            hint=_INSTEAD,
            origin=self.here(),
        )

    def run_sparse(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any] | None:
        """What an operator gives that makes or takes a sparse tensor; None for another operator."""
        if not isinstance(func, Overload) or is_composite(func) or not self.sparse.takes(func, args):
            if getattr(func, "namespace", "") == "c10d":
                self.refuse_collectives(f"a collective is called ({func})")
            return None
        return (self.sparse.run(func, args, kwargs),)

    def refuse_collectives(self, what: str) -> NoReturn:
        """Raises: UnsupportedDistributed."""
        raise UnsupportedDistributed(
            what=what,
            why="programs of single functions say nothing of other processes; those of training steps do",
            hint="compile the training step: dovetail.compile_step",
            origin=self.here(),
        )

    def data_parallel(self, module: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any]) -> Any:
        """What `DistributedDataParallel` does when it is called. Raises: UnsupportedDistributed."""
        self.refuse_collectives("a DistributedDataParallel module is called")
