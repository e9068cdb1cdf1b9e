"""Programs run in arenas that were planned for them: poison on free, red zones, random placements.

Each result goes to its place in one block of bytes, and whatever is freed is overwritten. A buffer that lives too
short, or lies on another one, changes what the program returns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.analysis.liveness import NOTHING, Need
from dovetail.ir.fx_lift import lift
from dovetail.ir.program import Node, Program, Value, map_operands
from dovetail.memory.arena import plan_arena
from dovetail.memory.check import verify_placement
from dovetail.memory.greedy import height, place_in_order
from dovetail.memory.items import parts_of
from dovetail.memory.problem import Placement, Problem, build_problem
from dovetail.memory.solve import solve
from dovetail.passes.inplace import work_in_place

F = torch.nn.functional
_POISON, _RED, _RED_BYTES = 0xFF, 0xAA, 64


def random_placement(problem: Problem, seed: int) -> Placement:
    """Each buffer in the lowest hole, in a random order."""
    rng = random.Random(seed)
    offsets, size = [0] * len(problem.buffers), 0
    for part in parts_of(problem):
        placed = place_in_order(part, rng.sample(range(len(part)), len(part)), 1 << 40)
        assert placed is not None
        for number, offset in zip(part.numbers, placed, strict=True):
            offsets[number] = offset * part.unit
        size = max(size, height(part, placed) * part.unit)
    return Placement(tuple(offsets), size, problem.bound_bytes)


def run_in_arena(program: Program, problem: Problem, placement: Placement, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs of a run in which every storage that the program makes lies in its place, with a red zone behind."""
    arena = torch.full((placement.size_bytes,), _RED, dtype=torch.uint8)
    places = {b.name: (b, offset) for b, offset in zip(problem.buffers, placement.offsets, strict=True)}
    values: dict[Value, Any] = dict(zip(program.inputs, inputs, strict=True))
    placed = set(program.input_storages())

    def moved(value: Value, result: torch.Tensor) -> torch.Tensor:
        buffer, offset = places[f"storage {value.tensor.storage}"]
        end = offset + buffer.size_bytes
        arena[end - _RED_BYTES : end] = _RED
        place = torch.empty(0, dtype=result.dtype)
        at = offset // result.element_size() + result.storage_offset()
        return place.set_(arena.untyped_storage(), at, result.shape, result.stride()).copy_(result)

    for at, node in enumerate(program.nodes):
        args = map_operands(node.args, values.__getitem__)
        kwargs = {name: map_operands(operand, values.__getitem__) for name, operand in node.kwargs}
        results = node.target(*args, **kwargs)
        for value, result in zip(node.outputs, results if node.unpack else (results,), strict=False):
            if value is not None:
                values[value] = result if value.tensor.storage in placed else moved(value, result)
                placed.add(value.tensor.storage)
        for buffer, offset in places.values():
            if buffer.end == at + 1 and buffer.end < len(program.nodes):
                end = offset + buffer.size_bytes
                assert bool((arena[end - _RED_BYTES : end] == _RED).all()), f"something wrote behind {buffer.name}"
                arena[offset:end] = _POISON
    return [values[out].clone() if isinstance(out, Value) else out for out in program.outputs]


def _block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
    hidden = F.layer_norm(F.gelu(x @ w + b), (8,))
    loss = F.cross_entropy(hidden, torch.arange(6) % 8)
    return [loss.detach(), *torch.autograd.grad(loss, [w, b])]


def _attention(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    query, key, value = (x @ w).relu(), x + b, (x * 2).t().contiguous().t()
    weights = torch.softmax(query @ key.t(), -1)
    return [torch.cat([weights @ value, x.exp()], 1), weights.sum(0), query[1:3].clone()]


def _chain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    parts = (x @ w).chunk(2, 1)
    for _ in range(6):
        parts = (parts[0].sin() + parts[1], parts[1] * parts[0].cos())
    low, order = torch.sort(parts[0], 1)
    return [low, order, torch.var_mean(parts[1], 1)[0], (parts[0].unsqueeze(0) + b[:4]).squeeze(0)]


@pytest.mark.parametrize("function", [_block, _attention, _chain])
def test_programs_give_the_same_in_any_valid_arena(function: Callable[..., list[torch.Tensor]]) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, generator=generator) for size in ((6, 8), (8, 8), (8,))]
    functional = lift(make_fx(function)(*inputs)).program
    wanted = function(*inputs)
    for program in (functional, work_in_place(functional)[0]):
        problem = build_problem(program)
        wide = Problem(tuple(replace(b, size_bytes=b.size_bytes + _RED_BYTES) for b in problem.buffers))
        for placement in (solve(wide), *(random_placement(wide, seed) for seed in range(10))):
            verify_placement(wide, placement)
            found = run_in_arena(program, wide, placement, [x.clone() for x in inputs])
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_sanitizer_finds_a_buffer_that_ends_too_early() -> None:
    inputs = [torch.randn(6, 8), torch.randn(8, 8), torch.randn(8)]
    program = lift(make_fx(_attention)(*inputs)).program
    problem = build_problem(program)
    wide = [replace(b, size_bytes=b.size_bytes + _RED_BYTES) for b in problem.buffers]
    longest = max(range(len(wide)), key=lambda n: (wide[n].end < len(program.nodes), wide[n].end - wide[n].start))
    wide[longest] = replace(wide[longest], end=wide[longest].start + 1)
    broken = Problem(tuple(wide))
    found = run_in_arena(program, broken, solve(broken), inputs)
    assert not all(torch.equal(a, b) for a, b in zip(found, _attention(*inputs), strict=True))


def test_a_report_says_what_was_planned() -> None:
    program = lift(make_fx(_chain)(torch.randn(6, 8), torch.randn(8, 8), torch.randn(8))).program

    def need_of(node: Node) -> Need:
        return Need(scratch_bytes=1000) if node is program.nodes[0] else NOTHING

    report = plan_arena(program, {}, need_of)
    assert report.size_bytes >= report.bound_bytes == build_problem(program, {}, need_of).bound_bytes
    assert str(report).startswith(f"{report.size_bytes:,} bytes for {report.buffers} buffers, ")


def test_a_step_says_how_large_its_arena_would_be() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = dovetail.compile_step(train)
    for _ in range(3):
        step(torch.randn(8, 16))
    explanation = step.explain()
    assert explanation.arena.size_bytes == explanation.arena.bound_bytes >= explanation.peak_bytes > 0
    assert "one arena would have" in str(explanation)
