"""Numbers that depend on what a cluster writes: Python's, bit for bit, or the nodes run one by one."""

from __future__ import annotations

import gc
import math
import operator
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.execute.native import machine
from dovetail.execute.native.number_text import STEPS
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Value
from tests.execute.native.programs import Drafted, aten, calls_counted, compiled, drive_by, outcome
from tests.execute.native.segments import Segment

pytest.importorskip("llvmlite")


def _counted(start: Tensor, make: Callable[[Drafted, Value], Any]) -> tuple[Drafted, Any]:
    """A step counter that is counted and read, and a tensor that is multiplied by a number made of it."""
    draft = Drafted()
    x, count = draft.base(torch.linspace(-3, 3, 20)), draft.base(start)
    draft.add(aten.add_.Tensor, count, 1)
    number = make(draft, draft.read(count))
    draft.add(aten.mul_.Tensor, x, number)
    return draft, draft.program([])


def _same(draft: Drafted, program: Any) -> None:
    assert outcome(compiled(program), draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0.0, 1.0, 7.5, 16_777_216.0, 1e30, -1.0, -5.0])
def test_corrections_of_a_counted_step(start: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)

    def make(draft: Drafted, step: Value) -> Any:
        power = draft.compute(operator.pow, 0.9, step)
        return draft.compute(operator.truediv, 0.01, draft.compute(operator.add, power, 1))

    draft, program = _counted(torch.tensor(start, dtype=dtype), make)
    _same(draft, program)
    assert answers == [0]


@pytest.mark.parametrize(
    ("start", "make"),
    [
        (-1.0, lambda d, n: d.compute(operator.truediv, 1.0, n)),  # by zero
        (-1.0, lambda d, n: d.compute(operator.pow, n, -1.0)),
        (-3.0, lambda d, n: d.compute(math.sqrt, n)),
        (1e30, lambda d, n: d.compute(operator.pow, n, 20)),  # too large
    ],
)
def test_errors_are_pythons(start: float, make: Any) -> None:
    draft, program = _counted(torch.tensor(start), make)
    with pytest.raises((ZeroDivisionError, ValueError, OverflowError)) as expected:
        compiled(program, native=False)(draft.arguments())
    arguments = draft.arguments()
    with pytest.raises(type(expected.value), match=re.escape(str(expected.value).partition("\n")[0])):
        compiled(program)(arguments)


