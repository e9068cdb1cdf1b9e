"""What one program of a step reads, checks, writes and leaves behind: `step.explain()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.execute.transfers import Spilled
from dovetail.frontends.step.variant import StepVariant
from dovetail.ir.calling import GradientExit
from dovetail.ir.plan_text import origin_of
from dovetail.ir.signature import Constant, HeldGradient, NumberInput, UserInput
from dovetail.memory.arena import ArenaReport, plan_arena
from dovetail.memory.in_arena import ArenaPlan
from dovetail.ops.collectives import bytes_sent
from dovetail.ops.prims import GUARD, GUARD_NUMBER
from dovetail.pipeline.peak_account import MemoryAccount, peak_account

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class StepExplanation:
    """One program of a step.

    reason: why it was captured. nodes: how many operators it runs. peak_bytes: of a call, above state and arguments,
    which have state_bytes; a `memory_limit` is kept by it. run_bytes: the same where native code runs, which may take
    less. memory: what makes the peak up. arena: one for all that it makes, as it could be planned.
    in_arena: what lies in one as it runs; None without `arena=True`. unknown_needs: operators of which it is not known
    what they take for themselves. state, arguments, gradients, numbers, passing: what it takes, by what a user would
    call it; passing: how many tensors it met that nothing holds. written: what it writes in place.
    questions: what is asked before the first write, and the answers that it was captured for. first_write: how many
    operators run before it. results: where each comes from. left: what is put into Python objects afterwards.
    host_calls: what is really called, in order. dropped, kept: of how many tensors the gradients of this step are not
    left, and are. passes: what each pass says of itself. in_eager_mode: why calls of the step ran so. offloaded: what
    goes to a file and comes back. file_bytes: of that file. collectives: in order, by process group; bytes_sent: that a
    rank hands to them in each call.
    """

    name: str
    reason: str
    nodes: int
    peak_bytes: int
    run_bytes: int
    memory: MemoryAccount
    state_bytes: int
    arena: ArenaReport
    in_arena: ArenaPlan | None
    unknown_needs: tuple[str, ...]
    state: tuple[str, ...]
    arguments: tuple[str, ...]
    gradients: tuple[str, ...]
    numbers: tuple[str, ...]
    passing: int
    written: tuple[str, ...]
    questions: tuple[str, ...]
    first_write: int
    results: tuple[str, ...]
    left: tuple[str, ...]
    host_calls: tuple[str, ...]
    dropped: int
    kept: int
    passes: tuple[tuple[str, str], ...]
    in_eager_mode: tuple[str, ...] = ()
    offloaded: tuple[Spilled, ...] = ()
    file_bytes: int = 0
    collectives: tuple[str, ...] = ()
    bytes_sent: int = 0

    def __str__(self) -> str:
        return "\n".join(self._locator())

    def _locator(self) -> Iterator[str]:
        above = f"above {self.state_bytes:,} of state and arguments"
        yield f"{self.name}: {self.nodes} operators, peak {self.peak_bytes:,} bytes {above}"
        if self.in_arena is None:
            yield f"  one arena would have {self.arena}"
        else:
            yield f"  runs in an arena of {self.in_arena}"
        if self.run_bytes < self.peak_bytes:
            yield f"  native code takes {self.run_bytes:,} bytes at the peak, operators one by one the above"
        if self.peak_bytes:
            yield f"  at the peak: {', '.join(f'{kind} {amount:,}' for kind, amount in self.memory.sums().items())}"
        if self.unknown_needs:
            yield f"  not counted: what these take for themselves: {_listed(self.unknown_needs)}"
        yield f"  captured because {self.reason}"
        for title, items in (
            ("state", self.state),
            ("arguments", self.arguments),
            ("gradients from before", self.gradients),
            ("numbers, read in each call", self.numbers),
            ("written in place", self.written),
            ("results", self.results),
            ("numbers left in Python objects", self.left),
            ("called in Python", self.host_calls),
            (f"checked before the first write (operator {self.first_write})", self.questions),
        ):
            if items:
                yield f"  {title}: {_listed(items)}"
        if self.collectives:
            yield f"  collectives, {self.bytes_sent:,} bytes from each rank: {_listed(self.collectives)}"
        if self.passing:
            yield f"  {self.passing} unreachable tensors are read; they must not change"
        if self.in_eager_mode:
            yield f"  calls in eager mode: {_listed(self.in_eager_mode)}"
        yield f"  gradients: left in .grad of {self.kept} tensors, dropped for {self.dropped}"
        for name, report in self.passes:
            yield f"  {name}: {report}"
        yield from self._file_rows()

    def _file_rows(self) -> Iterator[str]:
        if not self.offloaded:
            return
        written = sum(value.size_bytes for value in self.offloaded)
        read = sum(value.size_bytes * value.reads for value in self.offloaded)
        count = len(self.offloaded)
        yield f"  {count} values go to a file of {self.file_bytes:,} bytes: {written:,} written, {read:,} read"
        for value in sorted(self.offloaded, key=lambda value: -value.size_bytes)[:_SHOWN]:
            times = "" if value.reads == 1 else f", read {value.reads} times"
            yield f"    {value.size_bytes:>14,}  {value.name}{times}  {value.origin}"
        if count > _SHOWN:
            yield f"    and {count - _SHOWN} more"


def _listed(items: Sequence[str]) -> str:
    more = f", and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def explain_variant(name: str, variant: StepVariant, in_eager_mode: Sequence[str] = ()) -> StepExplanation:
    """Put together what is known of a variant. in_eager_mode: why calls ran so."""
    guard, runner = variant.guard, variant.runner
    compiled = runner.program
    program, plan = compiled.program, compiled.plan
    roles = list(zip(program.signature.inputs, compiled.labels, strict=True))

    def of(*kinds: type) -> tuple[str, ...]:
        return tuple(label for role, label in roles if isinstance(role, kinds))

    others = (UserInput, HeldGradient, NumberInput, Constant)
    asked = {node.args[2] for node in program.nodes if len(node.args) == 3 and _is_question(node.target)}
    exits = [gradient.exit for gradient in plan.gradients]
    return StepExplanation(
        name=name,
        reason=variant.reason,
        nodes=len(program.nodes),
        peak_bytes=compiled.peak_bytes,
        run_bytes=compiled.run_bytes,
        memory=peak_account(program, compiled.hints, compiled.need_of, compiled.peak_bytes),
        state_bytes=compiled.state_bytes,
        arena=plan_arena(program, compiled.hints, compiled.need_of),
        in_arena=compiled.arena,
        unknown_needs=compiled.unknown_needs,
        state=tuple(label for role, label in roles if not isinstance(role, others)),
        arguments=of(UserInput),
        gradients=of(HeldGradient),
        numbers=of(NumberInput),
        passing=len(of(Constant)),
        written=compiled.written,
        questions=tuple(str(q) for number, q in enumerate(guard.questions) if number in asked),
        first_write=compiled.first_write,
        results=tuple(str(origin_of(rule, compiled.names)) for rule in plan.outputs[: runner.count]),
        left=tuple(guard.record.labels.get(path, str(path)) for path, _ in runner.writes),
        host_calls=tuple(str(call) for call in runner.host_calls),
        dropped=sum(1 for e in exits if e is GradientExit.NONE),
        kept=sum(1 for e in exits if not isinstance(e, GradientExit)),
        passes=compiled.reports,
        in_eager_mode=tuple(in_eager_mode),
        offloaded=() if compiled.transfers is None else compiled.transfers.values,
        file_bytes=0 if compiled.transfers is None else compiled.transfers.file_bytes,
        collectives=tuple(f"{line} in {group!r}" for group, lines in compiled.collectives.items() for line in lines),
        bytes_sent=sum(map(bytes_sent, program.nodes)),
    )


def _is_question(target: object) -> bool:
    return target in (GUARD, GUARD_NUMBER)
