"""Whole numbers as places and sizes: after a few calls with others, one program is for all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from tests.place_programs import followed
from tests.rotation import rotated

CALLS = 30
Step = Callable[[Tensor], Any]


def ring_of_slices() -> Step:
    s = SimpleNamespace(buffer=torch.zeros(64, 16), at=0)

    def step(x: Tensor) -> Any:
        s.buffer[s.at : s.at + 4] = x
        s.at = (s.at + 4) % 64
        return s.buffer.sum(0)

    return step


def ring_of_items() -> Step:
    s = SimpleNamespace(buffer=torch.zeros(12, 4, 16), at=0)

    def step(x: Tensor) -> Any:
        s.buffer[s.at] += x
        s.buffer[:, 1, s.at] = s.at
        s.at = (s.at + 1) % 12
        return s.buffer[s.at, 1:].sum() + s.buffer[..., s.at].mean()

    return step


def cache_of_keys() -> Step:
    torch.manual_seed(0)
    s = SimpleNamespace(keys=torch.zeros(2, 40, 8), values=torch.zeros(2, 40, 8), at=0)
    weight = torch.randn(8, 24)

    def step(x: Tensor) -> Any:
        q, k, v = (x[:2, :8] @ weight).chunk(3, -1)
        s.keys[:, s.at], s.values[:, s.at] = k, v
        s.at += 1
        return (q[:, None] @ s.keys[:, : s.at].transpose(1, 2)).softmax(-1) @ s.values[:, : s.at]

    return step


def a_window_of_weights() -> Step:
    torch.manual_seed(0)
    s, weight = SimpleNamespace(at=0), nn.Parameter(torch.randn(16, 16))
    optimizer = torch.optim.SGD([weight], 0.1)

    def step(x: Tensor) -> Any:
        s.at = (s.at + 3) % 13
        optimizer.zero_grad()
        loss = (x @ weight[:, s.at : s.at + 3]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), weight.detach().clone()

    return step


def positions() -> Step:
    torch.manual_seed(0)
    embedding, s = nn.Embedding(64, 16), SimpleNamespace(at=0)
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = (x + embedding(torch.arange(s.at, s.at + 4))).square().mean()
        loss.backward()
        optimizer.step()
        s.at = (s.at + 4) % 60
        return loss.detach(), s.at

    return step


def growing() -> Step:
    s = SimpleNamespace(count=1)

    def step(x: Tensor) -> Any:
        s.count += 1
        return x[:, : s.count].cumsum(1), torch.zeros(s.count) + x.sum(), x[:1].expand(s.count, 16).mean()

    return step


def from_behind() -> Step:
    s = SimpleNamespace(count=0)

    def step(x: Tensor) -> Any:
        s.count += 1
        return x[:, -1 - s.count % 6], x[:, -2 - s.count % 6 :].sum(), x[-1 - s.count % 4, None, 2:5]

    return step


def drawn() -> Step:
    table = torch.linspace(0, 1, 100)

    def step(x: Tensor) -> Any:
        t, at = random.randint(0, 99), random.randint(0, 8)
        return x * table[t] + torch.randn_like(x) * (1 - table[t]), x[:, at : at + 8]

    return step


def padded() -> Step:
    s = SimpleNamespace(count=1)

    def step(x: Tensor) -> Any:
        s.count += 1
        left, right = x.split([s.count % 15 + 1, 15 - s.count % 15], 1)
        return F.pad(x, (s.count % 7, 7 - s.count % 7)), left.mean(), right.sum(), x.roll(s.count % 5, 1)

    return step


STEPS = {
    ring_of_slices: 4,
    ring_of_items: 5,
    cache_of_keys: 3,
    a_window_of_weights: 5,
    positions: 5,
    growing: 4,
    from_behind: 5,
    drawn: 5,
    padded: 8,
}
"""Each with how many programs it has at most: some numbers have programs of their own, those for sizes of 0 and 1."""


def _seen(make: Callable[[], Step], compiled: bool) -> tuple[list[Any], Any]:
    step = make()
    run = dovetail.compile_step(step) if compiled else step
    torch.manual_seed(1)
    random.seed(1)
    seen = []
    for n in range(CALLS):
        results = torch.utils._pytree.tree_leaves(run(torch.arange(64.0).view(4, 16) * 0.01 + n))
        seen.append([(x.tolist(), x.shape, x.stride()) if isinstance(x, Tensor) else x for x in results])
    return seen, run


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_one_program_for_many_places(make: Callable[[], Step]) -> None:
    expected, _ = _seen(make, compiled=False)
    seen, compiled = _seen(make, compiled=True)
    assert seen == expected
    assert compiled.stats.captures <= STEPS[make]
    assert max(variant.calls for variant in compiled.stats.variants) > CALLS // 3
    assert compiled.stats.eager_calls <= 4


def test_a_part_at_a_place_is_written_where_it_lies() -> None:
    step = dovetail.compile_step(ring_of_slices())
    for n in range(8):
        step(torch.full((4, 16), float(n)))
    assert "aten.copy_" in str([node.target for node in step.program.nodes])
    assert step.compiled.peak_bytes <= 16 * 4  # the sum


def test_places_outside_raise_what_eager_mode_raises() -> None:
    def make() -> Any:
        s = SimpleNamespace(buffer=torch.zeros(10, 3), at=0)

        def step(x: Tensor) -> Any:
            s.buffer[s.at] = x
            s.at += 1
            return s.buffer[s.at - 1] * 2

        return step, s

    (eager, theirs), (step, mine) = make(), make()
    compiled = dovetail.compile_step(step)
    for n in range(10):
        assert torch.equal(compiled(torch.ones(3) * n), eager(torch.ones(3) * n))
    for run, s in ((eager, theirs), (compiled, mine)):
        with pytest.raises(IndexError, match="out of bounds"):
            run(torch.ones(3))
        assert s.at == 10
    assert torch.equal(theirs.buffer, mine.buffer)


def test_a_part_outside_raises_what_eager_mode_raises() -> None:
    """Torch writes the number into its message, while the step is recorded with a number of each call."""
    s, buffer = SimpleNamespace(at=0), torch.zeros(8, 3)

    def step() -> Tensor:
        s.at += 1
        return buffer.narrow(0, s.at, 4) * 2

    compiled = dovetail.compile_step(step)
    for _ in range(4):
        assert torch.equal(compiled(), torch.zeros(4, 3))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"start .{s.at + 1}. . length .4. exceeds dimension size .8."):
            compiled()


def test_numbers_that_code_needs_have_programs_of_their_own() -> None:
    s = SimpleNamespace(count=0)

    def step(x: Tensor) -> Tensor:
        s.count = s.count % 5 + 1
        return sum(x[n] for n in range(s.count)) + x[: s.count].mean()  # type: ignore[return-value]

    compiled, count = dovetail.compile_step(step), 0
    for _ in range(14):
        count = count % 5 + 1
        expected = sum(torch.ones(6)[n] for n in range(count)) + 1
        assert compiled(torch.ones(6)) == expected
        assert s.count == count
    assert compiled.stats.eager_calls == 0


def test_under_a_limit_every_size_is_known() -> None:
    s = SimpleNamespace(count=1)

    def step(x: Tensor) -> Tensor:
        s.count += 1
        return x[: s.count].exp().sum()

    compiled = dovetail.compile_step(step, memory_limit="1MiB")
    for _ in range(6):
        compiled(torch.ones(100))
    assert compiled.stats.captures == 6


@pytest.mark.filterwarnings("ignore:.*was compiled for.*")
@pytest.mark.parametrize("seed", rotated(list(range(400)), 20))
def test_random_programs_over_places(seed: int) -> None:
    (got, program, _), (expected, _, _) = followed(seed, dovetail.compile_step), followed(seed, lambda step: step)
    assert repr(got) == repr(expected[: len(got)]), program
    assert len(got) == len(expected), program


def test_sizes_that_are_returned_are_sizes() -> None:
    def step(x: Tensor) -> Any:
        picked = x[x > 0]
        return picked.shape, {"all": [picked.size(), x.shape], "first": picked.shape[0]}

    compiled = dovetail.compile_step(step)
    for count in (2, 4, 3, 5):
        x = torch.cat([torch.ones(count), -torch.ones(6 - count)])
        got, expected = compiled(x), step(x)
        assert got == expected
        assert [type(v) for v in (got[0], *got[1]["all"])] == [torch.Size] * 3


_MASK, _PAIR = torch.tensor([[True, False], [False, True]]), torch.tensor([1, 0])
INDICES: list[Callable[[int], Any]] = [
    lambda i: (..., i, _MASK),
    lambda i: (..., i, _MASK[0]),
    lambda i: (..., i, _PAIR),
    lambda i: (..., i, [0, 1]),
    lambda i: (i, ..., _MASK),
    lambda i: (i, _MASK),
    lambda i: (_MASK, i),
    lambda i: (_PAIR, i, _PAIR),
    lambda i: (..., i, slice(None), None),
    lambda i: (slice(None), i, ..., None),
    lambda i: (..., None, i),
    lambda i: (None, ..., i, slice(1, None), None, _MASK[0]),
    lambda i: (True, i),
    lambda i: (i, i, 0, i),
    lambda i: i,
    lambda i: (),
]


@pytest.mark.parametrize("index", INDICES)
def test_indices_of_all_kinds(index: Callable[[int], Any]) -> None:
    s = SimpleNamespace(i=0)

    def step(x: Tensor) -> Any:
        s.i = (s.i + 1) % 2
        y = x.clone()
        y[index(s.i)] = y[index(s.i)] * 2 + 1
        return x[index(s.i)] + 1, y, x[index(s.i)] is x

    compiled = dovetail.compile_step(step)
    for n in range(8):
        x = torch.arange(16.0).view(2, 2, 2, 2) + n
        place = s.i
        expected = step(x)
        s.i = place
        got = compiled(x)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        assert got[2:] == expected[2:]
