"""What a program will need before anything runs: its peak, what it is made of, and the lowest peak of any plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from dovetail.analysis import categories
from dovetail.analysis.peak_contents import contents_at_peak
from dovetail.capture.recording import Recording
from dovetail.capture.step_programs import StepPrograms
from dovetail.execute.needs import Needs, bytes_before_run
from dovetail.ir.program import Program, values_in
from dovetail.ir.signature import InputRole, Residual
from dovetail.ir.sizes import Number
from dovetail.ops.collectives import bytes_sent, collective_of
from dovetail.pipeline.compile import compile_recording
from dovetail.pipeline.driver import run_passes
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.held import STEP
from dovetail.pipeline.offload import file_in
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import Context, policy_for
from dovetail.pipeline.recompute import PlanPoint, StepPlans
from dovetail.pipeline.step import step_passes, writing_step
from dovetail.torch_compat.dispatch import schema_of, storage_key

PARTS = (
    "parameters",
    "gradients",
    "optimizer state",
    "buffers",
    "arguments",
    "residuals",
    "temporaries",
    "workspace",
)
_PART_OF = {
    categories.WEIGHTS: "parameters",
    categories.GRADIENTS: "gradients",
    categories.OPTIMIZER: "optimizer state",
    categories.BUFFERS: "buffers",
    categories.STATE: "buffers",
    categories.CONSTANTS: "buffers",
    categories.INPUTS: "arguments",
    categories.SAVED: "residuals",
}
_LARGEST_RUN_BYTES = 16 * 1024**2
_BEFORE_FLOOR = ("early_updates", "expand_foreach", "row_blocks")


@dataclass(frozen=True, slots=True)
class StateItem:
    """A tensor that is there before a call. label: what a user calls it."""

    label: str
    role: InputRole
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Consumer:
    """One piece of memory at the peak. part: one of `PARTS`. line: of the user's code that makes it, "" for state."""

    bytes: int
    part: str
    name: str
    line: str


class Plans(Protocol):
    """What lower peaks cost, found when it is asked for. `StepPlans` says what each is."""

    @property
    def floor_bytes(self) -> int:
        """The lowest peak."""

    @property
    def points(self) -> tuple[PlanPoint, ...]:
        """The curve."""

    def keeps(self, limit_bytes: int) -> bool:
        """Whether there is a plan under a limit."""


@dataclass(frozen=True, slots=True)
class ForwardPlans:
    """The one lower peak of a forward that is known."""

    floor_bytes: int
    points: tuple[PlanPoint, ...] = ()

    def keeps(self, limit_bytes: int) -> bool:
        """Whether it is under a limit."""
        return limit_bytes >= self.floor_bytes


@dataclass(frozen=True, slots=True)
class Figures:
    """state_bytes: of what is there before. transient_bytes: the peak above it. parts: bytes of each of `PARTS` there.

    consumers: the largest first. unknown_needs, extrapolated: operators of which it is not known what they take for
    themselves, and is known from smaller runs. plans: what lower peaks cost. bytes_sent: what this process hands to
    collectives, by operator and process group.
    """

    state_bytes: int
    transient_bytes: int
    parts: Mapping[str, int]
    consumers: tuple[Consumer, ...]
    unknown_needs: tuple[str, ...]
    extrapolated: tuple[str, ...]
    plans: Plans
    bytes_sent: Mapping[tuple[str, str], int]

    @property
    def floor_transient_bytes(self) -> int:
        """The lowest peak of any plan that is found, above the state."""
        return min(self.plans.floor_bytes, self.transient_bytes)

    def fits(self, transient_bytes: int) -> bool:
        """Whether some plan has no higher peak above the state. Looks no further than the answer needs."""
        return transient_bytes >= self.transient_bytes or (transient_bytes > 0 and self.plans.keeps(transient_bytes))


