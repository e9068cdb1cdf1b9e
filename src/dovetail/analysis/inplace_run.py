"""The two runs of the checker of in-place programs: the first defines the meaning, the second must have the same.

The second one refuses, node by node: an application of operands that the first one never applied it to, a write whose
outcome depends on the order in which elements are visited, a description of a value that is not true.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch

from dovetail.analysis.data_movement import NumberedTensor, layout_of
from dovetail.analysis.environment import Misfit
from dovetail.analysis.shadow_memory import Storage
from dovetail.analysis.symbolic_run import SymbolicRun, label_of
from dovetail.analysis.value_numbers import OperatorCall, ValueNumbers
from dovetail.errors import InplaceMismatch
from dovetail.ir.program import Node, Operand, Program, Value, values_in
from dovetail.ir.sizes import Number
from dovetail.ops.over_operands import may_lie_over
from dovetail.ops.prims import EXPECT
from dovetail.ops.views import addresses_storage, keeps_offset
from dovetail.torch_compat.dispatch import Overload


def mismatch(program: Program, detail: str, reason: str, node: Node | None = None) -> InplaceMismatch:
    """The error for a program, at a node if there is one to blame."""
    at = "" if node is None else label_of(node)
    origin = "" if node is None else str(node.origin)
    return InplaceMismatch(program=program.name, detail=detail, reason=reason, node=at, origin=origin)


class _Descriptions:
    """Compares what the program says of its tensors with where they lie."""

    def __init__(self, run: SymbolicRun) -> None:
        self.size = run.size
        self.homes: WeakKeyDictionary[Storage, tuple[torch.device, int]] = WeakKeyDictionary()
        self.storages: dict[int, ReferenceType[Storage]] = {}

    def disagreement(self, value: Value, place: NumberedTensor) -> str:
        """What is wrong about the description of a value; "" when nothing is."""
        meta, tensor, region = value.tensor, place.tensor, place.region
        shape, stride = (tuple(map(self.size, dims)) for dims in (meta.shape, meta.stride))
        steps = tuple(step if size != 1 else 0 for step, size in zip(stride, shape, strict=True))
        if shape != region.shape or meta.dtype != tensor.dtype or (region.count and steps != place.layout[1]):
            is_at = f"shape {list(region.shape)}, stride {list(region.stride)}, {tensor.dtype}"
            return f"it is described with shape {list(shape)}, stride {list(stride)}, {meta.dtype} and has {is_at}"
        if region.count and self.size(meta.offset) != region.offset:
            return f"it is described at offset {meta.offset}, and lies at offset {region.offset} of its storage"
        device, number = self.homes.setdefault(place.storage, (meta.device, meta.storage))
        storage = self.storages.setdefault(meta.storage, ref(place.storage))()
        if device != meta.device:
            return f"it is described on {meta.device}, and lies on {device}"
        if number != meta.storage:
            return f"it is described on storage {meta.storage}, and lies on the memory of storage {number}"
        if storage is not place.storage:
            return f"it is described on storage {meta.storage}, and lies on other memory"
        return ""


class FunctionalRun(SymbolicRun):
    """Says what everything means.

    crooked: values whose descriptions are not true already here. written_twice: copies into inputs that lie on
    themselves. displaced: values at another offset than they are described at, and what they lie on.
    """

    def __init__(self, program: Program, value_numbers: ValueNumbers, hints: Mapping[str, Number]) -> None:
        super().__init__(program, value_numbers, hints)
        self.descriptions = _Descriptions(self)
        self.crooked: set[str] = set()
        self.written_twice: set[Hashable] = set()
        self.displaced: dict[str, Storage] = {}

    def step(self, node: Node) -> None:
        """Run one node, and note results that begin elsewhere in their storage than they are described."""
        super().step(node)
        result = next(iter(node.results()), None) if keeps_offset(node.target) else None
        if result is None:
            return
        like = self.place(node.args[0])
        is_displaced = any(other is like.storage for other in self.displaced.values())
        if is_displaced or self.size(result.tensor.offset) != like.region.offset:
            self.displaced[result.name] = self.place(result).storage

    def sees_write(self, node: Node, call: OperatorCall, written: Sequence[NumberedTensor]) -> None:
        """Note writes to regions that lie on themselves."""
        for place in written:
            if place.storage.is_input and call.base == "aten::copy" and place.region.overlaps_itself():
                self.written_twice.add(self._copy(call, place))

    def _copy(self, call: OperatorCall, place: NumberedTensor) -> Hashable:
        """Where a copy into an input goes, and what is copied."""
        source = call.arguments[1][1]
        return (self.position(place), place.region.key, self.sees(source) if isinstance(source, Value) else source)

    def sees_result(self, value: Value, place: NumberedTensor) -> None:
        """Note wrong descriptions."""
        if self.descriptions.disagreement(value, place):
            self.crooked.add(value.name)

    def position(self, place: NumberedTensor) -> int:
        """The first input on the storage of a tensor."""
        return next(
            i for i, b in enumerate(self.inputs) if isinstance(b, NumberedTensor) and b.storage is place.storage
        )


class InPlaceRun(FunctionalRun):
    """Must mean the same, and write only what it may.

    suspect: the first application that was never meant. Where it only computes something else, element by element, it
    may be that nobody needs the result: then it is not a mistake.
    """

    def __init__(self, program: Program, meant: FunctionalRun, commit: bool) -> None:
        super().__init__(program, meant.value_numbers, meant.hints)
        self.meant = meant
        self.commit = commit
        self.committed = ""
        self.suspect: InplaceMismatch | None = None

    def step(self, node: Node) -> None:
        """Run one node; refuse a view of a storage by its places where they are not those that were meant."""
        if isinstance(node.target, Overload) and addresses_storage(node.target, node.args):
            storage = self.place(node.args[0]).storage
            for name, other in self.displaced.items():
                if other is storage and name not in self.meant.displaced:
                    raise Misfit(f"it looks for places on the storage of {name}, which begins elsewhere")
        super().step(node)

    def sees_application(self, node: Node, call: OperatorCall, name: Hashable, operands: Sequence[Hashable]) -> None:
        """Refuse what the functional program did not apply, and what fails too late."""
        if self.value_numbers.find(name, operands) is None:
            self.suspect = self.suspect or self._unknown(node, call, name, operands)
            if not (call.pointwise and not call.draws and not call.effect):
                raise self.suspect
        can_fail = node.target is EXPECT or (call.effect and not call.draws and not call.writes and not node.outputs)
        if self.commit and self.committed and can_fail:
            detail = f"{label_of(node)} can fail after an input was written"
            raise mismatch(self.program, detail, f"{self.committed} writes an input before it", node)

    def sees_write(self, node: Node, call: OperatorCall, written: Sequence[NumberedTensor]) -> None:
        """Refuse writes whose outcome depends on the order in which elements are visited."""
        for index, place in enumerate(written):
            if place.region.overlaps_itself() and not self._is_excused(call, place):
                raise Misfit("it writes a tensor whose elements share bytes")
            for other in written[:index]:
                if place.overlaps(other):
                    raise Misfit("it writes two tensors that share bytes")
        elementwise = call.pointwise or call.base == "aten::copy"
        over = None if elementwise else may_lie_over(node.target, node.args)
        for name, value in self._only_read(call):
            read = self.place(value)
            for place in written:
                shares = place is read or place.overlaps(read)  # torch compares tensors, empty ones too
                if shares and not ((elementwise or value is over) and place.is_at(read)):
                    raise Misfit(f"it writes bytes that it reads through operand {name!r}, {value.name}")
        if any(place.storage.is_input for place in written):
            self.committed = self.committed or label_of(node)

    def sees_copies(self, node: Node, target: Overload) -> None:
        """Refuse copies that are described with another layout than they get."""
        args, kwargs = self._without_memory(node.args), {k: self._without_memory(o) for k, o in node.kwargs}
        try:
            made: Any = target(*args, **kwargs)
        except RuntimeError:
            return  # not made for that device
        results = [made] if isinstance(made, torch.Tensor) else made
        for value, result in zip(node.outputs, results, strict=False):
            if value is None or value.name in self.meant.crooked:
                continue
            described = layout_of(self.described(value.tensor))
            if described != layout_of(result):
                raise Misfit(f"{value.name} is described as {described}, and is {layout_of(result)}")

    def _without_memory(self, operand: Operand) -> Any:
        """An operand as torch takes it, on a device that computes layouts only."""
        if isinstance(operand, Value) and operand.is_tensor:
            tensor = self.place(operand).tensor
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        if isinstance(operand, tuple | list):
            return [self._without_memory(item) for item in operand]
        return torch.device("meta") if isinstance(operand, torch.device) else self.concrete(operand)

    def _is_excused(self, call: OperatorCall, place: NumberedTensor) -> bool:
        if not place.storage.is_input or call.base != "aten::copy":
            return False
        return self._copy(call, place) in self.meant.written_twice

    def _only_read(self, call: OperatorCall) -> Iterator[tuple[str, Value]]:
        """Tensors that a call reads, but for those that it writes as the same argument."""
        written = {write.argument for write in call.writes}
        for name, operand in call.arguments:
            if name not in written:
                yield from ((name, value) for value in values_in(operand) if value.is_tensor)

    def sees_result(self, value: Value, place: NumberedTensor) -> None:
        """Refuse descriptions that are not true."""
        wrong = self.descriptions.disagreement(value, place)
        if wrong and value.name not in self.meant.crooked:
            raise Misfit(f"{value.name}: {wrong}")

    def _difference(self, operand: Operand, seen: Hashable, meant: Hashable) -> str:
        """How what an operator sees of an operand differs from what it saw, if that can be said."""
        tensors = [value for value in values_in(operand) if value.is_tensor]
        if not tensors:
            return ""
        if isinstance(operand, Value) and isinstance(seen, tuple) and isinstance(meant, tuple) and seen[0] == meant[0]:
            return f": it looks like {seen[1:]}, and not like {meant[1:]}"
        writers = sorted({self.place(value).storage.last_writer or "nobody" for value in tensors})
        return f"; its memory was last written by {', '.join(writers)}"

    def _unknown(self, node: Node, call: OperatorCall, name: Hashable, operands: Sequence[Hashable]) -> InplaceMismatch:
        """The message for an application that the functional program never made."""
        nearest = self.value_numbers.nearest(name, operands)
        if nearest is None:
            turn = " at this turn among draws and effects" if call.draws or call.effect else ""
            detail = f"{label_of(node)} is applied{turn}, which it never was"
            return mismatch(self.program, detail, "each application must be one of the functional program", node)
        like, others = nearest
        reasons = []
        for index, (seen, meant) in enumerate(zip(operands, others, strict=False)):
            if seen != meant:
                argument, operand = call.arguments[index]
                text = f"operand {argument or index!r} ({operand}) is not what {like} meant"
                reasons.append(text + self._difference(operand, seen, meant))
        detail = f"{label_of(node)} does not read what it read before"
        return mismatch(self.program, detail, "\n".join(reasons), node)
