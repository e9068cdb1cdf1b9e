"""Once no more programs may be made, calls that fit none cost what eager mode costs; and `stats` says what happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.frontends.call_guard import CallGuard
from dovetail.frontends.patience import Patience, Walks
from dovetail.frontends.statistics import Stats
from dovetail.frontends.step.reachable_state import ReachableState

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning"),
]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was looked at: all that a step reaches, and calls of functions."""
    found: list[str] = []

    def counted(owner: Any, name: str, kind: str) -> None:
        before: Callable[..., Any] = getattr(owner, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            found.append(kind)
            return before(*args, **kwargs)

        monkeypatch.setattr(owner, name, count)

    counted(ReachableState, "refresh", "world")
    counted(CallGuard, "inputs", "call")
    return found


def _training() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


def test_patience_looks_at_ever_fewer_calls() -> None:
    patience, looked_at = Patience(), []
    for call in range(200):
        if not patience.waits():
            looked_at.append(call)
            patience.missed()
    assert looked_at == [0, 1, 2, 3, 12, 29, 62, 127]
    patience.found()
    while patience.waits():
        pass
    patience.missed()
    assert not patience.waits()


def test_walks_are_rare_while_they_are_fruitless() -> None:
    walks = Walks()
    for call in range(4):
        assert walks.may_be(call)
        walks.was(call, fruitful=False)
    assert not walks.may_be(4)
    assert walks.may_be(5000)
    walks.was(5000, fruitful=True)
    assert walks.may_be(5001)


def test_a_step_with_batches_of_any_size(looks: list[str]) -> None:
    (model, step), (expected, eager) = _training(), _training()
    compiled = dovetail.compile_step(step, max_variants=2)
    for rows in range(1, 100):
        x = torch.arange(rows * 3.0).view(rows, 3) / 100
        assert torch.equal(compiled(x), eager(x))
    assert torch.equal(model.weight, expected.weight)
    stats = compiled.stats
    assert (stats.calls, stats.captures, stats.eager_calls) == (99, 3, 96)  # one that was idle has made room
    assert stats.misses < 12
    assert looks.count("world") <= 7  # for each capture, once more where that reads more, and for the warning


def test_sizes_that_have_a_program_are_found_among_others(looks: list[str]) -> None:
    compiled = dovetail.compile_step(_training()[1], max_variants=2)
    for call in range(60):
        compiled(torch.ones(2 + (call if call % 2 else 0), 3))
    variants = compiled.stats.variants
    assert sum(variant.calls for variant in variants) >= 29
    assert looks.count("world") <= 7


def test_python_state_that_is_another_one_in_each_call(looks: list[str]) -> None:
    class Settings:
        name = ""

    settings, (_, step) = Settings(), _training()

    def named(x: torch.Tensor) -> torch.Tensor:
        return step(x) * len(settings.name)

    compiled = dovetail.compile_step(named, max_variants=2)
    for call in range(150):
        settings.name = str(call)
        compiled(torch.ones(2, 3))
    assert looks.count("world") <= 10
    settings.name = "1"
    for _ in range(600):
        compiled(torch.ones(2, 3))
    assert compiled.stats.variants[0].calls + compiled.stats.variants[1].calls > 50


def test_a_checkpoint_is_loaded_past_the_limit() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = dovetail.compile_step(step, max_variants=1)
    for rows in (2, 2, 3, 4):
        compiled(torch.ones(rows, 3))
    model.load_state_dict({name: torch.ones_like(x) for name, x in model.state_dict().items()}, assign=True)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    for _ in range(5):
        compiled(torch.ones(2, 3))
    assert compiled.stats.variants[0].calls == 7


def test_guard_misses_past_the_limit() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    compiled = dovetail.compile_step(step, max_variants=1)
    for _ in range(3):
        compiled(torch.ones(2))
    for _ in range(60):
        assert torch.equal(compiled(-torch.ones(2)), torch.full((2,), -2.0))
    assert compiled.stats.guard_misses < 12


def test_a_function_with_arguments_of_any_size(looks: list[str]) -> None:
    compiled = dovetail.compile(lambda x: x.sin() * 2, max_variants=2)
    for rows in range(1, 100):
        assert torch.equal(compiled(torch.ones(rows)), torch.ones(rows).sin() * 2)
    stats = compiled.stats
    assert (stats.calls, stats.captures, stats.eager_calls, stats.guard_misses) == (99, 3, 96, 0)
    assert looks.count("call") < 24
    for _ in range(300):
        compiled(torch.ones(1))
    assert max(variant.calls for variant in compiled.stats.variants) > 150


def test_stats_of_a_function() -> None:
    compiled = dovetail.compile(lambda x, scale: x * scale)
    for scale in (2.0, 2.0, 3.0):
        compiled(torch.ones(2), scale)
    stats = compiled.stats
    assert isinstance(stats, Stats)
    assert (stats.calls, stats.eager_calls, stats.captures, stats.misses) == (3, 0, 2, 2)
    assert [variant.calls for variant in stats.variants] == [2, 1]
    assert stats.variants[0].reason == "it is the first"
    assert "2.0" in stats.variants[1].reason
    assert str(stats).startswith("3 calls, 0 in eager mode; 2 captures in")
    assert isinstance(dovetail.compile_step(lambda x: x).stats, Stats)


def test_a_prepared_function_counts_its_capture() -> None:
    compiled = dovetail.compile(lambda x: x + 1, (torch.ones(2),))
    assert (compiled.stats.calls, compiled.stats.captures) == (0, 1)
    assert compiled.stats.seconds > 0


def test_a_program_that_no_call_is_for_any_more_makes_room() -> None:
    """The first calls of a window of losses, say, find it shorter than all later ones."""
    window: deque[float] = deque(maxlen=5)

    def step(x: torch.Tensor) -> float:
        window.append(x.sum().item())
        return sum(window) / len(window)

    compiled, expected = dovetail.compile_step(step, max_variants=3), deque[float](maxlen=5)
    for call in range(120):
        expected.append(2.0 * call)
        assert compiled(torch.ones(2) * call) == sum(expected) / len(expected)
    stats = compiled.stats
    assert len(stats.variants) == 3
    assert stats.captures <= 5
    assert stats.variants[-1].calls > 50


def test_programs_in_use_stay() -> None:
    """Kinds of calls that come in turn, one more than there may be programs: none is captured again and again."""
    compiled = dovetail.compile(lambda x: x * 2, max_variants=3)
    for call in range(200):
        compiled(torch.ones(2 + call % 4))
    assert compiled.stats.captures == 3
    assert sum(variant.calls for variant in compiled.stats.variants) >= 140


def test_captures_in_vain_become_rare() -> None:
    compiled = dovetail.compile(lambda x: x * 2, max_variants=3)
    for rows in range(1, 1500):
        compiled(torch.ones(rows))
    assert compiled.stats.captures <= 3 + 6  # one whenever there were twice as many calls
