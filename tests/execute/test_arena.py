"""Steps that run in an arena: eager's bits, the predicted peak, nothing that escapes, any order of calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.errors import BadOptionValue, InvalidPlacement
from dovetail.execute.arena import ArenaProgram
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.needs import Needs
from dovetail.execute.placed_trials import try_places
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.memory import measure_peak
from dovetail.memory.in_arena import ArenaPlan, placeables, plan_in_arena
from dovetail.memory.problem import Placement, Problem
from dovetail.memory.solve import solve
from dovetail.ops.facts import facts_of
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.inplace import work_in_place
from dovetail.pipeline.differential import same_bits
from dovetail.testing.arena_sanitizer import (
    ArenaSanitizer,
    ArenaViolation,
    CheckedArena,
    random_placement,
    with_zones,
)
from dovetail.testing.sanitizer import AliasSanitizer
from dovetail.torch_compat.arenas import TensorArena
from dovetail.torch_compat.profiler import record_allocator_events
from tests.frontends.step.agreement import EagerFails, agree
from tests.frontends.step.cases.matrix import case_of, pairs
from tests.frontends.step.test_memory_limit import MODELS, Training
from tests.random_steps import random_step
from tests.rotation import rotated, seed

_EXECUTORS = ExecutorList((AtenExecutor(),))


def _arena_of(step: Any) -> ArenaProgram:
    code = step.compiled.code
    assert isinstance(code, ArenaProgram)
    return code


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@cache
def _eager(name: str) -> dict[str, Any]:
    return Training(name).run()


@pytest.mark.parametrize("name", MODELS)
def test_steps_in_an_arena_are_eagers_and_need_no_more_than_without(name: str) -> None:
    training = Training(name, arena=True)
    found = training.run()
    assert _equal(found["left"], _eager(name)["left"])
    explanation = training.step.explain()  # type: ignore[union-attr]
    plan = _arena_of(training.step).plan
    assert found["peak"] == explanation.peak_bytes == plan.peak_bytes <= plan.without_bytes
    assert explanation.in_arena is plan
    assert plan.places or name == "convolutions"  # whose operators make their results themselves
    assert str(plan) in str(explanation)


@pytest.mark.parametrize("name", rotated(["mlp", "transformer"], 2))
def test_any_valid_order_of_buffers_gives_the_same(name: str) -> None:
    training, sanitizers = Training(name, arena=True), [ArenaSanitizer(), ArenaSanitizer(seed())]
    torch.manual_seed(1)
    losses = []
    for turn in range(4):
        with sanitizers[turn % 2]:
            losses.append(training.step(*training.batch).clone())
    assert all(sanitizer.programs for sanitizer in sanitizers)
    state = [x for held in training.optimizer.state.values() for x in held.values()]
    left = [*losses[:3], *training.net.state_dict().values(), *state, torch.get_rng_state()]
    eager = Training(name)
    torch.manual_seed(1)
    for _ in range(4):
        eager.step(*eager.batch)
    expected = [*_eager(name)["left"][:3], *eager.net.state_dict().values()]
    assert _equal(left[: len(expected)], expected)


@dataclass
class Random:
    """A random step that works in place. usable: what of it can lie in an arena. runs: how it does."""

    number: int

    def __post_init__(self) -> None:
        self.made = random_step(self.number)
        self.program, _ = work_in_place(remove_dead_code(self.made.program())[0])
        self.usable, self.needs = try_places(self.program, {}, Needs({}), placeables(self.program, {}))

    def plan(self, arrange: Callable[[Problem], Placement] | None = None) -> ArenaPlan:
        """How it runs in an arena; with all that is usable, as it is arranged, where that is said."""
        return plan_in_arena(self.program, {}, self.needs.need_of, self.usable, arrange)

    def outcome(self, run: Callable[[list[Any]], Any]) -> list[Tensor] | str:
        """What a run returns and leaves in its arguments, or how it fails."""
        arguments = self.made.make_inputs()
        torch.manual_seed(3)
        try:
            with torch.no_grad():
                results = run(list(arguments))
        except Exception as error:
            return type(error).__name__
        return [x.clone() for x in (*results, *arguments) if isinstance(x, Tensor)]


def _agree(a: list[Tensor] | str, b: list[Tensor] | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return len(a) == len(b) and all(map(same_bits, a, b))


@pytest.mark.parametrize("number", [seed() * 20 + k for k in range(10)])
def test_random_steps_give_the_same_in_random_arenas(number: int) -> None:
    step = Random(number)
    expected = step.outcome(CompiledProgram(step.program, _EXECUTORS))
    chosen = step.plan()
    assert chosen.peak_bytes <= chosen.without_bytes
    for plan in (chosen, step.plan(lambda problem: random_placement(problem, number))):
        arena = ArenaProgram(step.program, plan, _EXECUTORS)
        assert _agree(step.outcome(arena), expected)
        wide = with_zones(plan.problem)
        assert _agree(step.outcome(CheckedArena(arena, wide, random_placement(wide, number))), expected)


def test_the_sanitizer_finds_buffers_that_are_needed_longer_than_was_planned() -> None:
    """A buffer that ends too early is found by what the program returns, where it is read afterwards."""
    found = tried = 0
    for number in range(seed(), seed() + 4):
        step = Random(number)
        expected = step.outcome(CompiledProgram(step.program, _EXECUTORS))
        arena = ArenaProgram(step.program, step.plan(solve), _EXECUTORS)
        wide = with_zones(arena.plan.problem)
        long = [k for k, b in enumerate(wide.buffers) if b.end - b.start > 1]
        for place in long[:: max(1, len(long) // 4)]:
            short = replace(wide.buffers[place], end=wide.buffers[place].start + 1)
            broken = replace(wide, buffers=(*wide.buffers[:place], short, *wide.buffers[place + 1 :]))
            tried += 1
            found += not _agree(step.outcome(CheckedArena(arena, broken, solve(broken))), expected)
    assert found >= 0.8 * tried > 0  # what is multiplied by nothing, say, does not show


def test_the_sanitizer_finds_buffers_that_lie_on_each_other() -> None:
    step = Random(seed())
    arena = ArenaProgram(step.program, step.plan(solve), _EXECUTORS)
    wide = with_zones(arena.plan.problem)
    good = solve(wide)
    a, b = next((a, b) for b in range(len(wide.buffers)) for a in range(b) if wide.buffers[a].meets(wide.buffers[b]))
    offsets = list(good.offsets)
    offsets[b] = offsets[a]
    with pytest.raises(InvalidPlacement):
        step.plan(lambda problem: replace(solve(problem), offsets=tuple(0 for _ in problem.buffers)))
    broken = replace(good, offsets=tuple(offsets), size_bytes=good.size_bytes + max(x.size_bytes for x in wide.buffers))
    with pytest.raises(ArenaViolation, match="which is needed yet"), torch.no_grad():
        CheckedArena(arena, wide, broken)(step.made.make_inputs())


# --- what leaves a call -------------------------------------------------------------------------------------------


def test_results_have_memory_of_their_own_and_nothing_is_held_between_calls() -> None:
    training = Training("mlp", arena=True, keep_grads=True)
    losses = [training.step(*training.batch) for _ in range(3)]
    before = [loss.clone() for loss in losses]
    grads = [p.grad for p in training.net.parameters()]
    _, events = record_allocator_events(lambda: losses.append(training.step(*training.batch)))
    size = _arena_of(training.step).plan.size_bytes
    sizes = [event.size_bytes for event in events]
    assert size > 0
    assert (sizes.count(size), sizes.count(-size)) == (1, 1)
    assert _equal(losses[:3], before)
    assert all(isinstance(g, Tensor) and g.untyped_storage().nbytes() < size for g in grads)


def test_large_blocks_are_taken_and_given_back_like_small_ones() -> None:
    size = 33 << 20
    arena = TensorArena([(0, (size,), (1,), torch.uint8)])
    for number in range(2):
        arena.take(size)
        assert int(arena.tensors[0].fill_(number)[-1]) == number
        assert arena.give_back()


def test_calls_at_the_same_time_have_arenas_of_their_own() -> None:
    step = Random(seed())
    plan = step.plan(solve)
    arena = ArenaProgram(step.program, plan, _EXECUTORS)
    draws = any(facts_of(node.target).draws for node in step.program.nodes)
    expected, found = step.outcome(arena), dict[int, Any]()
    inputs = {number: step.made.make_inputs() for number in range(4)}

    def run(number: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                try:
                    found[number] = [x for x in arena(list(inputs[number])) if isinstance(x, Tensor)]
                except Exception as error:
                    found[number] = type(error).__name__
                inputs[number] = step.made.make_inputs()

    threads = [threading.Thread(target=run, args=(number,)) for number in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found.values():
        assert draws or _agree(results, expected if isinstance(expected, str) else expected[: len(results)])


def test_a_step_that_fails_in_the_middle_leaves_no_trace() -> None:
    sides = []
    for options in ({}, {"arena": True}):
        training = Training("mlp", **options)
        x, y = training.batch
        torch.manual_seed(1)
        losses = [training.step(x, y) for _ in range(2)]
        with pytest.raises((IndexError, RuntimeError)):
            training.step(x, y + 1000)
        losses.append(training.step(x, y))
        sides.append([*losses, *training.net.state_dict().values()])
    assert _equal(*sides)


class _Collector(TorchDispatchMode):
    """Keeps what operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype is torch.float32:
            self.kept.append((made, made.clone()))
        return made


