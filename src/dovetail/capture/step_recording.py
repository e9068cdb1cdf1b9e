"""Record a whole training step: the user's own code runs once on fakes, forward, backward and optimizer.

Every tensor that exists before the step and that something reachable holds is exchanged, object by object, for a fake:
whoever holds a parameter, in a module, an optimizer's state or a closure, then holds a fake, and nothing has to be
looked up or patched. Afterwards everything is exchanged back, whatever happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.capture import step_sharded as sharded
from dovetail.capture.item_log import ItemHints
from dovetail.capture.left_modes import modes_left
from dovetail.capture.origins import OriginTracker
from dovetail.capture.recording_context import named_errors, recording_on_fakes
from dovetail.capture.seeming_gradients import SeemingGradients
from dovetail.capture.step_functions import StepFunctions, do_nothing
from dovetail.capture.step_moves import Moves
from dovetail.capture.step_origins import origin_of, refuse_unowned
from dovetail.capture.step_programs import GradientsNotCleared, RecordedStep, StepPrograms, not_cleared
from dovetail.capture.step_recorder import StepRecorder
from dovetail.capture.step_sharded import MadeSharded
from dovetail.capture.step_tensors import (
    MadeTensor,
    Seen,
    StepNumber,
    StepTensor,
    check_state,
    count_hooks,
    held_gradients,
    look_of,
    must_be_dropped,
    refuse_graph_before,
)
from dovetail.capture.step_text_results import number_result, text_result
from dovetail.errors import ReturnedState, UnsupportedStep
from dovetail.ir.calling import FromConstant, FromInput, FromOutput, GradientExit, GradientFlag, Move, OutputRule
from dovetail.ir.convert import tree_to_scalar
from dovetail.ir.program import Node, Origin, TensorMeta, Value
from dovetail.ir.signature import UserInput
from dovetail.ir.sizes import Number, Scalar
from dovetail.ops.facts import written_values
from dovetail.ops.layouts import is_absolute
from dovetail.reach.frames import put_unfollowed
from dovetail.torch_compat.autograd import backward_within
from dovetail.torch_compat.fakes import new_fake_mode
from dovetail.torch_compat.graph_leaves import engine_asked_about
from dovetail.torch_compat.hidden_fakes import hidden_fakes
from dovetail.torch_compat.modes import has_function_mode, unnoticed_mode
from dovetail.torch_compat.swapping import exchange_back, exchange_tensors, hook_tables, put_hook_tables
from dovetail.torch_compat.symbols import guard_trees, hint_of, new_shape_env
from dovetail.torch_compat.traced_maths import traced_maths
from dovetail.torch_compat.traced_numbers import handle_of, is_traced


class StepRecording:
    """Make one, call `run`, `leave` for each value that is wanted besides results, then `programs`.

    Attributes: dynamic; tensors: those given, then the gradients that they hold, then local parts; numbers; recorder;
    held, locals, moves, exits, flags: see `RecordedStep`; first_local, of the parts; hooked: labels of tensors that
    have more hooks afterwards, with the line; left, see `leave`.
    """

    def __init__(
        self,
        tensors: Sequence[StepTensor],
        numbers: Sequence[StepNumber],
        hints: ItemHints,
        *,
        assume_cleared: bool = False,
        dynamic: bool = False,
        line_of: Callable[[torch.Tensor], Origin | None] = lambda tensor: None,
        meta_stands_for: torch.device | None = None,
    ) -> None:
        """Prepare.

        meta_stands_for: see `new_fake_mode`. line_of: where code names a tensor. dynamic: sizes of arguments above 1
        become symbols. assume_cleared: the step is expected to begin by clearing gradients: where none is held, let one
        seem to be, to see it dropped.
        Raises: UnsupportedTensor, StateChangedOtherwise for a tensor that cannot be part of a program.
        """
        held = list(held_gradients(tensors))
        self.tensors = sharded.with_locals([*tensors, *(gradient for _, gradient in held)])
        for item in self.tensors:
            check_state(item, line_of)
        self.mode = new_fake_mode(new_shape_env() if dynamic else None, meta_stands_for=meta_stands_for)
        self.origins, self.dynamic = OriginTracker(), dynamic
        self.recorder = StepRecorder(self.origins, self.mode, hints)
        self.locals, self.first_local = sharded.places_of_locals(self.tensors), len(tensors) + len(held)
        self.held = {index: len(tensors) + k for k, (index, _) in enumerate(held)}
        self._required = [item.tensor.requires_grad for item in self.tensors]
        self._of_graphs = {i: line_of(x.tensor) for i, x in enumerate(self.tensors) if not x.tensor.is_leaf}
        self.numbers, self._values, self._number_values = list(numbers), list[Value](), list[Value]()
        self.left, self.flags = list[object](), list[GradientFlag]()
        self._done: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.exits: list[GradientExit | MadeTensor | MadeSharded] = []
        self.hooked, self.left_modes = dict[str, "Origin | None"](), dict[str, Any]()
        self._seeming = SeemingGradients(self.mode, self.recorder, self.tensors)
        self.results = list["OutputRule | Value | MadeTensor"]()
        self._moved = Moves(self.recorder, self.tensors, self._values)
        self.moves, self._hooks = list[Move](), [hook_tables(item.tensor) for item in self.tensors]
        self._hook_counts = list(map(count_hooks, self._hooks))
        self._assume_cleared, self._must_not_seem, self._must_drop = assume_cleared, False, ""
        self.look_at: Callable[[Sequence[Any]], None] = lambda _: None
        told, asked = self.recorder, partial(bool, self.recorder.questions)
        numbers_of = told.token_for, told.number_for, told.note_gradient, self._text_of
        self._functions = StepFunctions(
            self.origins, *numbers_of, told.set_data, told.dtype_of_numpy, self._look_at, asked
        )
        self._functions.has_made, self._functions.has_views = told.has_made, told.has_views
        self._functions.of_graphs = {id(tensors[i].tensor): tensors[i].label for i in self._of_graphs}

    # --- running --------------------------------------------------------------------------------------------

    def run(self, function: Callable[[], Sequence[Any]], around: AbstractContextManager[Any]) -> None:
        """Record `function()`, which runs the step and returns its results, flat. around: held while it runs.

        Raises: DovetailError, when every tensor is itself again.
        """
        torch.clear_autocast_cache()  # it knows parameters by what is exchanged
        with contextlib.ExitStack() as stack, sharded.sharded_kept(self.tensors), self._exchanged():
            stack.callback(self._functions.end)  # which knows the recording
            stack.callback(self.recorder.end)
            self._put_numbers()
            with recording_on_fakes(
                self.recorder, self.mode, self.origins, self._watched(around), contextlib.nullcontext()
            ):
                results = list(function())
                self._functions.of_graphs = {}  # it is not the step that asks from here on
                self.recorder.sizes.ask()
                self._raise_refusals()
                self._look_at_state()
                with self.recorder_paused():
                    self.results = [self._result(index, item) for index, item in enumerate(results)]
                    self.moves = list(map(self._move, self._moved.found))
        if self._must_not_seem or self._seeming.are_asked(self._functions.asked):
            raise not_cleared(self._must_drop)

    def _raise_refusals(self) -> None:
        """The step's own code may have caught what was raised, and have gone on with something else."""
        for refusal in (*self.recorder.refusals, *self._functions.refusals):
            raise refusal

    @contextlib.contextmanager
    def recorder_paused(self) -> Iterator[None]:
        """Nothing is recorded here."""
        count = len(self.recorder.nodes)
        yield
        del self.recorder.nodes[count:]

    @contextlib.contextmanager
    def _watched(self, around: AbstractContextManager[Any]) -> Iterator[None]:
        within, left = backward_within(self._in_backward), modes_left(self.left_modes)
        stand_ins = put_unfollowed(hidden_fakes(), traced_maths(), engine_asked_about(self._done))
        with left, around, stand_ins, within, self._functions, unnoticed_mode():
            yield

    def _in_backward(self, roots: Sequence[Any], adds: bool) -> AbstractContextManager[Any]:
        """What the code that backward calls runs in: a mode is not active in functions that it sees."""
        self.recorder.views.lay_out(roots)
        if adds and not self._must_drop:
            self._seeming.give_way(roots, self._functions.asked)
        return contextlib.nullcontext() if has_function_mode(self._functions) else self._functions

    @contextlib.contextmanager
    def _exchanged(self) -> Iterator[None]:
        """While active, the tensor objects are fakes."""
        fakes = [sharded.fake_or_itself(self.mode, item, self.dynamic) for item in self.tensors]
        gradients = [(i, item.tensor.grad) for i, item in enumerate(self.tensors) if item.tensor.is_leaf]
        try:
            for item, fake in zip(self.tensors, fakes, strict=True):
                if fake is item.tensor:
                    self._values.append(sharded.stand_in_value(item, self.recorder.new_storage()))
                    continue
                exchange_tensors(item.tensor, fake)
                self._done.append((item.tensor, fake))
                self.recorder.known.learn(item.tensor, fake)
                self._values.append(self.recorder.add_exchanged(item.tensor, item.name, fake))
            for index, gradient in gradients:
                if gradient is not None and must_be_dropped(gradient):
                    self._must_drop = self.tensors[index].label
                    self._seeming.let_seem(index)
                elif gradient is not None:
                    self.tensors[index].tensor.grad = gradient
                elif self._assume_cleared and self._required[index]:
                    self._seeming.let_seem(index)
            yield
        finally:
            self.recorder.put_gradients_back()
            for tensor, _ in self._done:
                if tensor.is_leaf:
                    tensor.grad = None
            for tensor, fake in reversed(self._done):
                exchange_back(tensor, fake)
            for item, tables in zip(self.tensors, self._hooks, strict=True):
                put_hook_tables(item.tensor, tables)

    def _put_numbers(self) -> None:
        for number in self.numbers:
            value = self.recorder.add_traced(number.name, number.now)
            self._number_values.append(value)
            number.put(self.recorder.trace_number(value, number.now))

    # --- what the step leaves ---------------------------------------------------------------------------------

    def _look_at_state(self) -> None:
        for index, item in enumerate(self.tensors):
            tensor = item.tensor
            if index not in self.locals:
                self._moved.look_at(index)
            refuse_graph_before(item, self._required[index], index, self._of_graphs)
            if count_hooks(hook_tables(tensor)) > self._hook_counts[index]:
                self.hooked[item.label] = self._functions.hooked.get(id(tensor))
            if tensor.requires_grad != self._required[index]:
                self.flags.append(GradientFlag(index, tensor.requires_grad, before=False))
            self.exits.append(self._exit(index, tensor))
        refuse_unowned(self.recorder)

    def _move(self, index: int) -> Move:
        """Where a tensor lies in the end: new memory is a result more."""
        to = self._moved.to_other(index)
        if to is not None:
            return Move(index, FromInput(to))
        item = self.tensors[index]
        self.results.append(self._outside_of_state(item.tensor, f"the memory of {item.label}"))
        return Move(index, FromOutput(len(self.results) - 1))

    def _exit(self, index: int, tensor: torch.Tensor) -> GradientExit | MadeTensor | MadeSharded:
        was_asked = id(tensor) in self._functions.asked
        gradient = tensor.grad
        if gradient is None:
            return GradientExit.NONE
        if index in self._seeming.found and self._seeming.found[index][0] is gradient:  # nothing has dropped it
            self._must_not_seem |= was_asked or self._is_used(self._seeming.found.pop(index)[1])
            return GradientExit.NONE
        if index in self.held and self.tensors[self.held[index]].tensor is gradient:
            return GradientExit.SAME
        if self.recorder.sparse.is_known(gradient):
            return self._exit_of_sparse(index)
        return sharded.made_of(gradient, self._outside_of_state, f"the gradient of {self.tensors[index].label}")

    def _is_used(self, seeming: Value) -> bool:
        """Whether it matters that there seemed to be a gradient."""
        return bool(self._must_drop) or any(seeming in node.operands() for node in self.recorder.nodes)

    def _exit_of_sparse(self, index: int) -> GradientExit:
        """A sparse gradient is not left behind. Raises: UnsupportedStep unless a dense one would not be either."""
        item = self.tensors[index]
        storage = self._values[index].tensor.storage
        is_updated = any(value.tensor.storage == storage for value, _, _ in self.recorder.written)
        if not (is_updated and (index in self._seeming.found or id(item.tensor) in self._functions.cleared)):
            self.recorder.refuse_sparse(f"it is left in {item.label}.grad")
        return GradientExit.NONE

    def _outside_of_state(self, tensor: torch.Tensor, what: str) -> Value:
        """The value of a tensor. Raises: ReturnedState when its memory belongs to the state."""
        value = self.recorder.value_of(tensor)
        for known, item in zip(self._values, self.tensors, strict=True):
            if known.tensor.storage == value.tensor.storage and not isinstance(item.role, UserInput):
                origin = self.recorder.renamed.get(id(tensor)) or origin_of(value, self.recorder.nodes)
                raise ReturnedState(what=what, name=item.label, origin=origin)
        return value

    def _result(self, index: int, item: Any) -> OutputRule | Value | MadeTensor:
        if isinstance(item, torch.SymInt) and not is_traced(item):
            item = self.recorder.number_for(item)
        if is_traced(item):
            return number_result(self.recorder, self.leave, item)
        if not isinstance(item, torch.Tensor):
            self.look_at([item])
            return text_result(self.recorder, self.leave, item) or FromConstant(item)
        place = next((i for i, known in enumerate(self.tensors) if known.tensor is item), None)
        if place is not None:
            return FromInput(place)
        self.recorder.value_of(item)
        if any(tensor is item for tensor, _ in self.recorder.constants):
            return FromConstant(item)
        if item.grad is not None if item.is_leaf else item.retains_grad:
            raise UnsupportedStep(
                what=f"returns a tensor that has a `.grad` (result {index})",
                why="the result is a new tensor, without `.grad`",
                hint="return the gradient as a separate result",
            )
        return MadeTensor(self._outside_of_state(item, f"result {index}"), item)

    def seen(self, tensor: torch.Tensor) -> Seen:
        """A tensor as it is now, though the step may write it later."""
        with torch.no_grad():
            return Seen(self.recorder.value_of(tensor.detach().clone()), look_of(tensor))

    def _text_of(self, tensor: torch.Tensor, convert: Callable[[Any], str]) -> str | None:
        return self.recorder.texts.mark_for(self.seen(tensor), convert)

    def _look_at(self, values: Sequence[Any]) -> None:
        self.recorder.refuse_of_graphs(values)
        self.look_at(values)

    def draw(self, now: Any) -> Any:
        """A number that is drawn before each run: an input."""
        name = f"drawn_{len(self.numbers)}"
        value = self.recorder.add_traced(name, now)
        self.numbers.append(StepNumber(name, now, do_nothing))
        self._number_values.append(value)
        return self.recorder.trace_number(value, now)

    def is_text(self, item: object) -> bool:
        """Whether an object is a text with parts that the program computes."""
        return isinstance(item, str) and self.recorder.texts.hold(item)

    def keep(self, item: object) -> int:
        """A result more, of which the caller of the step is not told. Returns: its place among the results."""
        with self.recorder_paused():
            self.results.append(self._result(len(self.results), item))
        return len(self.results) - 1

    def leave(self, number: object) -> int:
        """A value, or a traced or plain number, that is wanted after each run; they are numbered as they come."""
        self.left.append(handle_of(number) if is_traced(number) else number)
        return len(self.left) - 1

    def value_of_number(self, place: int) -> Value:
        """The input that a number, by its place among `numbers`, is."""
        return self._number_values[place]

    def values_of_tensors(self, tensors: Collection[torch.Tensor]) -> set[Value]:
        """The inputs that these tensor objects are."""
        pairs, wanted = zip(self.tensors, self._values, strict=True), set(map(id, tensors))
        return {v for item, v in pairs if id(item.tensor) in wanted}

    @property
    def inputs(self) -> list[Value]:
        """The values of the tensors, then of the numbers."""
        return [*self._values, *self._number_values]

    @property
    def size_conditions(self) -> list[Scalar]:
        """The facts about sizes of arguments that recording has relied on."""
        env = self.mode.shape_env
        facts = [] if env is None else [tree_to_scalar(tree) for tree in guard_trees(env)]
        return [fact for fact in facts if not self.recorder.sizes.is_about_data(fact)]

    @property
    def size_hints(self) -> dict[str, Number]:
        """A number for each size symbol."""
        found = {name: hint_of(number) for name, number in self.recorder.symbols.items()}
        return {name: number for name, number in found.items() if number is not None}

    def description_of(self, index: int) -> TensorMeta:
        """What is known of a tensor, its sizes in symbols."""
        return self._values[index].tensor

    def addressed(self) -> list[int]:
        """The tensors in whose storage recorded nodes name places."""
        nodes = filter(is_absolute, self.recorder.nodes)
        storages = {value.tensor.storage for node in nodes for value in node.operands() if value.is_tensor}
        return [index for index, value in enumerate(self._values) if value.tensor.storage in storages]

    def writes_state(self, node: Node) -> bool:
        """Whether a recorded node writes memory of an input."""
        storages = {value.tensor.storage for value in self._values}
        return any(value.tensor.storage in storages for value in written_values(node))

    def programs(self, name: str, *, keep_gradients: bool = False) -> StepPrograms:
        """The step as it ran, and as a functional program; outputs are results, gradients, numbers, new contents.

        keep_gradients: leave the gradients also where the step begins by clearing those from before.
        Raises: GradientsNotCleared.
        """
        recorder = self.recorder
        recorded = RecordedStep(
            infer=MetaInference(self.mode, {**recorder.symbols, **recorder.numbers_now}),
            tensors=self.tensors,
            values=self._values,
            numbers=self.numbers,
            number_values=self._number_values,
            held=self.held,
            locals=self.locals,
            required=[required and i not in self._of_graphs for i, required in enumerate(self._required)],
            cleared=self._functions.cleared,
            seeming=self._seeming.values,
            results=self.results,
            exits=self.exits,
            flags=self.flags,
            left=self.left,
            moves=self.moves,
        )
        with named_errors(self.origins):
            functional = recorded.functionalized(recorder)
        try:
            return recorded.programs(recorder, functional, name, keep_gradients)
        except GradientsNotCleared:
            raise not_cleared(self._must_drop) from None
