"""What a recorded function did to its inputs: to their data, their shape and strides, and their `requires_grad`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from dovetail.analysis.alias_pattern import Accesses
from dovetail.analysis.pairs import overlaps_itself
from dovetail.analysis.region import extent_bytes
from dovetail.capture.functionalize import Functionalizer, ViewStep
from dovetail.capture.inputs import StandIn
from dovetail.capture.recorder import Recorder
from dovetail.errors import PythonSideEffect, UnsupportedInputMutation
from dovetail.ir.calling import GradientFlag, MetadataChange, ReplayStep
from dovetail.ir.program import Value, symbols_in
from dovetail.ir.signature import WriteKind
from dovetail.ops.views import addresses_storage
from dovetail.torch_compat.autograd import version_counter_classes, version_of
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.tensor_hooks import has_hooks


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Shape and strides that an input had, and the views that lead from there to what it has now."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[ReplayStep, ...]


@dataclass(frozen=True, slots=True)
class InputChanges:
    """By number of the input.

    writes: how each written input was written. view_writes: views that were written although they leave the region of
    their input, with its number. unlike_eager: names of inputs whose gradient would not be eager's. touched: wrappers
    of which a part was written by an operator on the wrapper. reshaped: inputs that autograd saw written and whose
    shape was changed. asked: inputs of which it matters whether they are views. The others: see `ir.calling.CallPlan`.
    """

    writes: Mapping[int, WriteKind]
    view_writes: tuple[tuple[int, Value, WriteKind], ...]
    metadata: tuple[MetadataChange, ...]
    flags: tuple[GradientFlag, ...]
    unlike_eager: tuple[str, ...]
    touched: Mapping[int, WriteKind]
    reshaped: Mapping[int, Reshaped]
    asked: frozenset[int]

    @staticmethod
    def of(stand_ins: Sequence[StandIn], recorder: Recorder, functional: Functionalizer) -> InputChanges:
        """Compare each input with what it was before. A stand-in that became a leaf inside gets itself as `leaf`.

        Raises: UnsupportedInputMutation or PythonSideEffect for a change that no compiled program can repeat.
        """
        _refuse_hooks(stand_ins)
        own = _Writes(stand_ins, recorder, functional)
        writes = {
            index: own.kind(stand_in)
            for index, stand_in in enumerate(stand_ins)
            if stand_in.rule is None and functional.write_count(stand_in.value)
        }
        touched = {
            index: _followed_kind(stand_in) or WriteKind.UNTRACKED
            for index, stand_in in enumerate(stand_ins)
            if stand_in.is_wrapper and not stand_in.is_matrix and version_of(stand_in.seen) != stand_in.version
        }
        views = tuple(
            (index, view, own.kind(stand_ins[index], view))
            for view, index in _addressed_views(stand_ins, functional)
            if functional.write_count(view) and not functional.is_view_of(view, stand_ins[index].value)
        )
        followed = {i for i, kind in [*writes.items(), *((i, k) for i, _, k in views)] if kind is WriteKind.TRACKED}
        unlike = tuple(
            stand_ins[index].declared.name
            for view, index in _addressed_views(stand_ins, functional)
            if index in followed and _is_seen_otherwise(view, stand_ins[index], recorder)
        )
        metadata = _metadata_changes(stand_ins, recorder)
        _refuse_unseen({change.input for change in metadata}, stand_ins)
        reshaped = {
            change.input: Reshaped(
                *_known_layout(stand_ins[change.input]), _steps_between(stand_ins[change.input], recorder, functional)
            )
            for change in metadata
            if writes.get(change.input) is WriteKind.TRACKED
        }
        asked = frozenset(
            index
            for index, s in enumerate(stand_ins)
            if s.rule is None and isinstance(s.seen, torch.Tensor) and s.declared.is_tensor
            if recorder.views.of_inputs.is_asked(s.seen)
        )
        return InputChanges(writes, views, metadata, _gradient_flags(stand_ins), unlike, touched, reshaped, asked)


def _refuse_hooks(stand_ins: Sequence[StandIn]) -> None:
    """In eager, a hook on an input stays, and sees what arrives there from outside this program as well."""
    for stand_in in stand_ins:
        if isinstance(stand_in.seen, torch.Tensor) and is_fake(stand_in.seen) and has_hooks(stand_in.seen):
            raise PythonSideEffect(what=f"registered a gradient hook on the input {stand_in.declared.name}")


def replay_steps(steps: tuple[ViewStep, ...]) -> tuple[ReplayStep, ...]:
    """Steps of the functionalizer, to be made again on another tensor."""
    return tuple(ReplayStep(step.node.target, step.node.args[1:], step.node.kwargs, step.index) for step in steps)


def steps_from_argument(
    value: Value, argument_of: Mapping[Value, int], functional: Functionalizer
) -> tuple[int, tuple[ViewStep, ...]] | None:
    """The nearest argument that a value was made of by views, and these; None where there is none.

    They are those that the code has made: one by an address that lies outside of what it was made of is among them.
    """
    made: list[ViewStep] = []
    while value not in argument_of:
        step = functional.step_of(value)
        if step is None:
            return None
        made.append(step)
        owner = step.node.args[0]
        is_view = isinstance(owner, Value) and owner.is_tensor and owner.tensor.storage == value.tensor.storage
        value = owner if is_view and isinstance(owner, Value) else step.parent
    return argument_of[value], tuple(reversed(made))


def _is_seen_otherwise(view: Value, stand_in: StandIn, recorder: Recorder) -> bool:
    """Whether autograd looks at a view through its base in eager, and through what it was made of on fakes."""
    if not any(tensor.requires_grad for tensor in recorder.tensors_of(view)):
        return False
    has_base = stand_in.followed is not stand_in.seen or stand_in.value.tensor.offset == 0
    return not has_base or extent_bytes(view.tensor) != _within(view, stand_in.value)


def _within(view: Value, base: Value) -> tuple[int, int] | None:
    """The bytes of a view that lie in the range of another value."""
    inner, outer = extent_bytes(view.tensor), extent_bytes(base.tensor)
    if inner is None or outer is None:
        return None
    return max(inner[0], outer[0]), min(inner[1], outer[1])


class _Writes:
    """Who wrote what: for each value, the tensors that operators wrote on it or on a view of it, with the grad mode."""

    def __init__(self, stand_ins: Sequence[StandIn], recorder: Recorder, functional: Functionalizer) -> None:
        self._of: dict[Value, list[tuple[torch.Tensor, bool]]] = {}
        for written, tensor, mode in recorder.written:
            value: Value | None = written
            while value is not None:
                self._of.setdefault(value, []).append((tensor, mode))
                step = functional.step_of(value)
                value = None if step is None else step.parent
        self._families: dict[int, list[StandIn]] = {}
        for stand_in in stand_ins:
            self._families.setdefault(id(stand_in.followed), []).append(stand_in)

    def kind(self, stand_in: StandIn, part: Value | None = None) -> WriteKind:
        """How an input (or a part of its memory) was written; a write counts when what it wrote counts with it."""
        written = self._of.get(stand_in.value if part is None else part, [])
        relatives = [s for s in self._families[id(stand_in.followed)] if s is not stand_in]
        explained = any(mode for relative in relatives for _, mode in self._of.get(relative.value, ()))
        if not written or any(mode for _, mode in written) or not explained:
            tracked = _followed_kind(stand_in)  # a change that a write to a relative explains is not this input's
            if tracked is not None:
                return tracked
        if stand_in.is_part or not is_fake(stand_in.seen):  # operators on wrappers may not count
            return WriteKind.HIDDEN if version_of(stand_in.seen) == stand_in.version else WriteKind.UNTRACKED
        seen, *others = version_counter_classes([stand_in.seen, *(tensor for tensor, _ in written)])
        counted = seen in others or any(tensor is stand_in.seen for tensor, _ in written)
        if counted and stand_in.requires_grad and not stand_in.was_leaf:
            _refuse_shared_elements(stand_in)  # eager asks again how it was made, and averages over such elements
        return WriteKind.UNTRACKED if counted else WriteKind.HIDDEN


def _followed_kind(stand_in: StandIn) -> WriteKind | None:
    assert stand_in.followed is not None, "only tensors are written"
    now = stand_in.followed.grad_fn
    if now is None or now is stand_in.grad_fn:
        return None
    _refuse_shared_elements(stand_in)
    return WriteKind.TRACKED


def _refuse_shared_elements(stand_in: StandIn) -> None:
    if overlaps_itself(stand_in.value.tensor).may_overlap:
        raise UnsupportedInputMutation(what="elements that share bytes", name=stand_in.declared.name)


def _metadata_changes(stand_ins: Sequence[StandIn], recorder: Recorder) -> tuple[MetadataChange, ...]:
    number = {id(s.seen): i for i, s in enumerate(stand_ins) if isinstance(s.seen, torch.Tensor) and s.rule is None}
    changes = [
        MetadataChange(number[id(tensor)], target, args)
        for tensor, target, args in recorder.metadata_changes
        if id(tensor) in number
    ]
    changed = {change.input for change in changes}
    for index, stand_in in enumerate(stand_ins):
        if not isinstance(stand_in.seen, torch.Tensor) or stand_in.rule is not None or stand_in.is_matrix:
            continue
        if not stand_in.is_wrapper and stand_in.seen.untyped_storage().nbytes() != stand_in.storage_bytes:
            raise UnsupportedInputMutation(what="the size of the storage", name=stand_in.declared.name)
        if index in changed:
            continue
        if recorder.value_of(stand_in.seen) is not stand_in.value:
            raise UnsupportedInputMutation(what="the shape or strides", name=stand_in.declared.name)
    return tuple(changes)


def _refuse_unseen(changed: Iterable[int], stand_ins: Sequence[StandIn]) -> None:
    """Refuse changes of shape or strides that autograd has not seen: gradients are for what each tensor was."""
    for stand_in in map(stand_ins.__getitem__, changed):
        name, seen = stand_in.declared.name, stand_in.seen
        if stand_in.requires_grad and seen.grad_fn is stand_in.grad_fn:
            raise UnsupportedInputMutation(what="the shape or strides, unseen by autograd,", name=name)
        is_new_leaf = seen.requires_grad and seen.is_leaf
        if is_new_leaf and list(stand_in.value.tensor.shape) != list(seen.shape):
            raise UnsupportedInputMutation(what="the shape and requires_grad", name=name)


def _known_layout(stand_in: StandIn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides that an input had."""
    meta = stand_in.value.tensor
    shape = tuple(n for n in meta.shape if isinstance(n, int))
    strides = tuple(n for n in meta.stride if isinstance(n, int))
    if len(shape) + len(strides) < 2 * len(meta.shape):
        what = "the shape, which is symbolic, and the data, tracked by autograd,"
        raise UnsupportedInputMutation(what=what, name=stand_in.declared.name)
    return shape, strides


