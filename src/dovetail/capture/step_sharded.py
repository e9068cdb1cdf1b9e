"""Tensors of a step's state that are spread over processes (`DTensor`): the program knows the part of this process.

w: DTensor                    the object stays what it is; its own code takes each operator apart, when it runs
w._local_tensor: Tensor       is exchanged for a fake, and is what the program reads and writes
w.grad: DTensor               is put together again, of what the program leaves
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from dovetail.capture.step_tensors import MadeTensor, StepTensor, fake_for
from dovetail.ir.convert import describe
from dovetail.ir.program import Value
from dovetail.torch_compat.dtensors import is_dtensor, layout_of, local_of, with_local
from dovetail.torch_compat.fakes import FakeMode, fake_apart
from dovetail.torch_compat.subclasses import WrapperLayout


@dataclass(frozen=True, slots=True)
class MadeSharded:
    """A tensor that is spread over processes, which the step made and leaves. part: what this process holds."""

    layout: WrapperLayout
    part: MadeTensor


def with_locals(tensors: Sequence[StepTensor]) -> list[StepTensor]:
    """The tensors, and behind them the local parts of those that are spread."""
    found = list(tensors)
    known = {id(item.tensor) for item in tensors}
    for item in tensors:
        if is_dtensor(item.tensor) and id(local := local_of(item.tensor)) not in known:
            known.add(id(local))
            found.append(StepTensor(f"{item.name}_local", item.label, item.role, local))
    return found


def places_of_locals(tensors: Sequence[StepTensor]) -> dict[int, int]:
    """By the number of a tensor that is spread, that of its local part."""
    places = {id(item.tensor): place for place, item in enumerate(tensors)}
    return {n: places[id(local_of(x.tensor))] for n, x in enumerate(tensors) if is_dtensor(x.tensor)}


def stand_in_value(item: StepTensor, storage: int) -> Value:
    """A value for the whole of a tensor that is spread, which no operator takes. storage: of no other value."""
    return Value(item.name, describe(item.tensor, storage))


def fake_or_itself(mode: FakeMode, item: StepTensor, has_symbols: bool) -> torch.Tensor:
    """What a tensor is exchanged for, itself where it is spread. Raises: UnsupportedTensor."""
    return item.tensor if is_dtensor(item.tensor) else fake_for(mode, item, has_symbols)


def made_of(item: torch.Tensor, value_of: Callable[[torch.Tensor, str], Value], what: str) -> MadeTensor | MadeSharded:
    """A tensor that the step made. value_of: gives the value of one that is not spread, called so."""
    part = local_of(item) if is_dtensor(item) else item
    made = MadeTensor(value_of(part, what), part)
    return made if part is item else MadeSharded(layout_of(item), made)


def seeming_gradient(mode: FakeMode, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient that seems to be there, and of it what has a value."""
    if not is_dtensor(tensor):
        seeming = fake_apart(mode, tensor)
        return seeming, seeming
    local = fake_apart(mode, local_of(tensor).detach())
    return with_local(tensor, local), local


@contextlib.contextmanager
def sharded_kept(tensors: Sequence[StepTensor]) -> Iterator[None]:
    """While active, tensors that are spread may get other gradients, which are gone afterwards."""
    leaves = [item.tensor for item in tensors if is_dtensor(item.tensor) and item.tensor.is_leaf]
    held = [(tensor, tensor.grad, tensor.requires_grad) for tensor in leaves]
    try:
        yield
    finally:
        for tensor, gradient, required in held:
            tensor.grad = gradient
            if tensor.requires_grad != required:
                tensor.requires_grad_(required)
