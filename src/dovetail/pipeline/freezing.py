"""From recorded programs to frozen ones: simplify, run the passes of freezing, fold constants, work in place.

The passes of freezing rewrite programs only: a weight in another form is computed by nodes that they add, and folding
evaluates those once, tensor by tensor, so that at most one is held in both forms.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.deferred import deferred
from dovetail.errors import BadOptionValue
from dovetail.ir.calling import CallPlan
from dovetail.ir.draft import Draft
from dovetail.ir.plan_inputs import renumbered
from dovetail.ir.program import Node, Operand, Program, Value, values_in
from dovetail.ir.signature import Buffer
from dovetail.ops.packing import is_packing, unpacks
from dovetail.partition.policy import Mark, Policy
from dovetail.partition.split import split_by_phase
from dovetail.pipeline.copies_back import carry_out_writes
from dovetail.pipeline.driver import StepRecord, elapsed_us, run_passes, weighed_passes
from dovetail.pipeline.dump import BACKWARD, FORWARD, Dump
from dovetail.pipeline.held import FROZEN
from dovetail.pipeline.memory_limit import MemoryLimit, memory_limit
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import PASSES, Context
from dovetail.torch_compat import onednn_low_precision

if TYPE_CHECKING:
    from dovetail.execute import needs
    from dovetail.passes.fold_constants import FoldReport
    from dovetail.passes.fold_plan import FoldingPlan
    from dovetail.pipeline import recompute
else:
    needs = deferred("dovetail.execute.needs")
    recompute = deferred("dovetail.pipeline.recompute")

_fold_constants, _fold_plan = deferred("dovetail.passes.fold_constants"), deferred("dovetail.passes.fold_plan")

_BY_NAME = frozenset({"merge_linears"})  # does not pay on every machine; see its page
_FEWER_BITS = {"int8": "quantize", "bf16": "narrow"}


def chosen_passes(wish: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the passes that are asked for. wish: "bitwise", "fast", "int8", "bf16", or names.

    Raises: BadOptionValue for a name that does not exist, and for what this processor cannot compute as it should.
    """
    known = {spec.name: spec.tier for spec in PASSES["frozen"].specs}
    expected = f'"bitwise", "fast", "int8", "bf16", or names from {", ".join(known)}'
    if not isinstance(wish, Iterable):
        raise BadOptionValue(option="passes", value=wish, reason="it names no passes", expected=expected)
    if wish == "bitwise":
        return tuple(name for name, tier in known.items() if tier == wish)
    names = (wish,) if isinstance(wish, str) else tuple(wish)
    if isinstance(wish, str) and (wish == "fast" or wish in _FEWER_BITS):
        fast = [name for name, tier in known.items() if tier != "precision" and name not in _BY_NAME]
        names = (*fast, _FEWER_BITS.get(wish, "prepack"))
    for name in names:
        if name not in known:
            raise BadOptionValue(option="passes", value=name, reason="there is no such pass", expected=expected)
    _refuse_what_is_missing(wish, names)
    return tuple(name for name in known if name in names)


def _refuse_what_is_missing(wish: object, names: Collection[str]) -> None:
    reason = None
    if "quantize" in names and not onednn_low_precision.multiplies_int8():
        reason = "this processor, or this torch, has no exact products of 8-bit integers (VNNI, and oneDNN)"
    elif "narrow" in names and not onednn_low_precision.multiplies_bfloat16():
        reason = "this processor, or this torch, has no instructions for bfloat16 (AVX512_BF16, and oneDNN)"
    if reason is not None:
        raise BadOptionValue(option="passes", value=wish, reason=reason, expected='"fast"')


def refuse_unchanged(wish: object, reports: Sequence[Any]) -> None:
    """Raises: BadOptionValue where fewer bits were asked for and no layer of any program computes in them."""
    counts = [report for report in reports if hasattr(report, "changed")]
    if not counts or any(report.changed for report in counts):
        return
    reasons = [f"{name}: {reason}" for report in counts for name, reason in report.left]
    shown = "; ".join(reasons[:3]) or "it multiplies by no constant weight"
    reason = f"no layer of this model would compute in fewer bits ({shown})"
    raise BadOptionValue(option="passes", value=wish, reason=reason, expected='"fast"')