def test_what_a_mode_keeps_stays_in_memory() -> None:
    step = Random(seed())
    arena = ArenaProgram(step.program, step.plan(solve), _EXECUTORS)
    collector = _Collector()
    with torch.no_grad(), collector, suppress(Exception):
        arena(step.made.make_inputs())
    with torch.no_grad(), suppress(Exception):
        arena(step.made.make_inputs())
    assert collector.kept
    for kept, _ in collector.kept:
        kept.sum()  # its memory is there


@torch.library.custom_op("arena_tests::noted", mutates_args=())
def _noted(x: Tensor) -> Tensor:
    _NOTES.append(x)
    return x.clone()


@_noted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_NOTES: list[Tensor] = []


def test_operators_of_others_get_no_memory_of_an_arena() -> None:
    weight = torch.randn(8, 8)

    def step(x: Tensor) -> Tensor:
        hidden = (x @ weight).exp()
        seen = torch.ops.arena_tests.noted(hidden * 2)
        return seen.sum() * hidden.sum()

    compiled = dovetail.compile_step(step, arena=True)
    for _ in range(2):
        compiled(torch.randn(8, 8))
    x = torch.randn(8, 8)
    _NOTES.clear()
    assert torch.equal(compiled(x), step(x))
    assert _arena_of(compiled).plan.places
    compiled(torch.randn(8, 8))
    assert torch.equal(_NOTES[0], _NOTES[1])