@pytest.mark.parametrize(
    ("start", "make"),
    [
        (2.0, lambda d, n: d.compute(operator.mul, n, 1e300)),  # no number of float32
        (-4.0, lambda d, n: d.compute(operator.pow, n, 2)),
    ],
)
def test_numbers_that_kernels_do_not_take(start: float, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = calls_counted(monkeypatch)
    draft, program = _counted(torch.tensor(start), make)
    _same(draft, program)
    assert answers == [1], "nothing ran"


@pytest.mark.parametrize("number", [0, 1, -3, 2**53, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e300])
@pytest.mark.parametrize("start", [0.0, -1.0, 3.0, math.inf, math.nan])
@pytest.mark.parametrize("target", list(STEPS))
def test_numbers_that_python_takes(target: Any, start: float, number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers, infinities and NaN: the nodes run only where one is an error, or complex, or float32 has none."""
    answers = calls_counted(monkeypatch)
    draft = Drafted()
    x, count, given = draft.base(torch.linspace(-3, 3, 20)), draft.base(torch.tensor(start)), draft.number(number)
    draft.add(aten.add_.Tensor, count, 1)
    operands = (given, draft.read(count))
    made = draft.compute(operator.add, *operands) if target in _OF_ONE else draft.compute(target, *operands)
    made = draft.compute(target, made) if target in _OF_ONE else made
    draft.add(aten.mul_.Tensor, x, made)
    program = draft.program([])
    plain, native = compiled(program, native=False), compiled(program)
    try:
        expected = outcome(plain, draft.arguments())
    except (ZeroDivisionError, ValueError, OverflowError, TypeError, RuntimeError) as error:
        with pytest.raises(type(error)):
            native(draft.arguments())
        return
    assert outcome(native, draft.arguments()) == expected
    is_large, may_be_complex = 1e10 < abs(number) < math.inf, target is operator.pow and number < 0
    assert answers == [0] or is_large or may_be_complex


@pytest.mark.parametrize("seed", range(40))
def test_drawn_expressions(seed: int) -> None:
    """Numbers from counters, constants and numbers that are given, of both signs and zero."""
    generator = random.Random(seed)
    draft = Drafted()
    x = draft.base(torch.linspace(-3, 3, 33))
    dtype = generator.choice((torch.float32, torch.float64))
    known: list[Any] = [draft.number(generator.choice((0.0, -0.0, 0.9, 3.5, 2, math.inf, math.nan))) for _ in range(2)]
    for _ in range(2):
        count = draft.base(torch.tensor(generator.choice((0.0, -1.0, 5.0, 0.25)), dtype=dtype))
        for _ in range(generator.randint(1, 2)):
            draft.add(generator.choice((aten.add_.Tensor, aten.mul_.Tensor)), count, generator.choice((1, 0.5, -2)))
        known.append(draft.read(count))
    for _ in range(8):
        target: Any = generator.choice(list(STEPS))
        operands = [generator.choice([*known, 1, 0.5, -0.0, 2.0]) for _ in range(1 + (target not in _OF_ONE))]
        if any(isinstance(operand, Value) for operand in operands):
            known.append(draft.compute(target, *operands))
            draft.add(aten.add_.Tensor, x, known[-1])
    program = draft.program([])
    runs = []
    for native in (False, True):
        arguments = draft.arguments()
        try:
            runs.append(outcome(compiled(program, native=native), arguments))
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, RuntimeError) as error:
            runs.append((type(error), [a for a in arguments if isinstance(a, float)]))
    assert runs[0] == runs[1]


_OF_ONE = (operator.neg, math.sqrt)


def test_a_number_that_is_read_later_too() -> None:
    draft = Drafted()
    x, count = draft.base(torch.linspace(-3, 3, 20)), draft.base(torch.tensor(3.0))
    draft.add(aten.add_.Tensor, count, 1)
    number = draft.compute(operator.pow, 0.5, draft.read(count))
    draft.add(aten.mul_.Tensor, x, number)
    made = draft.add(aten.cumsum.default, x, 0)
    draft.add(aten.mul_.Tensor, made, number)
    _same(draft, draft.program([made]))


def test_a_counter_that_is_counted_again() -> None:
    """The number is that of before."""
    draft = Drafted()
    x, count = draft.base(torch.linspace(-3, 3, 20)), draft.base(torch.tensor(3.0))
    draft.add(aten.add_.Tensor, count, 1)
    number = draft.read(count)
    draft.add(aten.mul_.Tensor, x, number)
    draft.add(aten.add_.Tensor, count, 1)
    draft.add(aten.mul_.Tensor, x, draft.read(count))
    _same(draft, draft.program([]))


class _Failing:
    """A driver that fails behind the early rows."""

    def __init__(self) -> None:
        self.real = machine.driver()
        self.fails = False

    def __call__(self, table: Any, rows: int, threads: int, early: int) -> int:
        done = self.real(table, rows, threads, early)
        return 2 if self.fails else done


def test_what_a_call_has_taken_is_let_go_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Failing()
    drive_by(monkeypatch, driver)
    draft = Segment()
    x = draft.input(torch.randn(50, 50))
    made = draft.call(aten.mul.Tensor, x, 2.0)
    program = draft.program([draft.call(aten.exp.default, made), draft.call(aten.neg.default, x)])
    code = compiled(program)
    code(draft.arguments())
    driver.fails = True

    def fail(arguments: list[Any]) -> None:
        with pytest.raises(RuntimeError, match="lack of memory"):
            code(arguments)

    fail(draft.arguments())
    assert measure_peak(fail, draft.arguments()).end_bytes == 0


def test_results_are_tensors_as_ever() -> None:
    """In the shape of the only view that is returned; inference tensors in inference mode."""

    def function(x: Tensor) -> Tensor:
        return (torch.tanh(x) * 2 + x).view(-1, 4).t()

    compiled_function, x = dovetail.compile(function), torch.randn(6, 10)
    with torch.no_grad():
        found, expected = compiled_function(x), function(x)
        assert torch.equal(found, expected)
        assert (found.stride(), found.storage_offset()) == (expected.stride(), expected.storage_offset())
        assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
        found.resize_(2, 3).zero_()
    with torch.inference_mode():
        assert compiled_function(x).is_inference()
        assert torch.equal(compiled_function(x), function(x))


def test_the_only_view_of_what_was_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that counts its versions is the view's: the nodes do not run again."""
    answers = calls_counted(monkeypatch)
    draft = Segment()
    x = draft.input(torch.randn(6, 4))
    made = draft.call(aten.mul.Tensor, x, 2.0)
    draft.call(aten.add_.Tensor, made, x)
    draft.call(aten.mul_.Tensor, x, 0.5)
    program = draft.program([draft.call(aten.view.default, made, [2, 12]), x])
    code = compiled(program)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert answers == [0]
    assert code.executors.groups


def test_nothing_is_left_behind() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())

    @dovetail.compile_step
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(4, 8)
    for _ in range(3):
        step(x)
    gc.collect()
    before = sum(isinstance(each, Tensor) for each in gc.get_objects())
    for _ in range(20):
        step(x)
    gc.collect()
    assert sum(isinstance(each, Tensor) for each in gc.get_objects()) == before
    report = measure_peak(lambda arguments: step(*arguments), [x])
    kept = [report.result, *(p.grad for p in model.parameters())]
    assert report.end_bytes == sum(each.nbytes for each in kept if each is not None)