def figures_of_step(
    programs: StepPrograms,
    name: str,
    state: Sequence[StateItem],
    late: Sequence[StateItem],
    options: Options,
    hints: Mapping[str, Number],
) -> Figures:
    """What a recorded step needs.

    late: tensors that have a gradient from before until all checks have passed. Raises: MemoryLimitTooLow;
    UnsupportedStep where sizes depend on data.
    """
    held = _state(state, late)
    state_bytes = sum(consumer.bytes for consumer in held)
    dump, needs = Dump(None, name, hints, False, None, None), Needs(hints, _LARGEST_RUN_BYTES)
    context = Context(options, hints, infer=programs.infer, state_bytes=state_bytes, held=STEP, needs=needs)
    program, _ = writing_step(programs, context, dump)
    ordered, _ = run_passes("step", program, context, dump, only=_BEFORE_FLOOR)
    plans = StepPlans(ordered, hints, policy_for(ordered, options, STEP), needs, file_in(options.offload))
    planned, _ = run_passes("step", program, context, dump, only=step_passes(program, context))
    return _figures(planned, held, hints, needs, bytes_before_run(planned), plans)


def figures_of_forward(
    recording: Recording, name: str, state: Sequence[StateItem], options: Options, hints: Mapping[str, Number]
) -> Figures:
    """What the forward of a recorded function needs, with what it saves for backward."""
    needs, held = Needs(hints, _LARGEST_RUN_BYTES), _state(state, ())
    program = compile_recording(recording, name, options, hints).forward.program
    frugal = program
    if any(isinstance(role, Residual) for role in program.signature.outputs):
        least = replace(options, partition="min_cut", recompute="all")
        frugal = compile_recording(recording, name, least, hints).forward.program
    floor = contents_at_peak(_measured(frugal, needs), hints, needs.need_of).peak_bytes
    return _figures(program, held, hints, needs, 0, ForwardPlans(floor))


def _measured(program: Program, needs: Needs) -> Program:
    needs.measure(program.nodes)
    return program


def _state(state: Sequence[StateItem], late: Sequence[StateItem]) -> list[Consumer]:
    """The memory that is there before, each piece once."""
    found: dict[int, Consumer] = {}
    for item in state:
        if item.tensor.layout is torch.strided:
            size = item.tensor.untyped_storage().nbytes()
            part = _PART_OF[categories.input_category(item.role)]
            found.setdefault(storage_key(item.tensor), Consumer(size, part, item.label, ""))
    gradients = [Consumer(x.tensor.numel() * x.tensor.element_size(), "gradients", f"{x.label}.grad", "") for x in late]
    return [*found.values(), *gradients]


def _figures(
    program: Program,
    held: Sequence[Consumer],
    hints: Mapping[str, Number],
    needs: Needs,
    least: int,
    plans: Plans,
) -> Figures:
    needs = Needs(hints, needs.largest_bytes)  # which names operators of this program alone
    contents = contents_at_peak(_measured(program, needs), hints, needs.need_of)
    roles = zip(program.signature.outputs, program.outputs, strict=True)
    saved = values_in(tuple(value for role, value in roles if isinstance(role, Residual)))
    residuals = {value.tensor.storage for value in saved if value.is_tensor}
    purposes = categories.made_purposes(program, categories.handed_to_backward(program) | residuals)
    consumers = list(held)
    for piece in contents.held:
        purpose = purposes[piece.storage]
        is_later = 0 <= purpose.later_from <= contents.node
        part = _PART_OF.get(purpose.later if is_later else purpose.category, "temporaries")
        consumers.append(Consumer(piece.bytes, part, piece.value.name, str(program.nodes[piece.maker].origin)))
    workspace = max(contents.workspace_bytes, contents.workspace_bytes + least - contents.peak_bytes)
    if workspace:
        node = program.nodes[contents.node] if contents.node >= 0 else None
        line = str(node.origin) if node is not None else ""
        consumers.append(Consumer(workspace, "workspace", "what operators take for themselves", line))
    state_bytes, transient = sum(x.bytes for x in held), max(contents.peak_bytes, least)
    return Figures(
        state_bytes=state_bytes,
        transient_bytes=transient,
        parts={part: sum(x.bytes for x in consumers if x.part == part) for part in PARTS},
        consumers=tuple(sorted(consumers, key=lambda consumer: -consumer.bytes)),
        unknown_needs=tuple(dict.fromkeys(str(collective_of(node) or node.target) for node in needs.unknown)),
        extrapolated=tuple(dict.fromkeys(str(node.target) for node in needs.extrapolated)),
        plans=plans,
        bytes_sent=_bytes_sent(program),
    )


def _bytes_sent(program: Program) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for node in program.nodes:
        op = collective_of(node)
        if op is not None:
            key = schema_of(op).name.strip("_"), str(node.args[-1])
            found[key] = found.get(key, 0) + bytes_sent(node)
    return found
