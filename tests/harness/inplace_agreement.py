"""Run a functional program, and the one that works in place, on equal memory, and look for anything to tell them apart.

Compared bit by bit: results with their strides, all memory that inputs lie in, the random generator, what operators
of other libraries saw, which bytes results share with each other and with inputs. Then `verify_inplace` has its say,
and the simulated peak.
"""

from __future__ import annotations

import math
import operator
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.fx import GraphModule

from dovetail.analysis import inplace as inplace_decisions
from dovetail.analysis.inplace import decide_in_place
from dovetail.analysis.inplace_plan import InplacePlan, Reason
from dovetail.analysis.liveness import simulate_peak
from dovetail.analysis.placement import PlacementLegality, PlacementRequest, PlacementResult
from dovetail.analysis.region import extent_bytes
from dovetail.analysis.verify_inplace import verify_inplace
from dovetail.errors import InplaceMismatch
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Program, Value
from dovetail.ir.text import emit, plain_call
from dovetail.ops import prims
from dovetail.ops.facts import ignores_first_contents
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.functional import require_functional
from dovetail.passes.fx_api import reinplace
from dovetail.passes.fx_api import verify_inplace as verify_modules_inplace
from dovetail.passes.inplace import apply_plan
from dovetail.pipeline.differential import same_bits
from dovetail.torch_compat.dispatch import storage_key
from tests.harness.effect_operators import LOG, DemandFailed
from tests.harness.functional_programs import FunctionalProgram
from tests.harness.shared_bytes import shared_bytes