def _steps_between(stand_in: StandIn, recorder: Recorder, functional: Functionalizer) -> tuple[ReplayStep, ...]:
    """The views from what an input was to what it is."""
    steps: list[ViewStep] = []
    value = recorder.value_of(stand_in.seen)
    unclear = overlaps_itself(value.tensor).may_overlap
    while value is not stand_in.value:
        step = functional.step_of(value)
        assert step is not None, "a changed shape is a view of the shape before"
        unclear |= any(symbols_in((step.node.args, [a for _, a in step.node.kwargs])))
        steps.append(step)
        value = step.parent
    if unclear:
        what = "the shape, in a way that autograd cannot track,"
        raise UnsupportedInputMutation(what=what, name=stand_in.declared.name)
    return replay_steps(tuple(reversed(steps)))


def _gradient_flags(stand_ins: Sequence[StandIn]) -> tuple[GradientFlag, ...]:
    flags: list[GradientFlag] = []
    for index, stand_in in enumerate(stand_ins):
        if not isinstance(stand_in.seen, torch.Tensor) or stand_in.rule is not None:
            continue
        now = stand_in.seen.requires_grad
        if now == stand_in.requires_grad or stand_in.seen.grad_fn is not None:
            continue
        if stand_in.grad_fn is not None:
            raise UnsupportedInputMutation(what="the gradient graph (`detach_`)", name=stand_in.declared.name)
        flags.append(GradientFlag(index, now, before=now))
        stand_in.leaf = stand_in.seen.requires_grad_()  # off again, it gets no gradient, but what was computed asks it
    return tuple(flags)