def simplify(
    program: Program, passes: Collection[str], context: Context, dump: Dump
) -> tuple[Program, frozenset[str], list[Any]]:
    """The program after the passes that every program goes through, and after the passes of freezing with these names.

    Also gives the names of values that must become constants, and the reports of the passes of freezing.
    """
    dump.step("functional", program)
    program, _ = run_passes("joint", program, context, dump)
    program, records = run_passes("frozen", program, context, dump, only=passes)
    reports: list[Any] = [record.details for record in records if record.details is not None]
    asked = (set(report.asked) - set(getattr(report, "opaque", ())) for report in reports)
    return program, frozenset[str]().union(*asked), reports


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


def within_limit(folded: Folded, context: Context, dump: Dump) -> Folded:
    """The program in which nodes run again as far as the limit asks for it. Raises: MemoryLimitTooLow."""
    start, whole, limit = time.perf_counter_ns(), folded.program, _limit(context)
    if limit is None:
        return folded
    packings = tuple(_packings(whole))
    program = _given_packed(whole, packings) if packings else whole

    patterns = context.options.policy
    patterns.meet(program)
    policy = Policy("all", patterns.of(program))

    def before(changed: Program) -> Program:
        written = carry_out_writes(split_by_phase(changed).forward, folded.plan)
        return weighed_passes("packed", written, context, without="reinplace")

    state, plans = context.state_bytes, context.plans
    changed, report = recompute.recompute(program, context.hints, plans, limit, state, policy, FROZEN, before=before)
    if packings:
        nodes = (*packings, *changed.nodes)
        changed = replace(changed, nodes=nodes, inputs=whole.inputs, signature=whole.signature)
    spent, counts = elapsed_us(start), (len(whole.nodes), len(changed.nodes))
    dump.step("recompute", changed, StepRecord("recompute", *counts, spent, str(report), details=report))
    return replace(folded, program=changed)


def _given_packed(program: Program, packings: tuple[Node, ...]) -> Program:
    """The program that is given packed weights: they are as large as those that they stand for, and made once."""
    packed = [value for node in packings for value in node.results()]
    signature, left = program.signature, set(packings)
    return replace(
        program,
        nodes=tuple(node for node in program.nodes if node not in left),
        inputs=(*program.inputs, *packed),
        signature=replace(signature, inputs=(*signature.inputs, *(Buffer(value.name) for value in packed))),
    )


def refuse_idle_policy(options: Options) -> None:
    """Raises: BadOptionValue for a policy that has no effect on a frozen program."""
    patterns = options.policy
    if Mark.MUST_RECOMPUTE in patterns.marks.values():
        reason, expected = "nothing is made again for the backward of a frozen program: it has none", "RECOMPUTE"
    elif patterns.marks and options.memory_limit is None:
        reason, expected = "nothing runs again in a frozen program without a limit", "it with a memory_limit"
    else:
        return
    raise BadOptionValue(option="policy", value=patterns, reason=reason, expected=expected)


def _limit(context: Context) -> MemoryLimit | None:
    given = context.options.memory_limit
    return None if given is None else memory_limit(given)


def finish(folded: Folded, context: Context, dump: Dump) -> Program:
    """The program that runs: writes to its inputs carried out, in place where that is safe.

    Raises: MemoryLimitTooLow.
    """
    split = split_by_phase(folded.program)
    dump.step("forward", split.forward, part=FORWARD)
    dump.step("backward", split.backward, part=BACKWARD)
    written = carry_out_writes(split.forward, folded.plan)
    if written is not split.forward:
        dump.step("write_inputs-forward", written, part=FORWARD)
    limit = _limit(context)
    as_weighed = {} if limit is None else {"reinplace": True}
    program = run_passes("packed", written, context, dump, decisions=as_weighed)[0]
    if limit is not None:
        measured = needs.Needs(context.hints)
        measured.measure(program.nodes)
        peak = simulate_peak(program, context.hints, need_of=measured.need_of).peak_bytes
        if peak > limit.above(context.state_bytes):
            raise recompute.too_low(limit, peak, context.state_bytes, FROZEN)
    return program


def fold(
    unfolded: Sequence[Unfolded], tensors: dict[str, torch.Tensor], state: frozenset[str]
) -> tuple[list[Folded], StepRecord]:
    """The programs with their constants folded, but for packed weights, and what that did.

    tensors: by name; results are added to them, and what no program needs any more is taken out as soon as nothing is
    to be computed from it. state: names of those that are not constant.
    """
    start = time.perf_counter_ns()
    asked = {(one.program.name, name) for one in unfolded for name in one.asked}
    programs = [one.program for one in unfolded]
    plan = _fold_plan.plan_folding(programs, tensors.keys() - state, asked, taken=tensors.keys(), opaque=False)
    found, report = _evaluated(unfolded, plan, tensors)
    spent = elapsed_us(start)
    before, after = (sum(len(one.program.nodes) for one in group) for group in (unfolded, found))
    return found, StepRecord("fold_constants", before, after, spent, str(report).split("\n")[0], details=report)


