"""What a step's code asks of the world outside Python's objects, and what it hands out: as in eager, or refused."""

from __future__ import annotations

import contextvars
import functools
import io
import os
import pickle
import signal
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError, StateChangedOtherwise, UnsupportedStep
from dovetail.torch_compat.fakes import is_fake

Loss = Callable[[nn.Module, Tensor], Any]


def _run(loss_of: Loss, compiled: bool, between: Callable[[int], None] = lambda k: None, calls: int = 5) -> list[Any]:
    """Results and parameters of some steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        results = loss_of(net, x)
        (results[0] if isinstance(results, tuple) else results).backward()
        optimizer.step()
        return results

    run = dovetail.compile_step(step, keep_grads=True) if compiled else step
    found: list[Any] = []
    for k in range(calls):
        found.append((run(torch.randn(3, 4)), [p.detach().clone() for p in net.parameters()]))
        between(k)
    assert not compiled or run.stats.captures > 0  # type: ignore[attr-defined]
    return found


def _assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert torch.equal(found, expected)
        assert (found.requires_grad, found.is_leaf) == (expected.requires_grad, expected.is_leaf)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _assert_same(one, other)
    else:
        assert (type(found), found) == (type(expected), expected)


def test_views_and_twins_among_results_are_tensors_of_their_own() -> None:
    def loss_of(net: nn.Module, x: Tensor) -> Any:
        rows = net(x)
        loss = rows.sum()
        return loss, loss, loss.detach(), rows, rows[0], rows.detach()

    found, expected = _run(loss_of, True), _run(loss_of, False)
    _assert_same(found, expected)
    for results, _ in (*found, *expected):
        assert results[0] is results[1]
        assert results[0] is not results[2]
        results[5].add_(1)
    _assert_same(found, expected)


def test_a_variable_of_the_environment_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def between(k: int) -> None:
        monkeypatch.setenv("SCALE", str(k + 1))

    monkeypatch.setenv("SCALE", "1")
    found = _run(lambda net, x: net(x).sum() * float(os.environ["SCALE"]), True, between)
    monkeypatch.setenv("SCALE", "1")
    _assert_same(found, _run(lambda net, x: net(x).sum() * float(os.environ["SCALE"]), False, between))


def test_what_is_referred_to_weakly_is_watched() -> None:
    class Settings:
        scale = 1.0

    def run(compiled: bool) -> list[Any]:
        settings = Settings()
        weakly = weakref.ref(settings)
        return _run(
            lambda net, x: net(x).sum() * weakly().scale,  # type: ignore[union-attr]
            compiled,
            lambda k: setattr(settings, "scale", float(k)),
        )

    _assert_same(run(True), run(False))


def test_a_function_that_remembers_tensors_remembers_no_fakes() -> None:
    @functools.lru_cache(None)
    def mask(size: int) -> Tensor:
        return torch.ones(size, 4).tril()

    rows = [3]

    def run(compiled: bool) -> list[Any]:
        mask.cache_clear()
        rows[0] = 3
        return _run(
            lambda net, x: (net[0](x[: rows[0]]) * mask(rows[0])).sum(),  # type: ignore[index]
            compiled,
            lambda k: rows.__setitem__(0, (3, 3, 2, 2, 1)[k]),
        )

    _assert_same(run(True), run(False))
    assert all(type(mask(size)) is Tensor for size in (1, 2, 3))


class _Metrics:
    def __init__(self, loss: Tensor) -> None:
        self.loss = loss

    def __del__(self) -> None: ...


_VARIABLE = contextvars.ContextVar("variable", default=1.0)
_HELD = {"scale": 1.0}
_TABLE = types.MappingProxyType(_HELD)
_FILE = io.StringIO()


def test_plain_values_are_pickled_and_versions_of_new_tensors_are_told() -> None:
    """Libraries use the one as keys of what they remember, and the other to see whether that is still right."""
    options: dict[Any, Any] = {}

    def loss_of(net: Any, x: Tensor) -> Any:
        y = net(x) * 2
        before = y._version, y[0]._version
        y.detach().mul_(0.5).add_(1)
        versions = (*before, y._version, y.sum()._version)
        return y.sum(), pickle.dumps(options), versions, pickle.dumps({"n": len(options)}, protocol=2)

    def run(compiled: bool) -> list[Any]:
        options.clear()
        options.update({"rows": [1, 2.5, None, "a"], (1, 2): {True, b"b"}})
        return _run(loss_of, compiled, lambda k: options.update(rows=[k // 2]))

    _assert_same(run(True), run(False))


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda net, x: (net(x).sum(), _Metrics(net(x))),
        lambda net, x: (net(x).sum(), {net(x)}),
        lambda net, x: (net(x).sum(), lambda: net(x)),
        lambda net, x: (net(x).sum(), time.perf_counter()),
        lambda net, x: (net(x).sum(), _FILE.write("a step")),
        lambda net, x: (net(x).sum(), pickle.dumps(net(x))),
        lambda net, x: (net(x).sum(), pickle.dumps([net(x).sum().item()])),
        lambda net, x: (net(x).sum(), pickle.dumps({"text": f"{net(x).sum().item():.2f}"})),
        lambda net, x: (net(x).sum(), (net(x) * 2).data_ptr()),
        lambda net, x: (net(x).sum(), net[0].weight.detach()[0]._version),
        lambda net, x: (net(x).sum(), torch.save(net.state_dict(), io.BytesIO())),
        lambda net, x: (net(x).sum(), x.data_ptr()),
        lambda net, x: (net(x).sum(), net[0].weight._version),
    ],
)
def test_what_no_program_repeats_is_refused(loss_of: Loss) -> None:
    with pytest.raises((UnsupportedStep, StateChangedOtherwise)):
        _run(loss_of, True)
    assert time.perf_counter.__module__ == "time"


@pytest.mark.parametrize(
    ("factor", "change"),
    [(_VARIABLE.get, lambda k: _VARIABLE.set(float(k))), (lambda: _TABLE["scale"], lambda k: _HELD.update(scale=k))],
)
def test_what_no_walk_looks_into_is_guarded(factor: Callable[[], float], change: Callable[[int], Any]) -> None:
    def run(compiled: bool) -> list[Any]:
        change(1)
        return _run(lambda net, x: net(x).sum() * factor(), compiled, change)

    _assert_same(run(True), run(False))


def test_attributes_of_parameters_are_numbers_like_others() -> None:
    def run(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        for parameter in net.parameters():
            parameter.scale, parameter.count = 1.0, 0  # type: ignore[attr-defined]

        def step(x: Tensor) -> Tensor:
            net.zero_grad()
            loss: Tensor = net(x).sum()
            loss.backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.count += 1  # type: ignore[attr-defined]
                    parameter.sub_(parameter.grad * parameter.scale / parameter.count)  # type: ignore[attr-defined, operator]
            return loss

        call = dovetail.compile_step(step) if compiled else step
        found = []
        for k in range(6):
            found.append((call(torch.randn(3, 4)), net.weight.detach().clone(), net.weight.count))  # type: ignore[attr-defined]
            net.weight.scale = 1.0 - 0.1 * k  # type: ignore[attr-defined]
        return found

    _assert_same(run(True), run(False))


def test_gradients_that_the_step_makes_no_use_of_stay() -> None:
    def run(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def gradients(x: Tensor) -> None:
            optimizer.zero_grad()
            net(x).sum().backward()

        call = dovetail.compile_step(gradients) if compiled else gradients
        found = []
        for _ in range(4):
            call(torch.randn(3, 4))
            optimizer.step()
            found.append(net.weight.detach().clone())
        return found

    _assert_same(run(True), run(False))


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, though this process was started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_a_step_is_captured_waits_for_its_end() -> None:
    net = nn.Linear(4, 2)

    def step(x: Tensor) -> Tensor:
        loss: Tensor = net(x).sum()
        loss.backward()
        if is_fake(net.weight):
            signal.raise_signal(signal.SIGINT)
        return loss

    compiled = dovetail.compile_step(step)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.randn(3, 4))
    assert type(net.weight) is nn.Parameter
    step(torch.randn(3, 4))


def test_generators_of_the_user_are_put_back_when_a_guess_was_wrong() -> None:
    def run(compiled: bool) -> list[Any]:
        generator = torch.Generator().manual_seed(3)

        def loss_of(net: nn.Module, x: Tensor) -> Any:
            draw = torch.rand((), generator=generator)
            loss = net(x).sum() * draw
            return loss * 2 if draw.item() > 0.5 else loss

        return _run(loss_of, compiled, calls=9)

    _assert_same(run(True), run(False))


def test_anomalies_are_found() -> None:
    net = nn.Linear(4, 2)

    def step(x: Tensor) -> None:
        (net(x) * 0).sqrt().sum().backward()

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        compiled(torch.randn(3, 4))
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.raises(RuntimeError, match="nan"),
        pytest.warns(UserWarning, match="nomaly"),
    ):
        compiled(torch.randn(3, 4))


def test_refusals_are_errors_of_dovetail() -> None:
    assert issubclass(UnsupportedStep, DovetailError)
