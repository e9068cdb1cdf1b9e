"""A step that was recorded, and how a program of it is tied to the objects that it was recorded with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.capture.step_programs import StepPrograms
from dovetail.capture.step_recording import StepRecording
from dovetail.execute.changed_words import changed_word_with
from dovetail.frontends.arguments import Arguments, Written
from dovetail.frontends.step.captured_memory import bytes_before, refuse_sharing, refuse_written_arrays
from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.drawn_values import Late
from dovetail.frontends.step.draws import Draws
from dovetail.frontends.step.early_questions import EarlyQuestions
from dovetail.frontends.step.guard import UNBOUND, StepCall, StepGuard
from dovetail.frontends.step.kept import Tree
from dovetail.frontends.step.left_behind import Made
from dovetail.frontends.step.memory import Accesses
from dovetail.frontends.step.noted_calls import HostCall
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.passed import is_object
from dovetail.frontends.step.program_inputs import changing, number_label, sources_of_numbers
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.results import Results
from dovetail.frontends.step.runner import StepRunner
from dovetail.frontends.step.tensor_kinds import Source, expected_tensors, kept_sources
from dovetail.frontends.step.variant import StepVariant, bindings_to
from dovetail.frontends.variant_cache import Variant
from dovetail.ir.plan_inputs import renumbered
from dovetail.pipeline.options import Options
from dovetail.pipeline.step import compile_step_programs
from dovetail.reach.guard import PythonGuard
from dovetail.torch_compat.autograd import version_of


@dataclass(slots=True, eq=False)
class Recorded:
    """See the module docstring.

    call, reachable: what it was recorded with. sources: of the recording's tensors. slots, leaves: of the numbers that
    are inputs. kept: slots of tensors that are read like arguments; given: the arguments, and these tensors. lifted:
    all slots that are inputs. hyperparameters: those of them that seldom change. held: where each tensor of the
    reachable state was held first, () for those that are only where others may be. writes, bound, filled, places,
    host_calls, draws, write_only: see `StepRunner`. made: what the step puts where there was nothing. replaced: slots
    of containers that calls, or what is done between them, replace, for all programs of the step. reads: see
    `StepGuard`. asked: arguments that code asked for attributes by name.
    """

    call: StepCall
    reachable: ReachableState
    recording: StepRecording
    programs: StepPrograms
    sources: list[Source]
    slots: list[NumberSlot]
    leaves: frozenset[int]
    kept: list[NumberSlot]
    given: list[Any]
    lifted: frozenset[Path]
    hyperparameters: set[Path]
    held: list[Path]
    writes: list[tuple[NumberSlot, int]]
    bound: list[tuple[Path, Tree]]
    filled: list[tuple[Path, Tree]]
    replaced: set[Path]
    places: list[Path]
    host_calls: tuple[HostCall, ...]
    draws: Draws
    write_only: list[Path]
    reads: PythonGuard
    asked: frozenset[int]
    results: Results
    made: list[Made] = field(default_factory=list)

    def _bound_with_made(self) -> list[tuple[Path, Tree]]:
        """The slots that each run leaves something in, what is made among them: each at its place."""
        bound = [*self.bound]
        for count, made in enumerate(sorted(self.made, key=lambda made: made.at)):
            bound.insert(made.at + count, (made.path, made.tree))
        return bound

    def tied(self, name: str, options: Options) -> StepVariant:
        """Compile the program, and bind it to the objects. What is made is among what each run leaves.

        Raises: MemoryLimitTooLow, OverlappingMutatedInputs, UnsupportedStep.
        """
        recording, programs, call = self.recording, self.programs, self.call
        cleared = {g.input for g in programs.plan.gradients if g.is_cleared}
        kept = kept_sources(self.sources, cleared)
        moved = {index: place for place, index in enumerate(kept)}
        plan = renumbered(programs.plan, moved)
        whole = frozenset(moved[i] for i in recording.addressed() if i in moved)
        accesses = Accesses(
            frozenset(write.input for write in plan.writes), frozenset(moved[i] for i in programs.tensors), whole
        )
        sources = [source.moved(moved) for source in self.sources]
        kinds = expected_tensors(recording, sources, kept, self.given, plan, accesses, options)
        tensors = [recording.tensors[i].tensor for i in kept]
        taken = [*tensors, *programs.constants]
        refuse_sharing(recording, taken, kept, accesses)
        refuse_written_arrays(self.reachable, [tensors[write.input] for write in plan.writes])
        names = [recording.tensors[i].label for i in kept]
        before, sizes = bytes_before(taken, plan), recording.size_hints
        program = compile_step_programs(programs, plan, names, self._labels(), name, options, sizes, before)
        leaf_of = dict(enumerate(sorted(self.leaves), len(self.slots)))
        self.replaced.update(self.write_only, (path for path, _ in self.bound))
        objects = {n for n, leaf in enumerate(call.leaves) if is_object(type(leaf))}  # which ones is looked at as state
        guard = StepGuard(
            arguments=Arguments.like(call.leaves, call.structure, self.leaves | objects, self.asked),
            kinds=kinds,
            record=self.reachable.record(self.lifted),
            lifted=self.lifted,
            opened=self.replaced,
            state=self.held,
            kept=[number_slot.path for number_slot in self.kept],
            reads=self.reads,
            constants=[(tensor, version_of(tensor)) for tensor in programs.constants],
            questions=tuple(recording.recorder.questions),
            early=EarlyQuestions(
                programs.functional,
                [] if self.draws.made else changing(programs.numbers, self.slots, leaf_of, self.hyperparameters),
            ),
            bindings=UNBOUND,
            attributes=Written.on(self.given, self.asked, first=len(call.leaves)),
            changed_word=changed_word_with(options.executors),
        )
        runner = StepRunner(
            program=program,
            takes=[moved[i] for i in programs.tensors],
            constants=list(programs.constants),
            numbers=sources_of_numbers(programs.numbers, self.slots, leaf_of, self.draws.taken),
            writes=[(number_slot.path, which) for number_slot, which in self.writes],
            host_calls=tuple(call for call in self.host_calls if not call.is_once),
            result_structure=self.results.structure,
            count=len(self.results.leaves),
            bound=self._bound_with_made(),
            filled=self.filled,
            places=self.places,
            returned=self.results.places,
            whole=self.results.whole,
            write_only=self.write_only,
            draws=self.draws.made,
            drawn=self.draws.tensors.among(programs.constants),
            left_modes=recording.left_modes,
            next_calls=self.host_calls,
            rates=frozenset((x.path, x.rate[1]) for x in self.draws.taken if isinstance(x, Late) and x.rate),
        )
        kinds.learn(tensors)
        guard.bindings = bindings_to(self.reachable, guard, runner)
        return Variant(guard, runner)

    def _labels(self) -> tuple[str, ...]:
        """What a user would call the inputs of the program."""
        programs = self.programs
        return (
            *(self.recording.tensors[i].label for i in programs.tensors),
            *("a tensor found while recording" for _ in programs.constants),
            *(number_label(i, self.slots, self.leaves) for i in programs.numbers),
        )