# --- accesses ---------------------------------------------------------------------------------------------------------


def accesses_of(
    stand_ins: Sequence[StandIn], changes: InputChanges, functional: Functionalizer, late: Collection[int]
) -> Accesses:
    """What a program does to its arguments, numbered without the extra inputs. late: inputs that backward writes."""
    position: dict[int, int] = {}
    for index, stand_in in enumerate(stand_ins):
        if stand_in.rule is None:
            position[index] = len(position)
    kinds = [*changes.writes.items(), *((index, kind) for index, _, kind in changes.view_writes)]
    reach: set[tuple[int, int, tuple[int, int]]] = set()
    for view, index in _addressed_views(stand_ins, functional):
        region, offset = extent_bytes(view.tensor), stand_ins[index].value.tensor.offset
        if region is not None and isinstance(offset, int):
            reach.add((position[index], offset, region))
        elif functional.write_count(view):
            name = stand_ins[index].declared.name
            raise UnsupportedInputMutation(what="memory at an address of symbolic size", name=name)
    return Accesses(
        frozenset(position[i] for i in (*(index for index, _ in kinds), *late)),
        frozenset(position[i] for i, kind in (*kinds, *changes.touched.items()) if kind is WriteKind.TRACKED),
        frozenset(reach),
        frozenset(position[i] for i in changes.asked),
    )


def _addressed_views(stand_ins: Sequence[StandIn], functional: Functionalizer) -> Iterator[tuple[Value, int]]:
    """Views of arguments that are made by absolute address, each with the number of its argument."""
    numbers = {s.value: i for i, s in enumerate(stand_ins) if s.rule is None and s.value.is_tensor}
    for view, step in functional.views():
        if isinstance(step.node.target, Overload) and addresses_storage(step.node.target, step.node.args):
            owner = step.node.args[0]
            while isinstance(owner, Value) and owner not in numbers:
                above = functional.step_of(owner)
                owner = above.node.args[0] if above is not None else None
            if isinstance(owner, Value):
                yield view, numbers[owner]
