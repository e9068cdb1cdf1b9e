"""From a recorded step to its functional program, and to the plan of what is done around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.capture.backed_zeros import nodes_with_memory
from dovetail.capture.changes import replay_steps
from dovetail.capture.functionalize import Functionalizer
from dovetail.capture.shown_bytes import views_shown
from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_sharded import MadeSharded
from dovetail.capture.step_tensors import MadeTensor, StepNumber, StepTensor, look_of, repeated
from dovetail.errors import UnsupportedStep
from dovetail.ir.calling import (
    CallPlan,
    FromConstant,
    FromInput,
    FromOutput,
    FromSlot,
    FromView,
    GradientExit,
    GradientFlag,
    LeafGradient,
    Look,
    Move,
    OutputRule,
    Rebuilt,
    WithLook,
    WriteBack,
)
from dovetail.ir.program import Program, Stage, Value, meta_symbols, symbols_in
from dovetail.ir.signature import (
    Constant,
    GradientLeft,
    HeldGradient,
    InputMutation,
    InputRole,
    NumberInput,
    NumberLeft,
    OutputRole,
    Parameter,
    Signature,
    UserOutput,
    WriteKind,
)
from dovetail.ir.sizes import SizeExpr, symbol


@dataclass(frozen=True, slots=True)
class StepPrograms:
    """tensors, numbers: which of those recorded are inputs of the programs, in order; tensors met in passing follow.
    infer: describes what operators make of values of the programs."""

    recorded: Program
    functional: Program
    plan: CallPlan
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    infer: MetaInference


Slot: TypeAlias = Callable[..., int]


class GradientsNotCleared(Exception):
    """The step looks at gradients from before, or leaves them, though it was expected to drop them."""


def not_cleared(sparse: str) -> Exception:
    """What is to be raised for such a step. sparse: the label of a tensor whose gradient from before is sparse."""
    if not sparse:
        return GradientsNotCleared()
    return UnsupportedStep(
        what=f"does not begin by dropping the sparse gradient of {sparse}",
        why="a program takes dense gradients of earlier calls only",
        hint="call optimizer.zero_grad() first, or create the layer with sparse=False",
    )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What is known of a step once it ran on fakes.

    values: of the tensors; number_values: of the numbers. held: by the number of a tensor, that of its gradient.
    locals: by the number of a tensor that is spread over processes, that of its local part.
    required: which tensors required gradients before. cleared: see `StepFunctions`. seeming:
    by tensor, the gradient that seemed to be there. exits: what `.grad` of each tensor is afterwards.
    """

    infer: MetaInference
    tensors: Sequence[StepTensor]
    values: Sequence[Value]
    numbers: Sequence[StepNumber]
    number_values: Sequence[Value]
    held: Mapping[int, int]
    locals: Mapping[int, int]
    required: Sequence[bool]
    cleared: Mapping[int, bool]
    seeming: Mapping[int, Value]
    results: Sequence[OutputRule | Value | MadeTensor]
    exits: Sequence[GradientExit | MadeTensor | MadeSharded]
    flags: Sequence[GradientFlag]
    left: Sequence[object]
    moves: Sequence[Move]

    def _touched(self, recorder: StepRecorder) -> set[Value]:
        """What operators take, or the step returns. Raises: GradientsNotCleared."""
        touched = {value for node in recorder.nodes for value in node.operands()}
        if not touched.isdisjoint(self.seeming.values()):
            raise GradientsNotCleared
        return touched | {self.values[found.input] for found in self.results if isinstance(found, FromInput)}

    def functionalized(self, recorder: StepRecorder) -> Functionalizer:
        """The recorded nodes, consumed."""
        constants = [value for _, value in recorder.constants]
        inputs = [*self.values, *constants, *self.number_values]
        tensors = [*zip(self.values, (item.tensor for item in self.tensors), strict=False)]
        shown = views_shown([*tensors, *((value, tensor) for tensor, value in recorder.constants)])
        functional = Functionalizer(inputs, self.infer, recorder.new_storage, shown)
        for node in recorder.nodes:
            functional.consume(node)
        known = len(recorder.nodes)
        recorder.sizes.ask()  # what was asked about sizes meanwhile
        for node in recorder.nodes[known:]:
            functional.consume(node)
        return functional

    def programs(
        self, recorder: StepRecorder, functional: Functionalizer, name: str, keep_gradients: bool
    ) -> StepPrograms:
        """See `StepRecording.programs`."""
        constants = [value for _, value in recorder.constants]
        touched = self._touched(recorder)
        outputs: list[tuple[OutputRole, Value | SizeExpr]] = []
        slots: dict[int, int] = {}

        def slot(role: OutputRole, value: Value | SizeExpr, item: object = None) -> int:
            if item is not None and id(item) in slots:
                return slots[id(item)]
            outputs.append((role, value))
            slots[id(item)] = len(outputs) - 1
            return len(outputs) - 1

        results = tuple(self._settled_results(slot, functional))
        gradients = tuple(self._gradients(recorder, touched, slot, keep_gradients))
        left = tuple(self._settled_left(place, value, slot) for place, value in enumerate(self.left))
        made = [(role, value, functional.read(value) if isinstance(value, Value) else value) for role, value in outputs]
        apart = repeated([value for _, _, value in made], [*self.values, *constants])
        written = [i for i, v in enumerate(self.values) if functional.write_count(v) and functional.read(v) is not v]
        read = {value for node in functional.nodes for value in node.operands()}.union(
            (value for _, _, value in made), (self.values[i] for i in written)
        )
        read |= set(self._with_sizes(read, constants, {name for node in recorder.nodes for name in node.symbols()}))
        tensors = tuple(i for i, value in enumerate(self.values) if value in read)
        used = tuple(i for i, value in enumerate(self.number_values) if value in read)
        place_of = {index: place for place, index in enumerate(tensors)}
        writes = tuple(WriteBack(i, len(made) + n, WriteKind.UNTRACKED) for n, i in enumerate(written))
        made += [
            (InputMutation(place_of[i], WriteKind.UNTRACKED), self.values[i], functional.read(self.values[i]))
            for i in written
        ]
        inputs = (*(self.values[i] for i in tensors), *constants, *(self.number_values[i] for i in used))
        roles: tuple[InputRole, ...] = (
            *(self.tensors[i].role for i in tensors),
            *(Constant(value.name) for value in constants),
            *(NumberInput(self.numbers[i].name) for i in used),
        )
        signature = Signature(roles, tuple(role for role, _, _ in made))
        recorded, new = tuple(value for _, value, _ in made), tuple(value for _, _, value in made)
        return StepPrograms(
            Program(name, Stage.IMPURE, inputs, tuple(recorder.nodes), recorded, signature),
            Program(name, Stage.WHOLE, inputs, nodes_with_memory(functional.nodes, new), new, signature),
            CallPlan(
                results,
                writes,
                differentiable=(),
                flags=tuple(self.flags),
                gradients=gradients,
                moves=tuple(self.moves),
                left=left,
                apart=apart,
            ),
            tensors,
            used,
            tuple(tensor for tensor, _ in recorder.constants),
            self.infer,
        )

    def _with_sizes(self, read: Collection[object], constants: Sequence[Value], wanted: set[str]) -> Iterator[Value]:
        """Tensors of which a program reads a size, and nothing else. wanted: sizes that operators get as numbers."""
        known = {name for value in (*self.values, *constants) if value in read for name in meta_symbols(value.meta)}
        for value in self.values:
            names = wanted.intersection(meta_symbols(value.meta))
            if not names <= known:
                known |= names
                yield value

    def _settled_results(self, slot: Slot, functional: Functionalizer) -> Iterator[OutputRule]:
        looking: dict[int, int] = {}  # results of one slot are one object
        for place, found in enumerate(self.results):
            if isinstance(found, MadeTensor):
                view = self._view_of_written(found.value, slot, functional)
                rule = _as_it_looks(view or FromSlot(slot(UserOutput(0), found.value, found.item)), found.item)
                first = looking.setdefault(id(found.item), place)
                yield FromOutput(first) if not isinstance(rule, FromSlot) and first != place else rule
            else:
                yield FromSlot(slot(UserOutput(0), found)) if isinstance(found, Value) else found

    def _view_of_written(self, value: Value, slot: Slot, functional: Functionalizer) -> FromView | None:
        """The view of an input that a result is, where the program writes that: it is made outside, on its memory."""
        root, steps = functional.chain_of(value)
        if root not in self.values or not functional.write_count(root) or functional.read(root) is root:
            return None
        view = FromView(self.values.index(root), True, replay_steps(steps), detach=True)
        for step in view.steps:
            for name in symbols_in((step.args, [argument for _, argument in step.kwargs])):
                size = symbol(name)
                slot(UserOutput(0), size, size)
        return view

    @staticmethod
    def _settled_left(place: int, value: object, slot: Slot) -> FromSlot | FromConstant:
        if isinstance(value, Value):
            return FromSlot(slot(NumberLeft(place), value))
        return value if isinstance(value, FromConstant) else FromConstant(value)

    def _gradients(self, recorder: StepRecorder, touched: set[Value], slot: Slot, keep: bool) -> Iterator[LeafGradient]:
        parts = set(self.locals.values())
        for index, found in enumerate(self.exits):
            held = self.held.get(index)
            item = self.tensors[index]
            is_cleared = (
                id(item.tensor) in self.cleared
                and held is not None
                and self.values[self.locals.get(held, held)] not in touched
            ) or index in self.seeming
            if (
                isinstance(item.role, HeldGradient)
                or index in parts
                or (
                    held is None
                    and found is GradientExit.NONE
                    and not (
                        self.required[index] or isinstance(item.role, Parameter)
                    )  # an optimizer asks each parameter
                )
            ):
                continue
            is_first = is_cleared and not self.cleared.get(id(item.tensor), True)
            exit_: FromSlot | WithLook | Rebuilt | GradientExit = GradientExit.NONE
            layout, found = (found.layout, found.part) if isinstance(found, MadeSharded) else (None, found)
            if not isinstance(found, MadeTensor):
                exit_ = found
            elif keep or not is_cleared or not self._is_updated(recorder, index):
                exit_ = FromSlot(slot(GradientLeft(item.name), found.value, found.item))
                if layout is not None:
                    exit_ = Rebuilt(layout, (exit_,))
                elif found.item.grad_fn is not None:
                    exit_ = WithLook(exit_, look_of(found.item))
            yield LeafGradient(index, held is not None, is_cleared, exit_, is_first)

    def _is_updated(self, recorder: StepRecorder, index: int) -> bool:
        """Whether the step writes a tensor, and has made use of its gradient so; else whoever calls the step may."""
        storage = self.values[self.locals.get(index, index)].tensor.storage
        return any(value.tensor.storage == storage for value, _, _ in recorder.written)


def _as_it_looks(rule: FromSlot | FromView, item: torch.Tensor) -> FromSlot | FromView | WithLook:
    """A tensor that the program computes, as eager mode hands it out."""
    look = look_of(item)
    return rule if look == Look() else WithLook(rule, look)
