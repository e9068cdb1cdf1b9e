"""From a recording to a compiled graph: passes, split, code; backward is compiled when it first runs."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Collection, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch

from dovetail.capture.exclusive import RECORDING
from dovetail.capture.recording import Recording
from dovetail.capture.recording_context import TakenOtherwise, wants_known_sizes
from dovetail.errors import CaptureFailed, LateSizeAssumption, MemoryLimitTooLow, UnusableDonation
from dovetail.execute.backward import CompiledBackward
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.donation import Donated
from dovetail.execute.foreign import ForeignProgram, example_inputs_of
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.protocol import RunnableProgram
from dovetail.execute.training import TrainingGraph
from dovetail.execute.wrapper import build_wrapper, wrapper_source
from dovetail.ir.calling import CallPlan, Pattern, Retained
from dovetail.ir.fx_write import DescribedFakes, to_graph_module
from dovetail.ir.program import Program
from dovetail.ir.signature import Gradient, InputMutation, Tangent, WriteKind
from dovetail.ir.sizes import Number
from dovetail.ir.stages import verify_program
from dovetail.partition.choose import joined
from dovetail.partition.narrow_draws import without_round_trips
from dovetail.partition.split import Split, dying_inputs
from dovetail.partition.whole.forced import recompute_as_asked
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.arena import code_of
from dovetail.pipeline.compile_trace import LIKELY
from dovetail.pipeline.copies_back import counted_only, uncounted
from dovetail.pipeline.differential import verify_same_results
from dovetail.pipeline.donation import late_writes, offer_inputs
from dovetail.pipeline.driver import StepRecord, elapsed_us, run_passes, writes
from dovetail.pipeline.dump import BACKWARD, FORWARD, Dump
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.halves import holding, released, stays_behind
from dovetail.pipeline.memory_limit import refuse_unknown_sizes, state_bytes
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import Context
from dovetail.pipeline.splitting import Splitting
from dovetail.pipeline.stage_records import functionalized, partitioned, wrote_inputs
from dovetail.torch_compat.autograd import frees_arriving_gradients
from dovetail.torch_compat.modes import autocast_off, casts_in_force

logger = logging.getLogger("dovetail")


def compile_recording(
    recording: Recording, name: str, options: Options, hints: Mapping[str, Number], donated: Collection[int] = ()
) -> CompiledGraph:
    """The compiled graph of a recording.

    hints: a number for each size symbol. donated: numbers of inputs that each call gives away.
    Raises: DovetailError; the recorded function's owner is as it was.
    """
    return _GraphCompiler(recording, name, options, hints, donated).compile()


class _GraphCompiler:
    """Compiles the forward at once and one backward per pattern of arriving gradients on demand.

    Forward saves what the backward for gradients of *all* outputs reads, as eager does; the backward that is likely
    (a single loss) is recorded at once as well, so that nothing is assumed about sizes after compiling. What the
    passes decide for the first pattern holds for all, so that every backward finds the values it reads.
    """

    def __init__(
        self,
        recording: Recording,
        name: str,
        options: Options,
        hints: Mapping[str, Number],
        donated: Collection[int],
    ) -> None:
        self._donated = Donated(tuple(sorted(donated)))
        self._is_offered = False
        self._recording = recording
        self._name = name
        self._options = options
        self._hints = hints
        self._executors = make_executors(options)
        self._backwards: dict[tuple[Pattern, Retained, Hashable], CompiledBackward] = {}
        self._pending: dict[Pattern, Split] = {}
        self._dumps: dict[Pattern, Dump] = {}
        self._decisions: dict[str, bool] = {}
        self._refused: dict[int, CaptureFailed] = {}
        stand_ins = enumerate(recording.stand_ins)
        self._leaves = frozenset(number for number, made in stand_ins if made.requires_grad and made.was_leaf)
        self._splitting = Splitting(recording.outputs.plan, hints, options, self._leaves)
        self._first: Split | None = None
        self._saved: frozenset[str] = frozenset()
        self._too_low: dict[Pattern, MemoryLimitTooLow] = {}
        self._graph: weakref.ref[CompiledGraph]  # which keeps this alive
        self._forward: RunnableProgram
        self._residuals: tuple[str, ...]

    def compile(self) -> CompiledGraph:
        """The graph, with its forward compiled."""
        plan = self._recording.outputs.plan
        trains = self._recording.can_train and any(plan.differentiable)
        constants = dict(self._recording.forward_constants)
        full = self._recording.full_pattern() if trains else tuple(None for _ in plan.differentiable)
        try:
            split = self._lower(self._name, full)
        except CaptureFailed as error:
            cause = error.__cause__
            has_other_ways = isinstance(cause, TakenOtherwise) or (self._options.dynamic and wants_known_sizes(cause))
            if not trains or self._recording.takes_numbers or has_other_ways:  # with plain numbers it may do
                raise
            full = self._without_refused(full, error)
            split = self._lower(self._name, full)
        self._pending[full] = split
        likely = self._recording.likely_pattern() if trains else full
        if likely != full and not self._refused:
            self._pending[likely] = self._lower(f"{self._name}{LIKELY}", likely)
        forward = self._code_for(split.forward, None if trains else "inference", self._donated.offered)
        forward = self._dumps[full].watched(forward, FORWARD)
        self._forward, self._residuals = forward, split.residuals
        signature = split.backward.signature
        kind = TrainingGraph if trains else CompiledGraph
        graph = kind(
            forward=forward,
            wrapper=build_wrapper(plan, split.forward),
            plan=plan,
            constants=constants,
            outputs=len(plan.differentiable),
            residuals=split.residuals,
            sources=frozenset(k for k, name in enumerate(split.residuals) if name in split.sources),
            backward_for=self._backward_for if trains else None,
            late_constants=self._constant,
            any_layout=not self._recording.is_symbolic and self._options.compilers is None,
            unreached=self._unreached(split.backward),
            passed=self._recording.passed_results() if trains else {},
            residual_inputs=_residual_inputs(split.forward, plan),
            counted_only=counted_only(split.forward, plan),
            uncounted=uncounted(split.forward, plan),
            donated=self._donated,
            left_modes=self._recording.left_modes,
            written_in_backward=tuple(
                r.input for r in signature.outputs if isinstance(r, InputMutation) and not r.constant
            ),
        )
        self._graph = weakref.ref(graph)
        return graph

    def _unreached(self, backward: Program) -> tuple[int, ...]:
        """Inputs that are computed outside and get no gradient whatever arrives, while others do."""
        pairs = zip(backward.signature.outputs, backward.outputs, strict=True)
        made = {role.input: value for role, value in pairs if isinstance(role, Gradient)}
        if self._refused or all(value is None for value in made.values()):
            return ()
        stand_ins = self._recording.stand_ins
        written = {write.input for write in self._recording.outputs.plan.writes}
        return tuple(
            index
            for index, value in made.items()
            if value is None and index not in written and not (stand_ins[index].was_leaf or stand_ins[index].is_wrapper)
        )

    def _without_refused(self, full: Pattern, error: CaptureFailed) -> Pattern:
        """The gradients that eager takes: as in eager, forward works, and backward raises for the others."""
        for slot in [slot for slot, arrival in enumerate(full) if arrival is not None]:
            try:
                self._recording.programs(self._name, tuple(a if i == slot else None for i, a in enumerate(full)))
            except CaptureFailed as refusal:
                self._refused[slot] = refusal
        if not self._refused:  # each by itself is fine
            self._refused = {slot: error for slot, arrival in enumerate(full) if arrival is not None}
        return tuple(None if slot in self._refused else arrival for slot, arrival in enumerate(full))

    def _new_dump(self, name: str) -> Dump:
        options, first = self._options, next(iter(self._dumps.values()), None)
        return Dump(options.dump, name, self._hints, options.dump_calls, first, options.compile_trace, self._leaves)

    def _lower(self, name: str, pattern: Pattern, retained: Retained = (), *, casts: bool = False) -> Split:
        start = time.perf_counter_ns()
        dump = self._dumps[pattern] = self._new_dump(name)
        with nullcontext() if casts else autocast_off():  # a backward is run outside of autocast, as a rule
            programs = self._recording.programs(name, pattern, retained)
        program = programs.functional
        self._options.policy.meet(program)
        dump.step("recorded", programs.recorded)
        record = functionalized(programs.recorded, program, start)
        dump.step("functional", program, record, comparable=programs.comparable)
        if self._options.verify > 1 and programs.comparable:
            verify_same_results("functionalize", programs.recorded, program, self._hints)
        context = Context(self._options, self._hints)
        held = holding(program, self._saved)
        program, records = run_passes("joint", held, context, dump, decisions=self._decisions)
        program = released(program) if self._saved else program
        self._decisions.update({record.name: not record.reason for record in records})
        program, again = recompute_as_asked(program, self._options.policy, self._hints, is_split=True)
        if again:
            dump.step("policy", program)
        compilers = self._options.compilers
        if compilers is not None and compilers.joint is not None and self._recording.can_train:
            joint = to_graph_module(program, described=self._described())
            compilers.joint(joint, example_inputs_of(joint))
        if self._splitting.limit is not None:
            refuse_unknown_sizes(program, self._options.memory_limit)
        plain, program = program, self._splitting.narrowed(program, state_bytes(program))
        if program is not plain:
            dump.step("narrow_draws", program)
        split = self._partitioned(program, dump, pattern)
        self._saved = self._saved or frozenset(split.residuals)
        self._offer(split, dump)
        if self._options.compilers is not None:
            return split  # works in place if its compiler does
        split = self._in_place(split, dump, pattern, state_bytes(program))
        self._dump_code(dump, split)
        return split

    def _likely(self) -> Program:
        """The program with the backward of the loss alone, as `_lower` meets it."""
        context, name = Context(self._options, self._hints), f"{self._name}{LIKELY}"
        with autocast_off():
            made = self._recording.programs(name, self._recording.likely_pattern()).functional
        made, _ = run_passes("joint", made, context, Dump(None, name, {}), decisions=self._decisions)
        made, _ = recompute_as_asked(made, self._options.policy, self._hints, is_split=True)
        return self._splitting.narrowed(made)

    def _partitioned(self, program: Program, dump: Dump, pattern: Pattern) -> Split:
        """The program in halves."""
        start = time.perf_counter_ns()
        is_likely = pattern == self._recording.likely_pattern() or self._refused
        halves = self._splitting.split(program, state_bytes(program), None if is_likely else self._likely)
        split, level = halves.split, self._options.verify
        if halves.joint is not program:
            dump.step("recompute", halves.joint)
        record = partitioned(program, split, halves.report, start)
        if halves.report is not None:
            logger.info("%s: %s", self._name, halves.report)
        if level:
            self._splitting.verify(program, halves)
            for half in (split.forward, split.backward):
                verify_program(half, writes)
        if level > 1 and self._splitting.kept is not None:
            verify_same_results("partition", program, joined(halves.joint, split), self._hints)
        split = replace(split, forward=without_round_trips(split.forward))
        dump.step("forward", split.forward, record, part=FORWARD)
        dump.step("backward", split.backward, record, part=BACKWARD)
        dump.computed_from(split.sources)
        return split

    def _in_place(self, split: Split, dump: Dump, pattern: Pattern, state: int) -> Split:
        """The split as its halves run. state: bytes of inputs. Raises: MemoryLimitTooLow."""
        splitting, donated = self._splitting, self._donated.offered
        written = splitting.written(split.forward)
        if written is not split.forward:
            dump.step("write_inputs-forward", written, wrote_inputs(split.forward, written), FORWARD)
        plans = PlanMemory(donated, splitting.plans.need_of) if donated else splitting.plans
        context = Context(self._options, self._hints, donated=donated, plans=plans, state_bytes=state)
        kind = "forward" if split.backward.nodes else "inference"
        as_weighed = {} if splitting.limit is None or split.backward.nodes else {"reinplace": True}
        forward, _ = run_passes(kind, written, context, dump, decisions=as_weighed)
        is_last, dying = self._is_last(pattern), self._dying(split, pattern)
        context = Context(self._options, self._hints, dying=dying, plans=splitting.plans)
        first = self._first or replace(split, forward=forward)
        stays = () if is_last else stays_behind(first, split)
        late, as_weighed = split.backward, dict[str, bool]()
        if self._first is not None and splitting.limit is not None:
            context, as_weighed = (
                replace(context, plans=splitting.plans_after(first.forward, stays)),
                {"reinplace": True},
            )
            late = splitting.backward_within(late, context.plans, dying, state)
        backward, _ = run_passes("backward", late, context, dump, decisions=as_weighed)
        found = replace(split, forward=forward, backward=backward)
        error = (
            splitting.too_low(replace(found, forward=first.forward), stays, state) if any(backward.outputs) else None
        )
        if self._first is not None and error is not None:
            raise error
        if self._first is None:
            self._first = found
            if error is not None and pattern == self._recording.likely_pattern():
                raise error
            if error is not None:
                self._too_low[pattern] = error
        return found

    def _is_last(self, pattern: Pattern) -> bool:
        """Whether no other backward can follow one for these gradients."""
        return sum(arrival is not None for arrival in pattern) == sum(self._recording.outputs.plan.differentiable)

    def _dying(self, split: Split, pattern: Pattern, *, surely: bool = True) -> tuple[int, ...]:
        """Numbers of the inputs of backward that nobody else holds. surely: without those that somebody may hold."""
        if self._options.double_backward:
            return ()
        is_last = not surely or self._is_last(pattern)
        return dying_inputs(split, arriving=frees_arriving_gradients(), is_last=is_last)

    def _offer(self, split: Split, dump: Dump) -> None:
        """Settle, when forward is made, which of the inputs that are given away it may work in.

        Raises: UnusableDonation for the backward of another pattern that has to do with those, after all.
        """
        if not self._donated.given:
            return
        if self._is_offered:
            for index in late_writes(split.backward) & {*self._donated.offered}:
                reason = "forward may have used its memory, and this backward writes it"
                raise UnusableDonation(name=split.forward.inputs[index].name, reason=reason)
            return
        start = time.perf_counter_ns()
        plan, stand_ins = self._recording.outputs.plan, self._recording.stand_ins
        keeps = self._options.double_backward and self._recording.can_train
        report = offer_inputs(self._donated.given, (split.forward, split.backward), plan, stand_ins, keeps_inputs=keeps)
        self._donated, self._is_offered = replace(self._donated, offered=report.offered), True
        count = len(split.forward.nodes)
        record = StepRecord("donate", count, count, elapsed_us(start), str(report), details=report)
        dump.step("donate-forward", split.forward, record, FORWARD)

    def _code_for(self, half: Program, kind: str | None = None, dying: Collection[int] = ()) -> RunnableProgram:
        """The half with code for it: of the executors, or of the user's compilers. dying: inputs nobody else holds."""
        compilers = self._options.compilers
        if compilers is None:
            return code_of(half, self._executors, self._options, self._hints, dying=dying)
        described = self._described()
        if kind == "inference":
            return ForeignProgram(half, compilers.inference, described, donated=self._donated.offered)
        if any(isinstance(role, Tangent) for role in half.signature.inputs):
            return ForeignProgram(half, compilers.backward, described, self._forward.program)
        return ForeignProgram(half, compilers.forward, described, donated=self._donated.offered)

    def _described(self) -> DescribedFakes:
        """Describes values with the symbols that they were recorded with."""
        return DescribedFakes(self._recording.mode, self._recording.recorder.symbols)

    def _dump_code(self, dump: Dump, split: Split) -> None:
        if self._options.dump is not None:
            for half in (split.forward, split.backward):
                dump.code(half.name, CompiledProgram(half, self._executors))
            dump.text("wrapper", wrapper_source(self._recording.outputs.plan, split.forward)[0])

    def _constant(self, name: str) -> torch.Tensor:
        return self._recording.constants[name]

    def _backward_for(self, pattern: Pattern, retained: Retained = ()) -> CompiledBackward:
        for slot, refusal in self._refused.items():
            if pattern[slot] is not None:
                cause = refusal.__cause__
                raise refusal if cause is None or wants_known_sizes(cause) else cause
        casts = casts_in_force()
        known = self._backwards.get((pattern, retained, casts))
        if known is not None:
            return known
        with RECORDING:
            known = self._backwards.get((pattern, retained, casts))
            if known is not None:  # another thread was faster
                return known
            known = self._compile_backward(pattern, retained, casts=bool(casts))
            self._backwards[pattern, retained, casts] = known
            graph = self._graph()
            if graph is not None and len(self._backwards) >= self._options.max_variants and graph.any_layout:
                logger.info(
                    "%s: %d backward variants; from now on gradients get the layout of outputs",
                    self._name,
                    len(self._backwards),
                )
                graph.any_layout = False
        return known

    def _compile_backward(self, pattern: Pattern, retained: Retained, *, casts: bool) -> CompiledBackward:
        if pattern in self._too_low:
            raise self._too_low[pattern]
        split = None if casts or retained else self._pending.pop(pattern, None)
        if split is None:
            logger.info("%s: backward variant %d, gradients arrive as %s", self._name, len(self._backwards), pattern)
            facts, known = self._recording.size_facts, len(self._recording.constants)
            split = self._lower(f"{self._name}_{len(self._backwards)}", pattern, retained, casts=casts)
            if self._recording.size_facts != facts:
                raise LateSizeAssumption(pattern=pattern)
            if self._donated.offered and len(self._recording.constants) > known:
                name = ", ".join(split.forward.inputs[index].name for index in self._donated.offered)
                reason = "backward meets a tensor that could have been part of it"
                raise UnusableDonation(name=name, reason=reason)
        tangents = [role.output for role in split.backward.signature.inputs if isinstance(role, Tangent)]
        dying = self._dying(split, pattern, surely=self._options.arena)  # others take what may die as what does
        compiled = self._dumps[pattern].watched(self._code_for(split.backward, None, dying), BACKWARD)
        return CompiledBackward.of(compiled, tangents, self._residuals)


def _residual_inputs(forward: Program, plan: CallPlan) -> dict[int, int]:
    """Residuals that are what an input holds once forward has written it: place among the residuals -> input."""
    written = {id(forward.outputs[w.slot]): w.input for w in plan.writes if w.kind is not WriteKind.TRACKED}
    residuals = forward.outputs[len(plan.differentiable) :]
    tensors = [(place, value) for place, value in enumerate(residuals) if value is not None]
    return {place: written[id(value)] for place, value in tensors if id(value) in written}
