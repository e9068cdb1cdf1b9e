"""When a cluster cannot run, its nodes do: what they give, and how they fail, is what they would without it."""

from __future__ import annotations

import operator
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.execute.compiled import CompiledProgram
from tests.execute.native.programs import Drafted, aten, calls_counted, compiled, outcome

pytest.importorskip("llvmlite")


def _draft(number: float = 2.0) -> tuple[Drafted, Any]:
    draft = Drafted()
    x, n = draft.base(torch.tensor([1.0, -2.0, 3e-39, 1e-42])), draft.number(number)
    y = draft.add(aten.mul.Tensor, x, n)
    draft.add(aten.add_.Tensor, x, y)
    z = draft.add(aten.neg.default, x)
    return draft, draft.program([z])


class _Dispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class _Function(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [_Dispatch, _Function])
def test_a_mode_sees_each_operator(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _draft()
    seen = []
    for native in (True, False):
        code, mode, arguments = compiled(program, native=native), kind(), draft.arguments()
        with mode:
            code(arguments)
        seen.append([name for name in mode.seen if "version" not in name])
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 3
    assert answers == []
    with torch.device("cpu"):
        compiled(program)(draft.arguments())
    assert answers == [0], "a default device is no mode that looks"


@pytest.mark.parametrize("number", [1e300, -1e39, 2**53 + 1, True, 10**400])
def test_numbers_that_kernels_do_not_take(number: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _draft(number)
    assert _or_error(compiled(program), draft) == _or_error(compiled(program, native=False), draft)
    assert answers == []


@pytest.mark.parametrize("number", [3, -2, 2**53, float("inf"), float("nan"), 1e-300, 3e38])
def test_numbers_that_they_take(number: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _draft(number)
    assert _or_error(compiled(program), draft) == _or_error(compiled(program, native=False), draft)
    assert answers == [0]


def _or_error(code: CompiledProgram, draft: Drafted) -> str:
    arguments = draft.arguments()
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    try:
        return repr(outcome(code, arguments))
    except Exception as error:
        return f"{type(error).__name__} {error} at {code.failed_at(error)}, {[x.tolist() for x in tensors]}"


def test_a_number_that_cannot_be_computed() -> None:
    """The error is that of the node, at its number, and what was written before it is written."""
    draft = Drafted()
    x, n = draft.base(torch.ones(3)), draft.number(0.0)
    draft.add(aten.mul_.Tensor, x, 2.0)
    draft.add(aten.add_.Tensor, x, 1.0)
    ratio = draft.compute(operator.truediv, 1.0, n)
    draft.add(aten.mul_.Tensor, x, ratio)
    program = draft.program([])
    found = [_or_error(compiled(program, native=native), draft) for native in (True, False)]
    assert found[0] == found[1]
    assert "ZeroDivisionError" in found[0]
    assert "at 2, [[3.0, 3.0, 3.0]]" in found[0]


@contextmanager
def _tiny_as_zero() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def test_a_processor_that_takes_tiny_numbers_for_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _draft()
    code = compiled(program)
    with _tiny_as_zero():
        expected = outcome(compiled(program, native=False), draft.arguments())[1:]
        assert outcome(code, draft.arguments())[1:] == expected
    assert answers == [1]
    assert outcome(code, draft.arguments())[1:] != expected, "the usual way gives something else"
    assert answers == [1, 0]


def test_tensors_without_memory_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    _, program = _draft()
    (result,) = compiled(program)([torch.empty(4, device="meta"), 2.0])
    assert result.device.type == "meta"
    assert answers == [1]


def test_no_memory_for_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, program = _draft()
    code = compiled(program)
    expected = outcome(compiled(program, native=False), draft.arguments())

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "empty_like", fails)
    assert outcome(code, draft.arguments())[1:] == expected[1:]


def test_two_threads_at_once() -> None:
    draft, program = _draft()
    code = compiled(program)
    expected = outcome(code, draft.arguments())
    found: list[Any] = []

    def run() -> None:
        found.extend(outcome(code, draft.arguments()) == expected for _ in range(200))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 400


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of this kind")
def test_interrupts_come_between_calls() -> None:
    """A cluster that has begun ends: its writes are all there, or none of them is."""
    draft = Drafted()
    x, y = draft.base(torch.zeros(20_000)), draft.base(torch.zeros(20_000))
    draft.add(aten.add_.Tensor, x, 1.0)
    draft.add(aten.add_.Tensor, y, 1.0)
    program = draft.program([])
    code = compiled(program)
    assert code.executors.groups
    a, b = torch.zeros(20_000), torch.zeros(20_000)
    interrupts = 0
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                while True:
                    code([a, b])
            except KeyboardInterrupt:
                interrupts += 1
            assert torch.equal(a, b)
            assert bool((a == a[0]).all())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert interrupts == 40
    assert a[0] > 40
