"""The tensors that a step is recorded with: those of its reachable state, then those among its arguments.

A sparse matrix is there by its parts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail.capture.sparse_operands import KnownMatrix
from dovetail.capture.step_tensors import StepTensor
from dovetail.errors import UnsupportedTensor
from dovetail.frontends.step.tensor_kinds import Source
from dovetail.ir.signature import InputRole, Parameter, StateTensor, UserInput
from dovetail.ir.text import identifier
from dovetail.torch_compat.sparse import form_of, parts_of


class FoundTensors:
    """Attributes: tensors, each with where it comes from in sources; matrices, sparse ones, by their parts."""

    def __init__(self, name: Callable[[str], str]) -> None:
        """name: makes a name of a wish that no other has."""
        self.tensors: list[StepTensor] = []
        self.sources: list[Source] = []
        self.matrices: list[KnownMatrix] = []
        self._name = name
        self._known: set[int] = set()

    def add_state(self, index: int, tensor: torch.Tensor, label: str) -> None:
        """One that the reachable state holds."""
        role = Parameter(label) if isinstance(tensor, torch.nn.Parameter) else StateTensor(label)
        self._add(tensor, label, label, role, Source("state", index))

    def add_argument(self, index: int, tensor: torch.Tensor, label: str) -> None:
        """One among the arguments. Raises: UnsupportedTensor for a sparse matrix that is known already."""
        if id(tensor) in self._known:
            if form_of(tensor) is not None:
                raise UnsupportedTensor(
                    name=label,
                    kind="a sparse matrix that the step reaches otherwise as well",
                    hint="use it by one name, or pass a clone",
                )
        else:
            self._add(tensor, label, identifier(label), UserInput(index), Source("argument", index))

    def _add(self, tensor: torch.Tensor, label: str, wish: str, role: InputRole, source: Source) -> None:
        form = form_of(tensor)
        self._known.add(id(tensor))
        if form is None:
            self.tensors.append(StepTensor(self._name(wish), label, role, tensor))
            self.sources.append(source)
            return
        parts = parts_of(tensor)
        for name, part in parts.items():
            wanted = f"{label}.{name}"
            self.tensors.append(StepTensor(self._name(f"{wish}_{name}"), wanted, StateTensor(wanted), part))
            self.sources.append(Source(f"{source.kind} matrix", source.index, name, form))
        self.matrices.append(KnownMatrix(label, tensor, form, tuple(parts.values())))
