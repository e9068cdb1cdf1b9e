"""From recorded programs to frozen ones: simplify, run the passes of freezing, fold constants, work in place.

The passes of freezing rewrite programs only: a weight in another form is computed by nodes that they add, and folding
evaluates those once, tensor by tensor, so that at most one is held in both forms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.analysis.infer import MetaInference
from dovetail.errors import BadOptionValue
from dovetail.ir.calling import CallPlan
from dovetail.ir.plan_inputs import renumbered
from dovetail.ir.program import Program
from dovetail.ir.sizes import Number
from dovetail.ir.stages import verify_program
from dovetail.partition.split import split_by_phase
from dovetail.passes.channels_last import channels_last
from dovetail.passes.fold_batch_norms import fold_batch_norms
from dovetail.passes.fold_constants import fold_constants
from dovetail.passes.fold_plan import plan_folding
from dovetail.passes.merge_linears import merge_linears
from dovetail.passes.remove_dropout import remove_dropout
from dovetail.pipeline.copies_back import carry_out_writes
from dovetail.pipeline.differential import verify_same_results
from dovetail.pipeline.driver import StepRecord, run_half_passes, run_passes, writes
from dovetail.pipeline.dump import BACKWARD, FORWARD, Dump
from dovetail.pipeline.options import Options

FreezingPass = Callable[[Program, Collection[str], MetaInference], tuple[Program, Any]]

BITWISE, NUMERICS = "bitwise", "numerics"

FREEZING_PASSES: tuple[tuple[str, str, FreezingPass], ...] = (
    ("remove_dropout", BITWISE, remove_dropout),
    ("fold_batch_norms", NUMERICS, fold_batch_norms),
    ("merge_linears", NUMERICS, merge_linears),
    ("channels_last", NUMERICS, channels_last),
)
"""Name, tier and function of each, in order."""

_BY_NAME = frozenset({"merge_linears"})  # does not pay on every machine; see its page


@dataclass(frozen=True, slots=True)
class Simplified:
    """A program after the passes of freezing. asked: values that must become constants. records: what each step did."""

    program: Program
    asked: frozenset[str]
    records: tuple[StepRecord, ...]


def chosen_passes(wish: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the passes that are asked for. wish: "bitwise", "fast", or names.

    Raises: BadOptionValue for a name that does not exist.
    """
    known = {name: tier for name, tier, _ in FREEZING_PASSES}
    if wish == "fast":
        return tuple(name for name in known if name not in _BY_NAME)
    if wish == BITWISE:
        return tuple(name for name, tier in known.items() if tier == BITWISE)
    names = (wish,) if isinstance(wish, str) else tuple(wish)
    for name in names:
        if name not in known:
            expected = f'"bitwise", "fast", or names out of {", ".join(known)}'
            raise BadOptionValue(option="passes", value=name, reason="there is no such pass", expected=expected)
    return tuple(name for name in known if name in names)


def simplify(
    program: Program,
    constants: Collection[str],
    infer: MetaInference,
    passes: Sequence[str],
    options: Options,
    dump: Dump,
    hints: Mapping[str, Number],
) -> Simplified:
    """The program after the passes that every program goes through, and after the passes of freezing with these names.

    constants: names of inputs whose contents are known.
    """
    dump.step("functional", program)
    program, records = run_passes(program, options, dump, hints)
    asked: set[str] = set()
    found = list(records)
    for name, tier, function in FREEZING_PASSES:
        if name not in passes or name in options.skip:
            continue
        start = time.perf_counter_ns()
        result, report = function(program, constants, infer)
        elapsed_us = (time.perf_counter_ns() - start) // 1000
        if options.verify and result is not program:
            verify_program(result, writes)
        if options.verify > 1 and result is not program and tier == BITWISE:
            verify_same_results(name, program, result, hints)
        record = StepRecord(name, len(program.nodes), len(result.nodes), elapsed_us, str(report), details=report)
        asked.update(getattr(report, "asked", ()))
        program = result
        found.append(record)
        dump.step(name, program, record)
    return Simplified(program, frozenset(asked), tuple(found))


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A program of which constants are not folded yet, its call plan, and the values that must become constants.

    Its inputs are `arguments` of the call, and then tensors by name.
    """

    program: Program
    plan: CallPlan
    asked: frozenset[str]
    arguments: int


@dataclass(frozen=True, slots=True)
class Folded:
    """A program whose inputs after those of the call are `held` tensors, by name."""

    program: Program
    plan: CallPlan
    held: tuple[str, ...]


def finish(folded: Folded, options: Options, dump: Dump, hints: Mapping[str, Number]) -> Program:
    """The program that runs: writes to its inputs carried out, in place where that is safe."""
    split = split_by_phase(folded.program)
    dump.step("forward", split.forward, part=FORWARD)
    dump.step("backward", split.backward, part=BACKWARD)
    written = carry_out_writes(split.forward, folded.plan)
    if written is not split.forward:
        dump.step("write_inputs-forward", written, part=FORWARD)
    return run_half_passes(written, options, dump, hints, FORWARD)


def freezing_pass_names() -> tuple[str, ...]:
    """The names of the passes of freezing."""
    return tuple(name for name, _, _ in FREEZING_PASSES)


def fold(
    unfolded: Sequence[Unfolded], tensors: dict[str, torch.Tensor], state: frozenset[str]
) -> tuple[list[Folded], StepRecord]:
    """The programs with their constants folded, and what that did.

    tensors: by name; results are added to them, and what no program needs any more is taken out as soon as nothing is
    to be computed from it. state: names of those that are not constant.
    """
    start = time.perf_counter_ns()
    programs = [one.program for one in unfolded]
    asked = {(one.program.name, name) for one in unfolded for name in one.asked}
    plan = plan_folding(programs, tensors.keys() - state, asked, taken=tensors.keys())
    rewritten, report = fold_constants(programs, tensors, plan)
    kept = list(zip(report.kept_inputs, report.added_inputs, strict=True))
    found = [_folded(*pair, *inputs) for pair, inputs in zip(zip(unfolded, rewritten, strict=True), kept, strict=True)]
    read = frozenset[str]().union(*(folded.held for folded in found))
    for name in tensors.keys() - read:
        del tensors[name]
    elapsed_us = (time.perf_counter_ns() - start) // 1000
    before, after = (sum(len(program.nodes) for program in group) for group in (programs, rewritten))
    return found, StepRecord("fold_constants", before, after, elapsed_us, str(report).split("\n")[0], details=report)


def _folded(one: Unfolded, program: Program, kept: tuple[int, ...], added: tuple[str, ...]) -> Folded:
    assert kept[: one.arguments] == tuple(range(one.arguments)), "arguments stay"
    old = [one.program.inputs[number].name for number in kept[one.arguments :]]
    plan = renumbered(one.plan, {number: new for new, number in enumerate(kept)})
    return Folded(program, replace(plan, extras_at=len(program.inputs)), (*old, *added))
