"""The passes, in order, for each kind of program, and what each takes besides the program.

| kind | what it is | made from |
|---|---|---|
| joint | forward and backward, or a whole step, functional | a recording |
| forward, backward | a half of a split | joint |
| inference | the forward half where nothing is trained | joint |
| fast | a whole training step, functional, where results may differ by rounding | joint |
| step | a whole training step that writes its state | fast |
| frozen | an inference program whose constants are inputs | joint |
| packed | the same with constants folded, as it runs | frozen |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from dovetail.analysis.liveness import Need, simulate_peak
from dovetail.deferred import deferred
from dovetail.ir.program import Node, Program, Stage
from dovetail.ir.sizes import Number
from dovetail.partition.policy import Policy
from dovetail.passes.expand_foreach import expand_foreach
from dovetail.passes.inplace import PlanMemory, work_in_place
from dovetail.passes.sink import sink
from dovetail.pipeline.dump import BACKWARD, FORWARD, JOINT
from dovetail.pipeline.held import GRAPH, STEP, Held
from dovetail.pipeline.memory_limit import memory_limit
from dovetail.pipeline.options import Options

if TYPE_CHECKING:
    from dovetail.execute.needs import Needs
    from dovetail.pipeline import offload, recompute
else:
    offload, recompute = deferred("dovetail.pipeline.offload"), deferred("dovetail.pipeline.recompute")

# A frozen program that is loaded needs the passes named above, and none of these.
_channels_last = deferred("dovetail.passes.channels_last")
_chunk_rows = deferred("dovetail.passes.chunk_rows")
_common_subexpressions = deferred("dovetail.passes.common_subexpressions")
_dead_code = deferred("dovetail.passes.dead_code")
_early_updates = deferred("dovetail.passes.early_updates")
_fold_batch_norms = deferred("dovetail.passes.fold_batch_norms")
_gather_once = deferred("dovetail.passes.gather_once")
_late_collectives = deferred("dovetail.passes.late_collectives")
_merge_linears = deferred("dovetail.passes.merge_linears")
_needs = deferred("dovetail.execute.needs")
_narrow = deferred("dovetail.passes.narrow")
_no_ops = deferred("dovetail.passes.no_ops")
_overlap = deferred("dovetail.passes.overlap")
_panels = deferred("dovetail.passes.panels")
_prepack = deferred("dovetail.passes.prepack")
_quantize = deferred("dovetail.passes.quantize")
_recurrent_panels = deferred("dovetail.passes.recurrent_panels")
_remove_dropout = deferred("dovetail.passes.remove_dropout")
_row_blocks = deferred("dovetail.passes.row_blocks")
_transpose_weights = deferred("dovetail.passes.transpose_weights")

Tier: TypeAlias = Literal["bitwise", "numerics", "precision"]


@dataclass(frozen=True, slots=True)
class Context:
    """What is known besides the program; a pass takes what it needs.

    hints: a number for each size symbol. donated: numbers of inputs whose memory may be used. dying: of inputs that
    nobody else holds. constants: names of inputs that are the same in every call. infer: the `MetaInference` of what
    was recorded. contents: the tensors behind inputs, by name. plans: how programs work in place, worked out once.
    state_bytes: of what is there before a run, which a limit counts. held: how errors speak of that. needs: what
    operators take, where that is not measured as they are.
    """

    options: Options
    hints: Mapping[str, Number] = field(default_factory=dict)
    donated: Collection[int] = ()
    dying: Collection[int] = ()
    constants: Collection[str] = ()
    infer: Any = None
    contents: Mapping[str, torch.Tensor] = field(default_factory=dict)
    plans: PlanMemory = field(default_factory=PlanMemory)
    state_bytes: int = 0
    held: Held = GRAPH
    needs: Needs | None = None


Run: TypeAlias = Callable[[Program, Context], tuple[Program, Any]]


@dataclass(frozen=True, slots=True)
class PassSpec:
    """A pass. run: gives the program that it makes, or the given one where it changes nothing, and a report.

    tier: whether results keep every bit, differ by rounding, or have fewer correct bits. accepts: stages of programs
    that it takes. yields: the stage of what it makes; None: that of what it was given. weighs_itself: the program that
    it makes is the better one, whatever the simulated peak is before later passes.
    """

    name: str
    tier: Tier
    accepts: frozenset[Stage]
    yields: Stage | None
    run: Run
    weighs_itself: bool = False


@dataclass(frozen=True, slots=True)
class PassList:
    """The passes for a kind of program, in order.

    after: the kind that it is made from. part: what dumps call it. weighs: whether what raises the simulated peak is
    dropped; elsewhere passes weigh what they make themselves, or save time.
    """

    specs: tuple[PassSpec, ...]
    after: str | None = None
    part: str = JOINT
    weighs: bool = False


def _plain(module: ModuleType, name: str) -> Run:
    return lambda program, context: getattr(module, name)(program)


def _over_constants(module: ModuleType, name: str) -> Run:
    return lambda program, given: getattr(module, name)(program, given.constants, given.infer)


_LEAST_CHUNKED = 1 << 20  # bytes: calls for blocks cost more time than smaller ones are worth
_FUNCTIONAL = frozenset({Stage.FUNCTIONAL, Stage.WHOLE})
_LATE = frozenset({Stage.FUNCTIONAL, Stage.WHOLE, Stage.SPLIT, Stage.IN_PLACE})

_EARLY_UPDATES = PassSpec(
    "early_updates", "bitwise", _LATE, None, lambda p, given: _early_updates.early_updates(p, given.plans)
)
_EXPAND_FOREACH = PassSpec("expand_foreach", "bitwise", _LATE, None, lambda p, given: expand_foreach(p, given.plans))
_ROW_BLOCKS = PassSpec(
    "row_blocks", "bitwise", _LATE, None, lambda p, given: _row_blocks.row_blocks(p, given.infer, given.plans)
)
_SINK = PassSpec("sink", "bitwise", _LATE, None, lambda p, given: sink(p, given.dying, given.plans), weighs_itself=True)
_REINPLACE = PassSpec(
    "reinplace",
    "bitwise",
    _LATE,
    Stage.IN_PLACE,
    lambda p, given: work_in_place(p, given.donated, hints=given.hints, memory=given.plans),
)
_FOLD_BATCH_NORMS = PassSpec(
    "fold_batch_norms",
    "numerics",
    _FUNCTIONAL,
    None,
    lambda p, given: _fold_batch_norms.fold_batch_norms(
        p, given.constants, given.infer, frugal=True, contents=given.contents
    ),
)
_CHUNK_ROWS = PassSpec(
    "chunk_rows",
    "numerics",
    frozenset({Stage.WHOLE}),
    None,
    lambda p, given: _chunk_rows.chunk_rows(p, given.infer, given.hints, _LEAST_CHUNKED),
)
_HALF = (_EXPAND_FOREACH, _SINK, _REINPLACE)


def policy_for(program: Program, options: Options, held: Held) -> Policy:
    """What may run again in a program, and what the user asks for. Raises: BadOptionValue."""
    is_free = options.recompute == "auto" or held is STEP  # steps do not read the option
    return Policy("all" if is_free else options.recompute, options.policy.of(program))


def _recompute(program: Program, given: Context) -> tuple[Program, object]:
    options = given.options
    limit = None if options.memory_limit is None else memory_limit(options.memory_limit)
    if limit is None and options.partition != "auto":
        return program, "nothing runs again, as partition= says"
    policy = policy_for(program, options, given.held)
    return recompute.recompute(
        program,
        given.hints,
        given.plans,
        limit,
        given.state_bytes,
        policy,
        held=given.held,
        needs=given.needs,
        file=offload.file_in(options.offload),
    )


_RECOMPUTE = PassSpec(
    "recompute", "bitwise", frozenset({Stage.SPLIT, Stage.IN_PLACE}), None, _recompute, weighs_itself=True
)


def _run_overlap(program: Program, given: Context) -> tuple[Program, object]:
    limit = None if given.options.memory_limit is None else memory_limit(given.options.memory_limit)
    most = -1 if limit is None else limit.above(given.state_bytes)
    made: tuple[Program, object] = _overlap.overlap(program, given.hints, lambda: _needs_of(program, given), most)
    return made


def _run_gather_once(program: Program, given: Context) -> tuple[Program, object]:
    limit = None if given.options.memory_limit is None else memory_limit(given.options.memory_limit)
    most = None if limit is None else limit.above(given.state_bytes)
    made: tuple[Program, object] = _gather_once.gather_once(program, _weighing(given), most)
    return made


def _weighing(given: Context) -> Callable[[Program], int]:
    """Gives the peak of a program once it works in place, with what operators take."""

    def weigh(program: Program) -> int:
        in_place = given.plans.in_place(program)[1]
        return simulate_peak(in_place, given.hints, need_of=_needs_of(in_place, given)).peak_bytes

    return weigh


def _needs_of(program: Program, given: Context) -> Callable[[Node], Need]:
    needs = given.needs or _needs.Needs(given.hints)
    needs.measure(program.nodes)
    found: Callable[[Node], Need] = needs.need_of
    return found


_LATE_COLLECTIVES = PassSpec(
    "late_collectives",
    "bitwise",
    _LATE,
    None,
    lambda p, given: _late_collectives.late_collectives(p, _weighing(given)),
)
_GATHER_ONCE = PassSpec("gather_once", "bitwise", _LATE, None, _run_gather_once)
_OVERLAP = PassSpec("overlap", "bitwise", frozenset({Stage.IN_PLACE}), None, _run_overlap)

PASSES: dict[str, PassList] = {
    "joint": PassList(
        (
            PassSpec("dead_code", "bitwise", _FUNCTIONAL, None, _plain(_dead_code, "remove_dead_code")),
            PassSpec("no_ops", "bitwise", _FUNCTIONAL, None, _plain(_no_ops, "remove_no_ops")),
            PassSpec(
                "common_subexpressions",
                "bitwise",
                _FUNCTIONAL,
                None,
                _plain(_common_subexpressions, "merge_common_subexpressions"),
            ),
        ),
        weighs=True,
    ),
    "forward": PassList(_HALF, "joint", FORWARD, weighs=True),
    "backward": PassList(_HALF, "joint", BACKWARD, weighs=True),
    "inference": PassList((_EXPAND_FOREACH, _SINK, _RECOMPUTE, _REINPLACE), "joint", FORWARD, weighs=True),
    "fast": PassList((_CHUNK_ROWS,), "joint"),
    "step": PassList(
        (
            *(_EARLY_UPDATES, _EXPAND_FOREACH, _ROW_BLOCKS, _LATE_COLLECTIVES, _GATHER_ONCE),
            *(_RECOMPUTE, _REINPLACE, _OVERLAP),
        ),
        "fast",
    ),
    "frozen": PassList(
        (
            PassSpec(
                "remove_dropout",
                "bitwise",
                _FUNCTIONAL,
                None,
                _over_constants(_remove_dropout, "remove_dropout"),
            ),
            _FOLD_BATCH_NORMS,
            PassSpec(
                "merge_linears",
                "numerics",
                _FUNCTIONAL,
                None,
                _over_constants(_merge_linears, "merge_linears"),
            ),
            PassSpec("quantize", "precision", _FUNCTIONAL, None, _over_constants(_quantize, "quantize")),
            PassSpec("narrow", "precision", _FUNCTIONAL, None, _over_constants(_narrow, "narrow")),
            PassSpec(
                "channels_last",
                "numerics",
                _FUNCTIONAL,
                None,
                _over_constants(_channels_last, "channels_last"),
            ),
            PassSpec("panels", "numerics", _FUNCTIONAL, None, _over_constants(_panels, "panels")),
            PassSpec(
                "recurrent_panels",
                "numerics",
                _FUNCTIONAL,
                None,
                _over_constants(_recurrent_panels, "recurrent_panels"),
            ),
            PassSpec(
                "transpose_weights",
                "numerics",
                _FUNCTIONAL,
                None,
                _over_constants(_transpose_weights, "transpose_weights"),
            ),
            PassSpec("prepack", "numerics", _FUNCTIONAL, None, _over_constants(_prepack, "prepack")),
        ),
        "joint",
    ),
    "packed": PassList(_HALF, "frozen", FORWARD, weighs=True),
}


def is_stopped(kind: str, last: str | None) -> bool:
    """Whether the pass after which a compilation stops is one of an earlier kind of program."""
    earlier = PASSES[kind].after
    if earlier is None or last is None:
        return False
    return any(spec.name == last for spec in PASSES[earlier].specs) or is_stopped(earlier, last)
