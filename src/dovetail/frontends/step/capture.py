"""Capture one call of a step: inspect its reachable state, record it on fakes, compile, and bind the program to its
objects.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch

from dovetail.capture.fully_sharded import found_among
from dovetail.capture.item_log import ItemHints
from dovetail.capture.origins import module_names
from dovetail.capture.sparse_operands import KnownMatrix
from dovetail.capture.step_recording import StepRecording
from dovetail.capture.step_tensors import StepNumber, StepTensor
from dovetail.capture.step_texts import Texts
from dovetail.errors import DovetailError, UnsupportedStep
from dovetail.frontends.argument_objects import ArgumentObjects
from dovetail.frontends.step.argument_attributes import kept_attributes
from dovetail.frontends.step.attempts import ManyChoices, MoreIsRead, StateToMake, free_locals
from dovetail.frontends.step.captured_memory import refuse_set, torch_generators
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.draws import Draws
from dovetail.frontends.step.guard import StepCall
from dovetail.frontends.step.held_arrays import HeldArrays
from dovetail.frontends.step.held_maths import maths_by_name
from dovetail.frontends.step.host_calls import HostCalls
from dovetail.frontends.step.json_texts import numbers_in_json
from dovetail.frontends.step.kept import Trees, slots_of_graphs
from dovetail.frontends.step.late_numbers import LateNumbers
from dovetail.frontends.step.left_behind import LeftBehind, kept_if_used, overwritten, refused_change
from dovetail.frontends.step.lifting import Lifting, Numbers
from dovetail.frontends.step.noted_calls import HostCall
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.output import STREAMS
from dovetail.frontends.step.outside import Outside, forget_new_results
from dovetail.frontends.step.program_inputs import FoundTensors, number_inputs
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.recorded import Recorded
from dovetail.frontends.step.results import Results
from dovetail.frontends.step.searches import SearchCalled
from dovetail.frontends.step.syntax import percent_formats
from dovetail.frontends.step.tensor_kinds import sources_of_others
from dovetail.frontends.step.text_uses import check_texts
from dovetail.frontends.step.variant import StepVariant
from dovetail.frontends.step.waiting_draws import WaitingDraws
from dovetail.frontends.step.write_only import WriteOnlyContainers
from dovetail.ir.draft import free_name
from dovetail.ir.known_results import Answers
from dovetail.ir.program import Value
from dovetail.ir.text import identifier
from dovetail.passes.collection import collection_paused
from dovetail.pipeline.options import Options
from dovetail.reach.changes import ReadChange
from dovetail.reach.guard import PythonGuard
from dovetail.reach.slots import giving
from dovetail.reach.stand_ins import StandIns
from dovetail.reach.watcher import Watcher
from dovetail.torch_compat.collectives import default_group
from dovetail.torch_compat.optimizers import global_step_hook_tables, step_hook_tables


class StepCapture:
    """One capture; `variant` makes the result. See the module docstring."""

    recording: Callable[..., StepRecording] = StepRecording

    def __init__(
        self,
        call: StepCall,
        reachable: ReachableState,
        lifted: Numbers,
        options: Options,
        guarded: frozenset[Path],
        shown: Lifting,
    ) -> None:
        """Prepare.

        shown: slots of tensors that may be other ones in each call, which are read like arguments, and containers that
        are only written. lifted: slots of the reachable state and leaves of the arguments that are inputs, where they
        hold numbers; hyperparameters of optimizers are as well, but for `guarded` ones.
        """
        self._call = call
        self._reachable = reachable
        self._options = options
        self._names: set[str] = set()
        self._numbers, self.hyperparameters = number_inputs(reachable, lifted.slots, guarded, self._name)
        kept, self._drawing = shown.kept, shown.drawing
        self._write_only = WriteOnlyContainers(reachable, sorted(shown.write_only, key=repr))
        found = [slot for slot in (reachable.slots if kept else ()) if slot.path in kept]
        self._kept = [NumberSlot.at(slot) for slot in found if isinstance(slot.read(), torch.Tensor)]
        self._given = [*call.leaves, *(number_slot.read() for number_slot in self._kept)]
        self._of_graphs = [slot for slot in slots_of_graphs(reachable) if slot.path not in kept]
        self._arrays = HeldArrays.at(reachable, lifted.slots, makes=shown.makes_arrays)
        inputs = (self._numbers, self._kept, self._of_graphs, self._arrays.slots)
        self.lifted = frozenset(x.path for found in inputs for x in found)
        self._lifted_leaves = lifted.leaves
        self._blamed: Callable[[], frozenset[str]] = frozenset
        self._texts: Texts | None = None
        self._ways, self.stops_at_weights = shown, False
        self.answers: Answers = {}
        self.told_once: Callable[[HostCall, int], None] = lambda *_: None
        self._draws: Any = None
        self.waiting = WaitingDraws()
        self._leaf_names: dict[int, str] = {}
        self._shown, self._objects = list(call.leaves), ArgumentObjects(call.structure)
        self._results: Results | None = None
        self._asked = [default_group, *map(giving, reachable.others)]
        self._fully_sharded = found_among(module for _, module in reachable.modules)
        self._elsewhere, self._not_guarded = list[ReadChange](), list[Any]()
        self._watcher = Watcher(
            refuses_draws=False, line_of=reachable.line_naming, stand_ins=StandIns(numbers=not reachable.asks_types)
        )

    # --- what there is ----------------------------------------------------------------------------------------

    def _name(self, wish: str) -> str:
        name = free_name(identifier(wish), self._names, first=2)
        self._names.add(name)
        return name

    def _tensors(self) -> FoundTensors:
        found = FoundTensors(self._name)
        for index, (slot, tensor) in enumerate(self._reachable.tensors):
            if not self._is_kept(tensor):
                found.add_state(index, tensor, slot.label)
        labels = {place: item.label for place, item in enumerate(self._kept, len(self._call.leaves))}
        for index, leaf in enumerate(self._given):
            if isinstance(leaf, torch.Tensor):
                found.add_argument(index, leaf, labels.get(index, f"argument {index}"))
        found.refuse_scripted(self._reachable.modules)
        return found

    def _is_kept(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is only where others may be in later calls."""
        slots = self._reachable.slots_of_tensor(tensor) if self._kept or self._of_graphs else ()
        return bool(slots) and all(slot.path in self.lifted for slot in slots)

    # --- recording --------------------------------------------------------------------------------------------

    @property
    def has_hooks(self) -> bool:
        """Whether an optimizer has hooks, or all have."""
        tables = [step_hook_tables(optimizer) for _, optimizer in self._reachable.optimizers]
        return any(map(any, tables)) or any(global_step_hook_tables())

    def variant(
        self, name: str, hints: ItemHints, *, assume_cleared: bool = False, calls_hooks: bool = False
    ) -> tuple[StepVariant | None, Recorded]:
        """Record, compile and bind. No program, but the recording, where the step makes state.

        assume_cleared: see `StepRecording`. calls_hooks: hooks of optimizers are host calls instead of recorded.
        Raises: GradientsNotCleared; NumbersToLift when more numbers must become inputs; StateToMake when the step makes
        state that no run can make; DovetailError for what cannot be captured. All is as before then.
        """
        with collection_paused():  # nearly all that a capture makes stays
            try:
                recorded = self._recorded(name, hints, assume_cleared, calls_hooks)
                return None if recorded.made else recorded.tied(name, self._options), recorded
            except BaseException as error:
                free_locals(error)
                raise

    def _recorded(self, name: str, hints: ItemHints, assume_cleared: bool, calls_hooks: bool) -> Recorded:
        found = self._tensors()
        tensors, sources, leaves = found.tensors, found.sources, self._call.leaves
        numbers = [StepNumber(slot.name, slot.read(), slot.put) for slot in self._numbers]
        for index in sorted(self._lifted_leaves):
            self._leaf_names[index] = self._name(f"argument_{index}")
            numbers.append(StepNumber(self._leaf_names[index], leaves[index], partial(self._show, index)))
        recording = self._new_recording(tensors, numbers, hints, assume_cleared)
        optimizers = [optimizer for _, optimizer in self._reachable.optimizers]
        schedulers = [scheduler for _, scheduler in self._reachable.schedulers]
        late = self._numbers_before(recording)
        hosts = HostCalls(
            *(recording, schedulers, optimizers, late, self.told_once, self._reachable.knows),
            is_noting_hooks=calls_hooks,
        )
        hosts.look_at = recording.look_at = self._write_only.look_at
        texts = self._texts = recording.recorder.texts
        texts.formats_at, self._watcher.on_frame = percent_formats, texts.follow
        texts.asks_whole_numbers, recording.recorder.number_sizes.is_on = self._ways.asks_texts, self._ways.has_symbols
        recording.recorder.answered_otherwise = self._ways.answered_otherwise
        with self._undone(), kept_attributes(self._call.leaves), kept_if_used(recording.recorder, self._of_graphs):
            outside = Outside(recording.origins, self._reachable.slots, texts.hold)
            try:
                recording.run(self._run, self._around(recording, found.matrices, hosts, outside))
                self._objects.look(self._watcher)
                self._write_only.refuse_after()
                late.end()
                newly = overwritten(self._watcher.reads, self._reachable)
                left = LeftBehind(self._reachable, self._numbers, self.lifted, newly, self._ways)
                left.is_drawn, left.write_only = self._draws.explain, self._write_only.paths
                left.find_write_only()
                check_texts(recording.recorder)
            except DovetailError as error:
                self._write_only.refuse_after(error)
                if isinstance(error, UnsupportedStep) and hosts.calls_search:
                    raise SearchCalled from error
                fills = any(error is known for known in outside.to_fill)
                if (many := self._draws.choices.among_many) or recording.recorder.guesses.ran_out or fills:
                    raise (ManyChoices(many) if many else StateToMake(error)) from error
                raise
            trees = Trees(recording, self._reachable, self._watcher.was_made)
            writes = list(left.numbers(recording, trees))
            assert self._results is not None, "the step was recorded"
            self._results.settle(trees)
            hosts.settle(trees)
            left.make(trees)  # last: what comes before is numbered as in a recording that makes nothing
            self._results.settle_new(trees)
        reads = self._guard(left, trees.unknown, late)
        self._draws.check()
        programs = recording.programs(name, keep_gradients=self._options.keep_grads)
        used = map(recording.value_of_number, programs.numbers)
        host_calls = hosts.placed(partial(self._changed_by, recording), set(used))
        recording.recorder.known.end()
        sources += sources_of_others(recording)
        return Recorded(
            call=self._call,
            reachable=self._reachable,
            recording=recording,
            programs=programs,
            sources=sources,
            slots=self._numbers,
            leaves=self._lifted_leaves,
            kept=self._kept,
            given=self._given,
            lifted=self.lifted,
            hyperparameters=self.hyperparameters,
            held=[() if self._is_kept(tensor) else slot.path for slot, tensor in self._reachable.tensors],
            writes=writes,
            bound=left.bound,
            filled=left.filled,
            replaced=self._ways.replaced.containers,
            places=list(trees.places),
            host_calls=host_calls,
            draws=self._draws,
            write_only=self._write_only.paths,
            reads=reads,
            asked=frozenset(index for index, leaf in enumerate(self._given) if self._watcher.was_asked(leaf)),
            results=self._results,
            made=left.made,
        )

    def _numbers_before(self, recording: StepRecording) -> LateNumbers:
        """Notes what is drawn before runs, and what schedulers change."""
        places = {x.name: x.path for x in self._numbers}
        self._draws = Draws(
            self._reachable, recording, self._drawing, numbers=places, arrays=self._arrays, others=self.waiting
        )
        return LateNumbers(recording, self._reachable, self._numbers, self._draws.taken.append)

    def _new_recording(
        self, tensors: list[StepTensor], numbers: list[StepNumber], hints: ItemHints, assume_cleared: bool
    ) -> StepRecording:
        told = {"dynamic": self._ways.has_free_sizes, "line_of": self._reachable.line_naming}
        recording = self.recording(tensors, numbers, hints, assume_cleared=assume_cleared, **told)
        recording.recorder.share_answers(self.answers)
        recording.recorder.texts.know_by(self._ways.mark)
        recording.recorder.stops_at_weights = self.stops_at_weights
        self._blamed = lambda: recording.recorder.blamed
        return recording

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Put back what the step has changed once it was recorded.

        Raises: MoreIsRead when the reachable state has to be larger; StateChangedOtherwise for changes outside of it.
        """
        generators = torch_generators((*(slot.read() for slot in self._reachable.slots), *self._call.leaves))
        error: BaseException | None = None
        try:
            yield
            refuse_set(generators)
        except BaseException as raised:
            error = raised
        self._reachable.restore()
        for change in self._elsewhere:
            change.undo()
        for generator, state in generators:
            generator.set_state(state)
        reads = self._watcher.reads
        if reads is not None:
            reads.unshown.put_sources_back()
            reads.unshown.put_tensors_back()
        if reads is not None and (error is None or isinstance(error, Exception)):
            is_strict = error is not None or bool(self._elsewhere)
            if self._reachable.learn(reads, is_strict=is_strict, expects=self.stops_at_weights):
                caches = [slot.read() for slot in self._reachable.caches_of_functions]
                forget_new_results(caches, reads.snapshot)
                raise MoreIsRead from error
        if error is not None:
            raise error
        for change in self._elsewhere:
            raise refused_change(change.label)

    def _show(self, index: int, traced: Any) -> None:
        self._shown[index] = traced

    def _run(self) -> list[Any]:
        with self._objects.put(self._shown):
            result, given = self._objects.call(self._call.step), self._call.leaves
        self._objects.note_changes(self._shown)
        self._results = Results(result, self._reachable.knows, given, self._write_only.look_at)
        return self._results.leaves

    @contextlib.contextmanager
    def _around(
        self, recording: StepRecording, matrices: Sequence[KnownMatrix], hosts: HostCalls, outside: Outside
    ) -> Iterator[None]:
        with (
            recording.recorder.sparse.operands.exchanged(recording.mode, matrices),
            hosts.noted(),
            module_names(recording.origins, self._reachable.modules, recording.recorder.fully_sharded.call),
            outside.known_results_only(self._reachable.caches_of_functions),
            outside.watched(),
            self._write_only.noted(hosts.note_put),
            self._draws.noted(),
            maths_by_name(self._reachable),
            numbers_in_json(recording.recorder),
            recording.recorder.collectives.followed(),
            self._watched(),
        ):
            recording.recorder.collectives.guard = self._ask_before_runs
            with recording.recorder.fully_sharded.recorded(self._fully_sharded):
                yield
            recording.recorder.parallel.check()
        for refusal in outside.refusals:
            raise refusal

    def _guard(self, left: LeftBehind, unknown: Sequence[Any], late: LateNumbers) -> PythonGuard:
        """What compares what the code read besides the reachable state, or set to what was there already.

        unknown: see `Trees`. Raises: MoreIsRead where it has set, or handed on, what was not looked at.
        """
        for item in self._reachable.late:
            self._ask_before_runs(giving(item))
        is_set = overwritten(self._watcher.reads, self._reachable)
        if left.misses(is_set) or any(map(self._reachable.knows, unknown)) or late.misses(self._reachable.slots):
            raise MoreIsRead
        return self._watcher.guard(self._compared() - (is_set - left.put), self._not_guarded)

    def _ask_before_runs(self, question: Callable[[], Any]) -> None:
        """A question whose answer is to be the same object before each run."""
        if self._watcher.reads is not None:
            self._watcher.reads.answered(question, question())

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """While active, what the code reads besides what the reachable state compares is noted."""
        leaves = (x for x in self._call.leaves if not isinstance(x, torch.Tensor))
        roots = [self._call.step, *leaves, *self._reachable.hooks]
        try:
            with self._watcher.watched(roots, {ask: ask() for ask in self._asked}):
                yield
        finally:
            self._elsewhere = self._watcher.changes(self._compared(), self._reachable.looks_into)
        self._not_guarded = [y for _, x in self._reachable.schedulers for y in (x, type(x))]  # made for the recording

    def _compared(self) -> frozenset[tuple[int, str]]:
        """Places that what the code read besides does not count."""
        written = {x.key for x in self._arrays.slots} | {(id(vars(sys)), name) for name in STREAMS}  # by host calls
        return self._reachable.compared | written | overwritten(self._watcher.reads, self._reachable)

    def _changed_by(self, recording: StepRecording, scheduler: Any) -> set[Value]:
        """The tensors that a scheduler may change."""
        held = [x for group in scheduler.optimizer.param_groups for x in group.values()]
        return recording.values_of_tensors([x for x in held if isinstance(x, torch.Tensor)])

    @property
    def drawing_functions(self) -> tuple[list[FunctionType], list[FunctionType]]:
        """Functions one of which should be called as a whole before runs; those that cannot be."""
        return (self._draws.wanted, self._draws.useless) if self._draws else ([], [])

    @property
    def wants_arrays(self) -> bool:
        """Whether drawn numbers met what could be an array that is read before each run, and is not."""
        return self._draws is not None and (self._draws.wants_arrays or self._draws.wants_numbers)

    @property
    def has_texts_of_data(self) -> bool:
        """Whether the step makes texts of whole numbers that data decide."""
        return self._texts is not None and self._texts.has_whole_numbers

    @property
    def blamed(self) -> Numbers:
        """The numbers that the step's code had no use for as inputs, as far as that is known."""
        names = self._blamed()
        leaves = {i for i, name in self._leaf_names.items() if name in names}
        slots = {number_slot.path for number_slot in self._numbers if number_slot.name in names}
        return Numbers(frozenset(slots), frozenset(leaves))
