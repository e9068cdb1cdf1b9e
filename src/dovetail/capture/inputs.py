"""What a recorded function sees for its inputs: fake tensors that share memory, and a gradient graph, as the real ones.

Inputs in a group of an `AliasPattern` lie in one fake flat tensor, which is an input of the program of its own; the
program begins with the views of it that the inputs are. What autograd knows of the sharing is a separate matter: the
members of a family are made as views of one fake base, which receives their gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from dovetail.analysis.alias_pattern import AliasPattern, Family, FlatPlace, Group
from dovetail.capture.functionalize import Functionalizer, Infer
from dovetail.capture.real_tensors import Met
from dovetail.capture.recorder import Recorder
from dovetail.capture.shown_bytes import views_shown
from dovetail.errors import DataDependentControlFlow, OverlappingMutatedInputs
from dovetail.ir.calling import FlatBytes, InputRule, ViewBase
from dovetail.ir.program import Value
from dovetail.ir.signature import Constant, GradientBase, InputRole, SharedBytes
from dovetail.ops.grafting import graft
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.fakes import FakeMode, keep_number
from dovetail.torch_compat.sparse import Form
from dovetail.torch_compat.subclasses import AnyLayout, as_parameter, is_wrapper, put_together, take_apart


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of the function to record.

    value: a fake tensor, or a number (symbolic or not); None for a wrapper of tensors, which is put together by
    `layout` from the inputs `parts`. Of a sparse matrix, `parts` are what a program reads.
    """

    name: str
    role: InputRole
    value: Any
    requires_grad: bool = False
    is_leaf: bool = True
    is_parameter: bool = False
    layout: AnyLayout | None = None
    parts: tuple[int, ...] = ()


