"""From a recorded training step to code: simplify, write the state back, work in place.

The functional program returns the new contents of every tensor that the step writes. They become copies at its end,
which the passes below make superfluous: an update is made in the memory of what it updates, as soon as nobody reads
the old contents any more, and never before the last check.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.reads import can_fail
from dovetail.capture.step_programs import StepPrograms
from dovetail.errors import MemoryLimitTooLow, UnsupportedDistributed, UnsupportedStep
from dovetail.execute.protocol import ExecutorList
from dovetail.execute.step import CompiledStepProgram, LastCheck, first_write
from dovetail.execute.transfers import TransferExecutor, Transfers
from dovetail.execute.wrapper import build_wrapper, drops_late, wrapper_source
from dovetail.ir.calling import CallPlan
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Phase, Program, Stage, Value
from dovetail.ir.signature import InputMutation, Signature
from dovetail.ir.sizes import Number
from dovetail.ops.collectives import collective_of, sequences_of
from dovetail.ops.facts import facts_of
from dovetail.ops.prims import REACHED
from dovetail.partition.whole.forced import recompute_as_asked
from dovetail.passes.early_updates import with_early_checks
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.arena import code_of
from dovetail.pipeline.compile_trace import STEP_STATE
from dovetail.pipeline.driver import StepRecord, run_passes
from dovetail.pipeline.dump import JOINT, Dump
from dovetail.pipeline.executor_list import make_executors
from dovetail.pipeline.held import STEP
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import PASSES, Context
from dovetail.pipeline.recompute import RecomputeReport

_EARLY, _LAST = "early_updates", ("reinplace", "overlap")
_OF_COLLECTIVES = ("late_collectives", "gather_once")
_FOR_SAFETY = 0.05


def compile_step_programs(
    programs: StepPrograms,
    plan: CallPlan,
    names: Sequence[str],
    labels: tuple[str, ...],
    name: str,
    options: Options,
    hints: Mapping[str, Number] = MappingProxyType({}),
    state_bytes: int = 0,
) -> CompiledStepProgram:
    """The code of a recorded step.

    plan: what is done around it. names: of the plan's inputs. labels: of the inputs of its programs. hints: a number
    for each size symbol. state_bytes: of what a call has before it begins.

    Raises: UnsupportedStep where something would have to be checked after the first write; MemoryLimitTooLow;
    OffloadUnavailable.
    """
    dump = Dump(options.dump, name, hints, options.dump_calls, None, options.compile_trace)
    context = Context(options, hints, infer=programs.infer, state_bytes=state_bytes, held=STEP)
    program, simplified = writing_step(programs, context, dump)
    program, records = run_passes("step", program, context, dump, only=step_passes(program, context))
    reports = [(record.name, record.report) for record in (*simplified, *records)]
    check, last_check = _last_check(program), LastCheck()
    transfers = (
        None if options.offload is None else Transfers(program, os.fspath(options.offload), first_write(program))
    )
    executors = make_executors(options)
    if transfers is not None:
        executors = ExecutorList((TransferExecutor(transfers.calls), *executors.executors))
    is_awaited = drops_late(plan) or bool(sequences_of(program.nodes))
    after = {check: last_check} if is_awaited and check is not None else {}
    code = code_of(program, executors, options, hints, after)
    eager = simulate_peak(programs.recorded, hints).peak_bytes
    run = dump.watched(code, JOINT)
    wrapper = build_wrapper(plan, program, names)
    compiled = CompiledStepProgram(
        *(code, plan, wrapper, tuple(names), labels, tuple(reports), dict(hints), eager, run, last_check, state_bytes),
        transfers,
        sequences_of(programs.functional.nodes),
    )
    _refuse_late_checks(compiled)
    if options.dump is not None:
        dump.code(name, compiled.code)
        dump.text("wrapper", wrapper_source(plan, program, names)[0])
    return compiled


def step_passes(program: Program, context: Context) -> tuple[str, ...] | None:
    """Names of the passes for a program that writes its state in the end; None: all of them.

    Where values go to a file, state is written early only if the limit cannot be kept otherwise, or for a few percent
    less work: what has not come back when the first state is written can fail too late.
    """
    sends = any(collective_of(node) is not None for node in program.nodes)
    names = tuple(spec.name for spec in PASSES["step"].specs if sends or spec.name not in _OF_COLLECTIVES)
    if context.options.offload is None:
        return names
    late = tuple(name for name in names if name != _EARLY)
    work = [_work_of(program, context, only) for only in (late, names)]
    return late if work[0] is not None and (work[1] is None or work[0] <= work[1] + _FOR_SAFETY) else None


def _work_of(program: Program, context: Context, only: tuple[str, ...]) -> float | None:
    """What the limit costs, as a part of all work, with some of the passes; None where it is not kept."""
    quiet = Dump(None, program.name, context.hints)
    context = replace(context, plans=PlanMemory())
    try:
        _, records = run_passes("step", program, context, quiet, only=[name for name in only if name not in _LAST])
    except MemoryLimitTooLow:
        return None
    return next((x.details.work for x in records if isinstance(x.details, RecomputeReport)), 0.0)


def writing_step(programs: StepPrograms, context: Context, dump: Dump) -> tuple[Program, tuple[StepRecord, ...]]:
    """A recorded step, simplified, that writes its state in the end; and what was done."""
    dump.step("recorded", programs.recorded)
    dump.step("functional", programs.functional)
    context.options.policy.meet(programs.functional)
    program, simplified = run_passes("joint", programs.functional, context, dump)
    if context.options.numerics == "fast":
        program, faster = run_passes("fast", program, context, dump)
        simplified = (*simplified, *faster)
    program, again = recompute_as_asked(program, context.options.policy, context.hints, is_split=False)
    if again:
        dump.step("policy", program)
    program = with_copies(_with_late_writes(program))
    if any(collective_of(node) is not None for node in program.nodes):
        program = with_early_checks(program)  # none may fail once other ranks wait for this one
    dump.step(STEP_STATE, program)
    return program, simplified


def _with_late_writes(program: Program) -> Program:
    """The program with a check behind what may fail in its first forward pass: a batch with a label out of range, say.

    Then nothing is written before that, and the step fails as it does in eager mode.
    """
    nodes = program.nodes
    end = next((at for at, node in enumerate(nodes) if node.phase is Phase.BACKWARD), len(nodes))
    last = next((at for at in range(end - 1, -1, -1) if _may_fail_on_data(nodes[at])), None)
    if last is None:
        return program
    value = next(value for value in nodes[last].results() if value.is_tensor)
    check = Node(REACHED, (value, "indices"), origin=nodes[last].origin)
    return program.replace_nodes((*nodes[: last + 1], check, *nodes[last + 1 :]))


def _may_fail_on_data(node: Node) -> bool:
    """Whether a node takes whole numbers that may be places in another tensor."""
    tensors = [value.tensor for value in node.operands() if value.is_tensor]
    takes_places = any(t.dtype in (torch.int64, torch.int32) for t in tensors) and len(tensors) > 1
    makes_one = any(value.is_tensor for value in node.results())
    return takes_places and makes_one and not facts_of(node.target).pointwise


def with_copies(program: Program) -> Program:
    """The program with a copy of each new content into its tensor, in place of outputs."""
    nodes = list(program.nodes)
    kept = []
    for role, made in zip(program.signature.outputs, program.outputs, strict=True):
        if not isinstance(role, InputMutation):
            kept.append((role, made))
            continue
        target = program.inputs[role.input]
        assert isinstance(made, Value), "new contents are a value"
        nodes.append(Node(torch.ops.aten.copy_.default, (target, made), outputs=()))
    return replace(
        program,
        stage=Stage.IN_PLACE,
        nodes=tuple(nodes),
        outputs=tuple(made for _, made in kept),
        signature=Signature(program.signature.inputs, tuple(role for role, _ in kept)),
    )


def _last_check(program: Program) -> Node | None:
    """The last node that may show that the program is not for this call."""
    return next((node for node in reversed(program.nodes) if isinstance(node.target, Prim) and can_fail(node)), None)


def _refuse_late_checks(compiled: CompiledStepProgram) -> None:
    for node in compiled.program.nodes[compiled.first_write :]:
        if can_fail(node):
            raise UnsupportedStep(
                what="depends on a number that is known only after state was written",
                why="if it differs from the captured one, it is too late to undo the step",
                hint="read it before the first update, or after the step",
                origin=node.origin,
            )
    for node in compiled.program.nodes[compiled.first_collective :]:
        if can_fail(node) and node.target is not REACHED:
            raise UnsupportedDistributed(
                what="the step depends on a number that is known only after a collective",
                why="if it differs from the captured one on this rank alone, the other ranks have gone on without it",
                hint="read it before the first collective, or after the step",
                origin=node.origin,
            )
