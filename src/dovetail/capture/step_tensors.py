"""The tensors and numbers that exist before a step and that its program reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from dovetail.errors import StateChangedOtherwise, UnownedState, UnsupportedStep, UnsupportedTensor
from dovetail.ir.calling import Look
from dovetail.ir.convert import unsupported_class, unsupported_kind
from dovetail.ir.program import Origin, Value
from dovetail.ir.signature import HeldGradient, InputRole, UserInput
from dovetail.ir.sizes import SizeExpr
from dovetail.torch_compat.dtensors import is_dtensor
from dovetail.torch_compat.fakes import FakeMode, fake_apart, parameter_of_fake, symbolic_fake_of
from dovetail.torch_compat.subclasses import is_wrapper
from dovetail.torch_compat.swapping import HookTable, attributes_in_common, hook_tables, share_hooks
from dovetail.torch_compat.traced_numbers import Plain


@dataclass(frozen=True, slots=True)
class StepTensor:
    """A tensor that the step can reach. name: a Python name, of no other. label: what a user calls it."""

    name: str
    label: str
    role: InputRole
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepNumber:
    """A Python number that the program reads in each call. put: lets the step's code read another one."""

    name: str
    now: Plain
    put: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor that the step made and leaves, and what it stands for."""

    value: Value
    item: torch.Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as it is at one moment of a step, for who looks at it outside."""

    value: Value
    look: Look


def fake_for(mode: FakeMode, item: StepTensor, has_symbols: bool) -> torch.Tensor:
    """What a tensor is exchanged for. has_symbols: the sizes of arguments are symbols. Raises: UnsupportedTensor."""
    tensor = item.tensor
    if has_symbols and isinstance(item.role, UserInput):
        fake = symbolic_fake_of(mode, tensor.detach(), item.name)
    else:
        fake = fake_apart(mode, tensor)
    if isinstance(tensor, torch.nn.Parameter):
        fake = parameter_of_fake(fake)
    if tensor.requires_grad:
        fake.requires_grad_()
    share_hooks(tensor, fake)
    names = attributes_in_common(tensor, fake)
    if names:
        raise UnsupportedTensor(
            name=item.label,
            kind=f"a tensor with an attribute {names[0]!r}, which torch's fake tensors use",
            hint="give the attribute another name",
        )
    return fake


def look_of(tensor: torch.Tensor) -> Look:
    """What a tensor is besides its data."""
    node = tensor.grad_fn
    if node is not None:
        return Look(node.name().rpartition("::")[2])
    return Look("", tensor.requires_grad, isinstance(tensor, torch.nn.Parameter))


def repeated(values: Sequence[Value | SizeExpr], inputs: Sequence[Value]) -> tuple[int, ...]:
    """The places of tensors that were met before, among the values or the inputs."""
    met: set[Value | SizeExpr] = set(inputs)
    found = []
    for place, value in enumerate(values):
        if isinstance(value, Value) and value in met and value.is_tensor:
            found.append(place)
        met.add(value)
    return tuple(found)


def check_state(item: StepTensor, line_of: Callable[[torch.Tensor], Origin | None]) -> None:
    """Raises: UnsupportedTensor, StateChangedOtherwise for a tensor that cannot be part of a program.

    line_of: where the step's code names a tensor.
    """
    tensor = item.tensor
    refused = unsupported_kind(tensor) or unsupported_class(tensor)
    if is_lazy(tensor):
        refused = "a parameter of a lazy module, without a shape", "call the module with a batch before"
    if is_dtensor(tensor) and isinstance(item.role, UserInput):
        refused = (
            "a DTensor among the arguments",
            "pass its local part (x.to_local()), and make the DTensor in the step",
        )
    elif is_wrapper(tensor) and not is_dtensor(tensor):
        refused = f"a {type(tensor).__name__}, which wraps other tensors", "use plain tensors"
    if refused is not None:
        raise UnsupportedTensor(name=item.label, kind=refused[0], hint=refused[1], origin=line_of(tensor))
    if isinstance(item.role, UserInput) and any(hook_tables(tensor)):
        raise UnsupportedStep(
            what=f"receives {item.label}, which has gradient hooks",
            why="the next call gets another tensor, with other hooks or without",
            hint="register them in the step, on a view of it: x = x.view_as(x)",
            origin=line_of(tensor),
        )


def of_graph_from_before(label: str, origin: Origin | None) -> StateChangedOtherwise:
    """What to say of a step that uses a tensor which is part of a graph from before."""
    return StateChangedOtherwise(
        what=f"reaches {label}, which is part of a graph from before the step",
        why="a step runs backward only through values that it computed itself",
        hint="detach it before the step (x.detach()), or compute it in the step",
        origin=origin,
    )


def refuse_graph_before(item: StepTensor, required: bool, index: int, of_graphs: Mapping[int, Origin | None]) -> None:
    """Raises: StateChangedOtherwise for a tensor of a graph from before the step that the step does not only detach.

    of_graphs: by the numbers of such tensors, where the step's code names them.
    """
    if index in of_graphs and (item.tensor.grad is not None or item.tensor.requires_grad != required):
        raise of_graph_from_before(item.label, of_graphs[index])


def held_gradients(tensors: Sequence[StepTensor]) -> Iterator[tuple[int, StepTensor]]:
    """The gradients that tensors hold and that are not among them, each with the number of its tensor.

    Those that a step has to drop are left out. Raises: UnsupportedStep for a gradient that is an argument, too.
    """
    known = {id(item.tensor): item for item in tensors}
    for index, item in enumerate(tensors):
        gradient = item.tensor.grad if item.tensor.is_leaf else None
        if gradient is None or must_be_dropped(gradient):
            continue
        same = known.get(id(gradient))
        if same is None:
            made = StepTensor(f"{item.name}_grad", f"{item.label}.grad", HeldGradient(item.label), gradient)
            known[id(gradient)] = made
            yield index, made
        elif isinstance(same.role, UserInput):
            raise UnsupportedStep(
                what=f"receives {same.label}, which is the gradient of {item.label}",
                why="a program takes a gradient from its tensor, and backward may write it",
                hint=f"read {item.label}.grad in the step, or pass a copy (x.clone())",
            )


def must_be_dropped(gradient: torch.Tensor) -> bool:
    """Whether a step can only drop a gradient from before: a sparse one, or one with a graph (`create_graph=True`)."""
    return gradient.layout is not torch.strided or not gradient.is_leaf


def count_hooks(tables: Sequence[HookTable]) -> int:
    """How many hooks a tensor has."""
    return sum(len(table) for table in tables if table is not None)


def wrapper_left(tensor: torch.Tensor, origin: Origin | None) -> UnsupportedTensor:
    """What to say of a tensor made of others that the step returns, or leaves as a whole."""
    return UnsupportedTensor(
        name="a result of the step, or what it leaves",
        kind=f"a {type(tensor).__name__}, which wraps other tensors",
        hint="return its local part (x.to_local()), or all of it (x.full_tensor())",
        origin=origin,
    )


def unowned(tensor: torch.Tensor, origin: Origin | None) -> UnownedState:
    """What to say of a real tensor that nobody declared, and that the step writes."""
    return UnownedState(name=f"a tensor of shape {tuple(tensor.shape)}", origin=origin)