def with_parts(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, then the tensors that wrappers among them are made of."""
    return [*inputs, *(part for x in inputs if is_wrapper(x) for part in take_apart(x)[0])]


@dataclass(slots=True)
class StandIn:
    """One input of the program.

    seen: what the function sees. value: the recorded value of it. declared: the program's input; another value when the
    input is a view of shared bytes. leaf: the tensor whose gradient is taken. followed: the tensor whose gradient
    function a write changes when autograd follows it. rule: how the wrapper finds it, None for an input of the call or
    a constant. is_matrix: it is a sparse matrix, of which the program reads the parts.
    """

    seen: Any
    value: Value
    declared: Value
    role: InputRole
    leaf: torch.Tensor | GradientEdge | None = None
    followed: torch.Tensor | None = None
    version: int = 0
    grad_fn: object = None
    requires_grad: bool = False
    was_leaf: bool = True
    rule: InputRule | None = None
    is_wrapper: bool = False
    is_part: bool = False
    is_matrix: bool = False
    storage_bytes: object = 0


def _as_input(
    fake: torch.Tensor, requires_grad: bool, is_leaf: bool, is_parameter: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tensor to show, and the leaf that receives its gradient."""
    if not requires_grad:
        is_frozen = is_parameter and not is_wrapper(fake)
        return (torch.nn.Parameter(fake, False) if is_frozen else fake), None
    if is_leaf:
        if not is_parameter:
            leaf = fake.requires_grad_()
        else:
            leaf = as_parameter(fake) if is_wrapper(fake) else torch.nn.Parameter(fake)
        return leaf, leaf
    leaf = fake.detach().requires_grad_()
    with torch.enable_grad():
        return graft(fake, leaf), leaf


class InputMaker:
    """Makes the stand-ins of `specs`; constants are real tensors known to be met, in order, with their names."""

    def __init__(
        self,
        mode: FakeMode,
        recorder: Recorder,
        specs: Sequence[InputSpec],
        alias_pattern: AliasPattern,
        constants: Sequence[torch.Tensor],
    ) -> None:
        self.mode = mode
        self.recorder = recorder
        self.specs = specs
        self.alias_pattern = alias_pattern
        self.constants = constants
        self.extra: list[StandIn] = []
        self.made: dict[int, StandIn] = {}

    def make(self) -> list[StandIn]:
        """One stand-in per input of the program: the specs, flat tensors and bases, the constants."""
        for group in self.alias_pattern.groups:
            self._make_group(group)
        for index, spec in enumerate(self.specs):
            if index not in self.made and spec.layout is None:
                self.made[index] = self._alone(spec, index in self.alias_pattern.views)
        for index, spec in enumerate(self.specs):
            if spec.layout is not None:
                self.made[index] = self._wrapper(spec, spec.layout)
        arguments = [self.made[index] for index in range(len(self.specs))]
        first = len(self.specs)
        constants = [self._constant(tensor, self.made.get(first + k)) for k, tensor in enumerate(self.constants)]
        return [*arguments, *self.extra, *constants]

    def _alone(self, spec: InputSpec, is_view: bool) -> StandIn:
        if not isinstance(spec.value, torch.Tensor):
            number = self.recorder.add_number(spec.value, spec.name)
            return StandIn(spec.value, number, number, spec.role)
        fake = keep_number(spec.value, spec.value.data)  # views among the inputs do not count versions together here
        base = fake
        if is_view and not spec.is_leaf:
            raise DataDependentControlFlow(
                operator=f"the input {spec.name}, a view with a gradient graph, for its base"
            )
        if is_view:
            fake = keep_number(spec.value, self.recorder.views.of_inputs.view_of_hidden(base))
        seen, leaf = _as_input(fake, spec.requires_grad, spec.is_leaf, spec.is_parameter)
        value = self.recorder.add_tensor(seen, spec.name)
        if fake is not base:
            self.recorder.add_alias(base, value)
        return _stand_in(seen, value, value, spec.role, leaf)

    def _wrapper(self, spec: InputSpec, layout: AnyLayout) -> StandIn:
        parts = [self.made[part] for part in spec.parts]
        for part in parts:
            part.is_part = True
        if isinstance(layout, Form):
            fake = spec.value.detach()  # each recording has its own
            value = self.recorder.add_matrix(fake, spec.name, layout, [part.seen for part in parts])
            return StandIn(fake, value, value, spec.role, is_wrapper=True, is_matrix=True)
        fake = put_together(layout, [part.seen for part in parts])
        seen, leaf = _as_input(fake, spec.requires_grad, spec.is_leaf, spec.is_parameter)
        value = self.recorder.add_tensor(seen, spec.name)
        made = _stand_in(seen, value, value, spec.role, leaf)
        made.is_wrapper = True
        return made

    def _constant(self, tensor: torch.Tensor, made: StandIn | None) -> StandIn:
        if made is None:
            value = self.recorder.value_of(tensor)
            return constant_stand_in(self.recorder.reals.of(tensor), value)
        self.recorder.constants.append((tensor, made.declared))
        return made

    # --- groups ---------------------------------------------------------------------------------------------

    def _make_group(self, group: Group) -> None:
        numbers = tuple(self._number(member.argument) for member in group.members)
        with self.mode:
            device = self._device(group)
            whole = torch.empty((group.start + group.length,), dtype=group.dtype, device=device)
        flat = whole.as_strided((group.length,), (1,), group.start).detach()
        name = f"shared_{len(self.extra)}"
        value = self.recorder.add_tensor(flat, name)
        rule = FlatBytes(self._number(group.leader), group.dtype, group.length, group.back)
        self.extra.append(StandIn(flat, value, value, SharedBytes(numbers), rule=rule))
        carriers: dict[int, torch.Tensor] = {}
        bases: list[torch.Tensor] = []
        for index, family in enumerate(group.families):
            carrier = carriers.setdefault(family.counter, flat.data)
            bases.append(self._make_family(index, family, group, carrier, flat))
        for member in group.members:
            if member.argument in self.made:
                continue
            family = group.families[member.family]
            seen_by_autograd = not (member.is_leaf and family.requires_grad)
            with torch.set_grad_enabled(seen_by_autograd):
                base = bases[member.family]
                offset = (
                    int(base.storage_offset())
                    + (member.place.offset_bytes - family.base.offset_bytes) // member.place.dtype.itemsize
                )
                seen = base.as_strided(member.place.shape, member.place.stride, offset)
            value = self._view_of_flat(flat, member.place, group, seen)
            self._place(member.argument, seen, value, None, base)

    def _make_family(
        self, index: int, family: Family, group: Group, carrier: torch.Tensor, flat: torch.Tensor
    ) -> torch.Tensor:
        """The fake base of a family; a stand-in of its own when it is not an argument and receives a gradient."""
        raw = _region(carrier, family.base, group).detach()
        is_parameter = family.is_argument and self._is_parameter(family.of)
        seen, leaf = _as_input(raw, family.requires_grad, family.is_leaf, is_parameter)
        value = self._view_of_flat(flat, family.base, group, seen)
        if family.is_argument:
            self._place(family.of, seen, value, leaf, seen)
        elif leaf is not None:
            numbers = tuple(self._number(m.argument) for m in group.members if m.family == index)
            declared = Value(f"base_{len(self.extra)}", value.meta)
            extra = StandIn(seen, value, declared, GradientBase(numbers), leaf, rule=ViewBase(self._number(family.of)))
            self.extra.append(extra)
        return seen

    def _place(
        self, argument: int, seen: torch.Tensor, value: Value, leaf: torch.Tensor | None, base: torch.Tensor
    ) -> None:
        """Let `seen`, a view of `base` as far as autograd knows, stand for an argument that lies in shared bytes."""
        if argument < len(self.specs):
            spec = self.specs[argument]
            declared = Value(spec.name, value.meta)
            self.made[argument] = _stand_in(seen, value, declared, spec.role, leaf, base)
            return
        tensor = self.constants[argument - len(self.specs)]
        name = f"constant_{argument - len(self.specs)}"
        if tensor.requires_grad:
            raise OverlappingMutatedInputs(
                written=name, other="another input", reason="a tensor that the function closes over requires a gradient"
            )
        self.recorder.let_stand_for(tensor, seen, value)
        self.made[argument] = _stand_in(tensor, value, Value(name, value.meta), Constant(name), None)

    def _view_of_flat(self, flat: torch.Tensor, place: FlatPlace, group: Group, seen: torch.Tensor) -> Value:
        """Record the views of the flat tensor that lead to `place`, and let `seen` stand for the result."""
        with torch.no_grad(), self.mode, self.recorder:
            region = _region(flat, place, group)
        value = self.recorder.value_of(region)
        self.recorder.add_alias(seen, value)
        return value

    def _number(self, argument: int) -> int:
        """The place of an argument among the inputs of the program."""
        return argument if argument < len(self.specs) else argument + self._extras

    @property
    def _extras(self) -> int:
        return sum(
            1 + sum(1 for family in group.families if family.requires_grad and not family.is_argument)
            for group in self.alias_pattern.groups
        )

    def _device(self, group: Group) -> torch.device:
        return self._tensor(group.leader).device

    def _tensor(self, argument: int) -> torch.Tensor:
        count = len(self.specs)
        tensor = self.specs[argument].value if argument < count else self.constants[argument - count]
        assert isinstance(tensor, torch.Tensor), "groups are made of tensors"
        return tensor

    def _is_parameter(self, argument: int) -> bool:
        return argument < len(self.specs) and self.specs[argument].is_parameter


def _stand_in(
    seen: torch.Tensor,
    value: Value,
    declared: Value,
    role: InputRole,
    leaf: torch.Tensor | None,
    base: torch.Tensor | None = None,
) -> StandIn:
    followed = seen if base is None else base
    made = StandIn(seen, value, declared, role, leaf, followed, version_of(seen), followed.grad_fn, seen.requires_grad)
    made.was_leaf = seen.is_leaf
    made.storage_bytes = 0 if is_wrapper(seen) else seen.untyped_storage().nbytes()
    return made


def functionalizer_of(stand_ins: Sequence[StandIn], infer: Infer, new_storage: Callable[[], int]) -> Functionalizer:
    """What makes a program of these inputs functional."""
    shown = views_shown((s.declared, s.seen) for s in stand_ins if s.declared.is_tensor and not s.is_wrapper)
    return Functionalizer([s.declared for s in stand_ins], infer, new_storage, shown)


def constant_stand_in(met: Met, value: Value) -> StandIn:
    """The stand-in of a real tensor that was met while recording. Raises: UnsupportedInputMutation."""
    met.check(value.name)
    tensor, node = met.tensor, met.grad_fn
    requires_grad = tensor.requires_grad if node is None else met.requires_grad
    made = StandIn(tensor, value, value, Constant(value.name), met.leaf, tensor, met.version, node, requires_grad)
    made.storage_bytes = tensor.untyped_storage().nbytes()
    return made


def _region(flat: torch.Tensor, place: FlatPlace, group: Group) -> torch.Tensor:
    """The view of a flat tensor that lies at `place`, made by relative addresses: it holds wherever flat lies."""
    unit = group.dtype.itemsize
    extent = sum((n - 1) * s for n, s in zip(place.shape, place.stride, strict=True)) + 1
    first = place.offset_bytes // unit
    end = first + extent * place.dtype.itemsize // unit
    part = flat if (first, end) == (0, group.length) else flat[first:end]
    if place.dtype != group.dtype:
        part = part.view(place.dtype)
    if tuple(part.shape) == place.shape and tuple(part.stride()) == place.stride:
        return part if part is not flat else part.view(part.shape)
    return part.as_strided(place.shape, place.stride)