@pytest.mark.parametrize("case", rotated([case_of(row) for row in pairs()], 600), ids=str)
def test_training_loops_agree_in_an_arena(case: Any) -> None:
    if "arena" in case.options or "dynamic" in case.options:
        pytest.skip("it says so itself")
    try:
        agree(replace(case, options={**case.options, "arena": True}))
    except EagerFails as error:
        pytest.skip(f"not even eager mode runs it: {error}")


def test_an_arena_is_for_known_sizes() -> None:
    with pytest.raises(BadOptionValue, match="arena"):
        dovetail.compile_step(lambda x: x, arena=True, dynamic=True)
    with pytest.raises(BadOptionValue, match="True or False"):
        dovetail.compile(nn.Linear(2, 2), arena=1)


# --- graphs and frozen modules ------------------------------------------------------------------------------------


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))


def test_graphs_train_in_arenas() -> None:
    sides, peaks = [], []
    for options in (None, {}, {"arena": True}):
        net, x = _net(), torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
        compiled = net if options is None else dovetail.compile(net, **options)

        def train(run: Any = compiled, x: Tensor = x) -> Tensor:
            loss = run(x).square().mean()
            loss.backward()
            return loss.detach()

        losses = [train(), train()]
        net.zero_grad()
        peaks.append(measure_peak(train).peak_bytes)
        sides.append([*losses, *(p.grad for p in net.parameters() if p.grad is not None)])
    assert _equal(sides[1], sides[0])
    assert _equal(sides[2], sides[0])
    assert peaks[2] <= peaks[1] <= peaks[0]
    with ArenaSanitizer(seed()) as sanitizer:
        again = train()
    assert sanitizer.programs == 2  # forward and backward
    assert torch.equal(again, sides[0][0])
    with AliasSanitizer() as storages:  # which checks them without the arena
        again = train()
    assert storages.programs == 2
    assert torch.equal(again, sides[0][0])


def test_frozen_modules_run_in_arenas() -> None:
    net, x = _net().eval(), torch.randn(64, 32)
    with torch.no_grad():
        expected = net(x)
        peaks = []
        for options in ({}, {"arena": True}):
            frozen = dovetail.freeze(net, (x,), **options)
            assert torch.equal(frozen(x), expected)
            peaks.append(measure_peak(frozen, x).peak_bytes)
    assert peaks[1] <= peaks[0]


def test_what_has_unknown_sizes_runs_without_an_arena_and_says_so() -> None:
    def step(x: Tensor) -> Tensor:
        return ((x * 2)[x > 0] + 1).sum()

    compiled = dovetail.compile_step(step, arena=True)
    for _ in range(3):
        x = torch.randn(50)
        assert torch.equal(compiled(x), step(x))
    assert not _arena_of(compiled).plan.places
    assert "depends on data" in str(compiled.explain())