@dataclass(frozen=True, slots=True)
class Packing:
    """How programs come to run over packed weights. packed: for each constant that is packed as it is, the packed one.

    Packed weights are for the machine that they are made on: they are made where a program is to run.
    """

    unfolded: tuple[Unfolded, ...]
    plan: FoldingPlan
    packed: Mapping[str, str]


def plan_packing(folded: Sequence[Folded], names: Collection[str], state: frozenset[str]) -> Packing | None:
    """The packing of the weights that the programs pack; None when there are none.

    names: of all tensors that the programs hold. state: of those that are not constant.
    """
    if not any(_packings(one.program) for one in folded):
        return None
    programs = _sharing_packed([one.program for one in folded])
    asked = {(program.name, v.name) for program in programs for node in _packings(program) for v in node.results()}
    plan = _fold_plan.plan_folding(programs, set(names) - state, asked, taken=names)
    unfolded = [
        Unfolded(program, one.plan, frozenset(), len(program.inputs) - len(one.held))
        for program, one in zip(programs, folded, strict=True)
    ]
    return Packing(tuple(unfolded), plan, _packed_from(programs, plan))


def pack(packing: Packing, tensors: dict[str, torch.Tensor]) -> list[Folded]:
    """The programs over packed weights. tensors: those they hold; changed as in `fold`."""
    return _evaluated(packing.unfolded, packing.plan, tensors)[0]


def without_packing(folded: Folded) -> Folded:
    """The program over plain weights, which the primitives over packed ones take as well."""
    draft = Draft(folded.program)
    for node in folded.program.nodes:
        if is_packing(node.target):
            (plain,) = values_in(node.args[:1])
            draft.substitute(node.results()[0], draft.current(plain))
        else:
            draft.take(node)
    return replace(folded, program=draft.finish())


def _packings(program: Program) -> list[Node]:
    return [node for node in program.nodes if is_packing(node.target)]


def _sharing_packed(programs: Sequence[Program]) -> list[Program]:
    """The programs with constants packed for inputs of the same size, their last operand: that of the first program."""
    sizes: dict[str, Operand] = {}

    def shared(node: Node, inputs: Collection[Value]) -> Node:
        if not is_packing(node.target) or node.args[0] not in inputs:
            return node
        *same, size = node.args
        what = repr([node.target, *same])  # constants have one name in all programs
        return replace(node, args=(*same, sizes.setdefault(what, size)))

    found = []
    for program in programs:
        inputs = set(program.inputs)
        found.append(program.replace_nodes(tuple([shared(node, inputs) for node in program.nodes])))
    return found


def _packed_from(programs: Sequence[Program], plan: FoldingPlan) -> dict[str, str]:
    """For each constant that is packed as it is, the name of the packed one."""
    names = dict(plan.names)
    found: dict[str, str] = {}
    for program, numbers in zip(programs, plan.pool.of, strict=True):
        for node in _packings(program):
            source, number = node.args[0], numbers.get(node.results()[0])
            if not isinstance(source, Value) or not unpacks(node.target):
                continue
            if source in program.inputs and number in names:
                found[source.name] = names[number]
    return found


def _evaluated(
    unfolded: Sequence[Unfolded], plan: FoldingPlan, tensors: dict[str, torch.Tensor]
) -> tuple[list[Folded], FoldReport]:
    rewritten, report = _fold_constants.fold_constants([one.program for one in unfolded], tensors, plan)
    parts = zip(unfolded, rewritten, report.kept_inputs, report.added_inputs, strict=True)
    found = [_renumbered(*part) for part in parts]
    read = frozenset[str]().union(*(folded.held for folded in found))
    for name in tensors.keys() - read:
        del tensors[name]
    return found, report


def _renumbered(one: Unfolded, program: Program, kept: tuple[int, ...], added: tuple[str, ...]) -> Folded:
    assert kept[: one.arguments] == tuple(range(one.arguments)), "arguments stay"
    old = [one.program.inputs[number].name for number in kept[one.arguments :]]
    plan = renumbered(one.plan, {number: new for new, number in enumerate(kept)})
    return Folded(program, replace(plan, extras_at=len(program.inputs)), (*old, *added))