_SEED = 20240229


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves behind. failed: whether a check failed."""

    given: Sequence[Tensor]
    outputs: Sequence[Any]
    state: Tensor
    effects: Sequence[Tensor]
    demands: int
    failed: bool


class Disagreement(AssertionError):
    """The two programs can be told apart, or the check and the run disagree about that."""


class Careless(PlacementLegality):
    """Grants a part of the wishes that it should refuse. eased: how many."""

    choose = random.Random(0)
    eased = 0

    def check(self, request: PlacementRequest) -> PlacementResult:
        """Whether the wish can be granted, or so it says."""
        found = super().check(request)
        if found.obstacle is None or found.obstacle.reason in _STAYS or self.choose.random() < 0.5:
            return found
        Careless.eased += 1
        return PlacementResult()


_STAYS = frozenset({Reason.LAYOUT, Reason.KEEPS_MORE})  # no wrong results, or no program at all


def check_in_place(made: FunctionalProgram, *, commit: bool) -> InplacePlan:
    """Raise Disagreement when the two can be told apart, when the checker says so, or when more memory is used."""
    program, _ = remove_dead_code(made.program())
    donated = made.donated_places()
    text = _text(program)
    plan = decide_in_place(program, donated, commit=commit)
    inplace = apply_plan(plan)
    if _text(program) != text:
        raise Disagreement("the functional program was edited")
    what = difference(made, program, inplace, commit)
    refusal = _refusal(program, inplace, donated, commit)
    if what:
        raise Disagreement(f"{'refused' if refusal else 'accepted'} and {what}\n{_text(inplace)}")
    if refusal is not None:
        raise Disagreement(f"refused although nothing differs: {refusal}\n{_text(inplace)}")
    _check_peak(plan, inplace)
    _check_size_of_outputs(program, inplace)
    return plan


def check_careless(made: FunctionalProgram, *, commit: bool) -> tuple[bool, bool]:
    """Decide wrongly at times. Raise Disagreement when the checker accepts what can be told apart.

    Returns whether it can be told apart, and whether the checker refuses it.
    """
    program, _ = remove_dead_code(made.program())
    donated = made.donated_places()
    Careless.choose, Careless.eased = random.Random(made.seed), 0
    with mock.patch.object(inplace_decisions, "PlacementLegality", Careless):
        try:
            inplace = apply_plan(decide_in_place(program, donated, commit=commit))
        except (AssertionError, KeyError):
            return False, True  # one wrong decision makes the next one impossible
    what = difference(made, program, inplace, commit) if Careless.eased else ""
    if "frozenset()" in what:  # on one storage, but apart: the check is about bytes
        what = ""
    refusal = _refusal(program, inplace, donated, commit)
    if what and refusal is None:
        raise Disagreement(f"accepted although {what}\n{_text(inplace)}")
    return bool(what), refusal is not None


def check_dynamic(made: FunctionalProgram, trace: Callable[..., Any]) -> bool:
    """As `check_in_place`, for the graph modules that `trace(function)(*inputs)` makes with symbolic sizes.

    Without what is not an operator of ATen. Returns whether a size is symbolic in what remains.
    """
    made = made.without("prims.", "checks.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = trace(made.function())(*made.make_inputs(made.seed))
        require_functional(lift(traced, ()).program)
    except Exception:
        return False  # its inputs cannot be traced, or not as they are
    inplace = reinplace(traced, donate=made.donated_places())
    given, other = (made.make_inputs(made.seed) for _ in range(2))
    expected, actual = _outcome(lambda: traced(*given), given), _outcome(lambda: inplace(*other), other)
    if isinstance(expected, str) or isinstance(actual, str):
        what = "" if expected == actual else f"one fails: {actual}, {expected}"
    else:
        what = _apart(expected, actual, frozenset(made.donated_places()))
    if what:
        raise Disagreement(f"{what}\n{inplace.code}")
    try:
        verify_modules_inplace(traced, inplace, donate=made.donated_places())
    except InplaceMismatch as error:
        if _is_followed(traced):
            raise Disagreement(f"refused although nothing differs: {error}\n{inplace.code}") from error
    values = [value for node in traced.graph.nodes for value in [node.meta.get("val")]]
    return any(isinstance(v, Tensor) and any(isinstance(n, torch.SymInt) for n in v.shape) for v in values)


def _is_followed(traced: GraphModule) -> bool:
    """Whether the checker knows what the module does: it looks at no bytes that fake tensors do not have."""
    try:
        verify_modules_inplace(traced, traced)
    except InplaceMismatch:
        return False
    return True


def _refusal(functional: Program, inplace: Program, donated: Sequence[int], commit: bool) -> InplaceMismatch | None:
    try:
        verify_inplace(functional, inplace, donated=donated, commit=commit)
    except InplaceMismatch as error:
        return error
    return None


def _check_size_of_outputs(functional: Program, inplace: Program) -> None:
    """Whether a result keeps more memory alive than before."""
    sides = [_bytes_by_storage(program) for program in (functional, inplace)]
    for was, now in zip(functional.outputs, inplace.outputs, strict=True):
        if isinstance(was, Value) and isinstance(now, Value) and now.tensor.storage not in inplace.input_storages():
            before, after = sides[0][was.tensor.storage], sides[1][now.tensor.storage]
            if after > before:
                raise Disagreement(f"{now} keeps {after} bytes alive, and kept {before}\n{_text(inplace)}")


def _bytes_by_storage(program: Program) -> dict[int, int]:
    """Of the first value on each."""
    found: dict[int, int] = {}
    for value in (*program.inputs, *(v for node in program.nodes for v in node.results())):
        if value.is_tensor:
            extent = extent_bytes(value.tensor)
            assert extent is not None, "sizes are numbers"
            found.setdefault(value.tensor.storage, extent[1] - extent[0])
    return found


def _check_peak(plan: InplacePlan, inplace: Program) -> None:
    known = set(plan.program.input_storages())
    for value in (v for node in plan.program.nodes for v in node.results() if v.is_tensor):
        if value.tensor.storage not in known and value.tensor.offset:
            return  # it is a copy of what lies before it, too
        known.add(value.tensor.storage)
    reads_layouts = any(ignores_first_contents(node.target) for node in plan.program.nodes)
    if plan.sunk or reads_layouts:
        return
    before, after = simulate_peak(plan.program).peak_bytes, simulate_peak(inplace).peak_bytes
    if after > before:
        raise Disagreement(f"the peak rises from {before} to {after} bytes\n{_text(inplace)}")


def difference(made: FunctionalProgram, functional: Program, inplace: Program, commit: bool) -> str:
    """What somebody who runs both can tell apart; "" when nothing."""
    expected = _run(functional, made.make_inputs(made.seed))
    actual = _run(inplace, made.make_inputs(made.seed))
    if isinstance(actual, str) or isinstance(expected, str):
        return f"one fails: {actual}, {expected}" if actual != expected else ""
    return _apart(expected, actual, frozenset(made.donated_places())) or (
        _written_before_check(made, inplace, expected.demands) if commit else ""
    )


def _apart(expected: Outcome, actual: Outcome, donated: frozenset[int]) -> str:
    if not torch.equal(expected.state, actual.state):
        return "the generator ends elsewhere"
    if len(expected.effects) != len(actual.effects) or not all(map(_same, expected.effects, actual.effects)):
        return "effects differ"
    for position, (a, b) in enumerate(zip(expected.outputs, actual.outputs, strict=True)):
        if not _same(a, b):
            return f"output {position} is {b}, and was {a}"
    for position, (a, b) in enumerate(zip(expected.given, actual.given, strict=True)):
        if not same_bits(_memory(a, expected.given, donated), _memory(b, actual.given, donated)):
            return f"input {position} is left with other contents"
    kept = [i for i in range(len(expected.given)) if i not in donated]
    sides = [_sharing([run.given[i] for i in kept], run.outputs) for run in (expected, actual)]
    if sides[0] != sides[1]:
        return f"memory is shared differently: {sides[1]}, and was {sides[0]}"
    return ""


def _written_before_check(made: FunctionalProgram, inplace: Program, demands: int) -> str:
    """Whether an input is written before the last check has failed."""
    before = [_all_bytes(tensor) for tensor in made.make_inputs(made.seed)]
    for place in range(demands):
        stopped = _run(inplace, made.make_inputs(made.seed), place)
        assert not isinstance(stopped, str), "it ran before"
        if not stopped.failed:
            return f"check {place} does not run"
        if not all(same_bits(_all_bytes(a), b) for a, b in zip(stopped.given, before, strict=True)):
            return f"an input is written, and then check {place} fails"
    return ""


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_conj() != b.is_conj():
        return False
    return same_bits(a, b)


def _all_bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _memory(tensor: Tensor, given: Sequence[Tensor], donated: frozenset[int]) -> Tensor:
    """All bytes of its storage; zeros where a donated input lies."""
    found = _all_bytes(tensor).clone()
    for place in donated:
        other = given[place]
        if storage_key(other) == storage_key(tensor):
            for byte in shared_bytes(other, other):
                found[byte - tensor.untyped_storage().data_ptr()] = 0
    return found


def _sharing(inputs: Sequence[Tensor], outputs: Sequence[Any]) -> list[tuple[int, int, bool, frozenset[int]]]:
    """Pairs on one storage, and the bytes that they share, counted from where the output starts."""
    results = [t for t in outputs if isinstance(t, Tensor)]
    things = [*results, *inputs]
    return [
        (i, j, True, frozenset(byte - a.data_ptr() for byte in shared_bytes(a, b)))
        for i, a in enumerate(results)
        for j, b in enumerate(things)
        if i < j and storage_key(a) == storage_key(b) and a.numel() and b.numel()
    ]


def _run(program: Program, given: list[Any], fail_at: int | None = None) -> Outcome | str:
    source = emit(program, plain_call, {}, comments=False)
    namespace: dict[str, Any] = {"torch": torch, "math": math, "operator": operator, "prims": prims, **source.globals}
    exec(compile(source.text, f"<{program.name}>", "exec"), namespace)
    return _outcome(lambda: namespace["run"](list(given)), given, fail_at)


def _outcome(run: Callable[[], Any], given: list[Any], fail_at: int | None = None) -> Outcome | str:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(_SEED)
        LOG.clear(fail_at)
        outputs: Sequence[Any] = ()
        has_failed = False
        try:
            outputs = run()
        except DemandFailed:
            has_failed = True
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            return str(error).split("\n")[0]
        return Outcome(given, outputs, torch.get_rng_state(), list(LOG.seen), LOG.demands, has_failed)


def _text(program: Program) -> str:
    return emit(program, plain_call, {}, comments=False).text
