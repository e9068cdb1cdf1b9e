"""One call of a target: its arguments, flat, and the tensors of the modules that the target holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.module_state import TensorSlot, tensor_slots
from dovetail.frontends.held_modules import Named, held_modules
from dovetail.frontends.inputs import check_class, check_tensor
from dovetail.frontends.structure import Structure
from dovetail.ir.text import identifier
from dovetail.reach.read_slots import ReadSlot
from dovetail.torch_compat.sparse import form_of


@dataclass(frozen=True, slots=True)
class Call:
    """modules: by name. slots: where they hold tensors. tensors: what is there. leaves: the arguments. state: slots of
    what is handed in with them; None where nothing may be.

    A *place* counts among `everything`.
    """

    modules: list[Named]
    slots: list[TensorSlot]
    tensors: list[torch.Tensor]
    leaves: list[Any]
    structure: Structure
    has_matrices: bool = True
    state: Mapping[str, ReadSlot] | None = None

    @staticmethod
    def of(
        target: Callable[..., Any],
        leaves: list[Any],
        structure: Structure,
        more: Sequence[Named] = (),
        *,
        has_matrices: bool = True,
        state: Mapping[str, ReadSlot] | None = None,
    ) -> Call:
        """Describe a call.

        more: modules that `held_modules` does not find. has_matrices: sparse matrices in modules count as tensors.
        state: see `handed_state`.
        Raises: UnsupportedTensor.
        """
        modules = held_modules(target, [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        known = {id(child) for _, module in modules for child in module.modules()}
        modules += [(name, module) for name, module in more if id(module) not in known]
        slots = [slot for slot in tensor_slots(modules) if has_matrices or form_of(slot.read()) is None]
        return Call(modules, slots, [slot.read() for slot in slots], leaves, structure, has_matrices, state)

    def again(self, target: Callable[..., Any], modules: Sequence[Named]) -> Call:
        """The same call with more modules. Raises: UnsupportedTensor."""
        more, state = self.has_matrices, self.state
        return Call.of(target, self.leaves, self.structure, modules, has_matrices=more, state=state)

    @property
    def everything(self) -> list[Any]:
        """The tensors that modules hold, then the arguments."""
        return [*self.tensors, *self.leaves]

    def distinct_tensors(self) -> list[int]:
        """Places of the tensors, each object once."""
        first = {id(x): k for k, x in reversed(list(enumerate(self.everything))) if isinstance(x, torch.Tensor)}
        return sorted(first.values())


def checked_name(slots: Sequence[TensorSlot], place: int, item: Any) -> str:
    """The name of what is at a place of a call. Raises: DovetailError for a tensor that is not supported."""
    position = place - len(slots)
    name = f"arg_{position}" if position >= 0 else identifier(slots[place].name.replace(".", "_"))
    if isinstance(item, torch.Tensor):
        check_tensor(name, item)
        check_class(name, item)
    return name
