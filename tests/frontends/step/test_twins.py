"""The comparison of two training loops is itself tried: every kind of wrong step must be found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

import dovetail
from dovetail.errors import UnsupportedStep
from dovetail.ir.program import Origin
from tests.frontends.step import refusing
from tests.frontends.step.agreement import Case, agree
from tests.frontends.step.cases.changes import Parts
from tests.frontends.step.cases.covering import covering_rows, single_rows
from tests.frontends.step.cases.refusals import REFUSALS, Refusal
from tests.frontends.step.twins import Differs, Twin, difference

pytestmark = pytest.mark.usefixtures("alone")

Call = Callable[..., Any]
Wrong = Callable[["Rig", int, Call], Any]


class Rig:
    """What the wrong steps below can reach: the side that was built last, which is the compiled one."""

    def __init__(self) -> None:
        self.parts = Parts()
        self.given: tuple[Any, ...] = ()
        self.returned: list[Any] = []
        self.scheduler = lr_scheduler.ExponentialLR(self.parts.opt, 0.9)
        self.counts = {"calls": 0}

    def twin(self) -> Twin:
        net, opt, scheduler, counts = self.parts.net, self.parts.opt, self.scheduler, self.counts

        def step(rows: Tensor, labels: Tensor) -> dict[str, Any]:
            opt.zero_grad()
            loss = F.cross_entropy(net(rows), labels)
            loss.backward()
            opt.step()
            scheduler.step()
            counts["calls"] += 1
            return {"loss": loss.detach(), "value": loss.item()}

        net.first.weight.register_hook(lambda grad: grad * 1)
        return self.parts.twin(step, schedulers={"it": scheduler}, attributes=lambda: counts)


def _stats(captures: int = 1, eager_calls: int = 0) -> Any:
    variants = (SimpleNamespace(reason="it is the first", is_once=False),) * captures
    return SimpleNamespace(guard_misses=0, variants=variants, eager_calls=eager_calls)


def _case(monkeypatch: pytest.MonkeyPatch, wrong: Wrong | None, stats: Any = None, **more: Any) -> Case:
    """A case whose compiled side runs the step, and then something else."""
    more.setdefault("keep_grads", False)
    rigs: list[Rig] = []

    def build() -> Twin:
        rigs.append(Rig())
        return rigs[-1].twin()

    def compile_step(step: Call, **_: Any) -> Call:
        rig, numbers = rigs[-1], itertools.count()

        def run(*arguments: Any) -> Any:
            number = next(numbers)
            rig.given = arguments
            if wrong is None or number < 3:
                return step(*arguments)
            return wrong(rig, number, lambda: step(*arguments))

        run.stats = stats or _stats()  # type: ignore[attr-defined]
        return run

    monkeypatch.setattr(dovetail, "compile_step", compile_step, raising=False)
    return Case("a case", build, **more)


def _none_returned(rig: Rig, number: int, call: Call) -> Any:
    call()


def _tensor_for_number(rig: Rig, number: int, call: Call) -> Any:
    return {key: torch.as_tensor(item) for key, item in call().items()}


def _other_keys(rig: Rig, number: int, call: Call) -> Any:
    return dict(reversed(call().items()))


def _numbers_baked_in(rig: Rig, number: int, call: Call) -> Any:
    group = rig.parts.opt.param_groups[0]
    now = group["lr"]
    group["lr"] = 0.02
    try:
        return call()
    finally:
        group["lr"] = now * 0.9


def _generator_moved(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    torch.rand(())
    return result


def _mask_of_before(rig: Rig, number: int, call: Call) -> Any:
    before = torch.get_rng_state()
    torch.manual_seed(1)
    result = call()
    torch.set_rng_state(before)
    F.dropout(torch.ones(7, 10), 0.2)
    return result


def _result_reused(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    if rig.returned:
        result["loss"] = rig.returned[0].copy_(result["loss"])
    rig.returned.append(result["loss"])
    return result


def _parameter_replaced(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.parts.net.second.bias = nn.Parameter(rig.parts.net.second.bias.detach().clone())
    return result


def _state_replaced(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    state = next(iter(rig.parts.opt.state.values()))
    state["exp_avg"] = state["exp_avg"].clone()
    return result


def _other_strides(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    with torch.no_grad():
        weight = rig.parts.net.second.weight
        weight.data = weight.data.t().contiguous().t()
    return result


def _state_of_optimizer_lost(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    for state in rig.parts.opt.state.values():
        state["step"].zero_()
    return result


def _shared_with_parameter(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    bias = rig.parts.net.second.bias
    with torch.no_grad():
        bias.set_(result["loss"].new_zeros(5)[:4].copy_(bias))
        result["loss"] = bias.new_empty(0).set_(bias.untyped_storage(), 4, ()).copy_(result["loss"])
    return result


def _scheduler_twice(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.scheduler.step()
    return result


def _counter_lost(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.counts["calls"] = 3
    return result


def _argument_written(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.given[0].add_(1)
    return result


def _buffer_lost(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.parts.net.norm.running_mean.mul_(1.0001)
    return result


def _negative_zero(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.parts.net.norm.bias.data.mul_(1).sub_(0).mul_(-1).mul_(-1)
    rig.parts.net.norm.running_var[0] = float("nan")
    return result


def _hook_lost(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.parts.net.first.weight._backward_hooks.clear()
    return result


def _mode_left(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    torch.set_grad_enabled(False)
    return result


def _error_swallowed(rig: Rig, number: int, call: Call) -> Any:
    call()
    raise ValueError("eager raises nothing")


def _gradient_flag(rig: Rig, number: int, call: Call) -> Any:
    result = call()
    rig.parts.net.first.bias.requires_grad_(False)
    return result


_WRONG = {
    _none_returned: "['result']: eager has a dict",
    _tensor_for_number: "['result']['value']: eager has a float",
    _other_keys: "['result']: eager has the keys",
    _numbers_baked_in: "['state']['model net']",
    _generator_moved: "generator ends elsewhere",
    _mask_of_before: "['result']['loss']",
    _result_reused: "tensors that are one object|results and arguments of call",
    _parameter_replaced: "other objects now",
    _state_replaced: "other objects now",
    _other_strides: "strides",
    _state_of_optimizer_lost: "['step']",
    _shared_with_parameter: "share memory",
    _scheduler_twice: "last_epoch|['lr']|scheduler it",
    _counter_lost: "['calls']",
    _argument_written: "['arguments'][0]",
    _buffer_lost: "running_mean",
    _negative_zero: "running_var",
    _hook_lost: "hooks",
    _mode_left: "modes",
    _error_swallowed: "eager gives results, and here is ValueError",
    _gradient_flag: "requires_grad",
}


@pytest.mark.parametrize("wrong", _WRONG, ids=lambda wrong: wrong.__name__.strip("_"))
def test_wrong_steps_are_found(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with pytest.raises(Differs) as caught:
            agree(_case(monkeypatch, wrong), 8)
    finally:
        torch.set_grad_enabled(True)
    assert any(words in str(caught.value) for words in _WRONG[wrong].split("|")), caught.value


def test_eager_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(_case(monkeypatch, None), 5)
    agree(_case(monkeypatch, None, keep_grads=True), 5)


def test_gradients_are_compared_where_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(rig: Rig, number: int, call: Call) -> Any:
        result = call()
        rig.parts.opt.zero_grad()
        return result

    agree(_case(monkeypatch, dropped), 5)
    with pytest.raises(Differs, match="'grads'"):
        agree(_case(monkeypatch, dropped, keep_grads=True), 5)


@pytest.mark.parametrize("stats", [_stats(captures=2), _stats(eager_calls=4)], ids=["programs", "eager calls"])
def test_programs_are_counted(stats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Differs, match=r"expected [01]"):
        agree(_case(monkeypatch, None, stats), 5)
    agree(_case(monkeypatch, None, stats, captures=None, eager_calls=None), 5)
    with pytest.raises(Differs, match="expected at most 1"):
        agree(_case(monkeypatch, None, stats, captures=None, eager_calls=None, at_most=1), 5)


def test_plain_values_are_told_apart() -> None:
    assert difference(1, True)
    assert difference(1, 1.0)
    assert difference(0.0, -0.0)
    assert difference({"a": 1}, {"a": 2}) == "['a']: eager has 1, and here is 2"
    assert difference(torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    assert difference(nn.Parameter(torch.zeros(2)), torch.zeros(2))
    assert difference(torch.zeros(2), -torch.zeros(2))
    assert difference((1, [2, None, "x"]), (1, [2, None, "x"])) is None
    assert difference(float("nan"), float("nan")) is None


def _refusing_step(step: Call, trace: Callable[[], object], place: str) -> Call:
    numbers = itertools.count()

    def run(*arguments: Any) -> Any:
        if next(numbers) == 0:
            return step(*arguments)
        trace()
        file, line = place.split(":")
        raise UnsupportedStep(what="fails", why="it does", hint="do not", origin=Origin(file, int(line)))

    return run


def test_refusals_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Parts] = []
    case = next(case for case in REFUSALS if case.name == "random.random")

    def build() -> Twin:
        side = case.build()
        net = side.models["net"]
        parts.append(net)  # type: ignore[arg-type]
        return side

    def use(trace: Callable[[], object], place: str) -> str:
        def compile_step(step: Call) -> Call:
            return _refusing_step(step, trace, place)

        monkeypatch.setattr(dovetail, "compile_step", compile_step, raising=False)
        return refusing.refused(Refusal(case.name, build))

    place = refusing.marked_line(case.build().steps["step"])
    assert place in use(lambda: None, place)
    with pytest.raises(Differs, match="does not name"):
        use(lambda: None, "elsewhere.py:1")
    with pytest.raises(Differs, match="changed the state"):
        use(lambda: torch.rand(1), place)
    with pytest.raises(Differs, match="changed the state"):
        use(lambda: parts[-1].first.weight.data.add_(1), place)  # type: ignore[attr-defined]
    monkeypatch.setattr(dovetail, "compile_step", lambda step: step, raising=False)
    with pytest.raises(Differs, match="no call was refused"):
        refusing.refused(case)


def test_any_two_choices_meet() -> None:
    sizes = (4, 7, 5)

    def allowed(row: tuple[int, ...]) -> bool:
        return row[0] != 2 or row[2] < 3

    rows = covering_rows(sizes, allowed)
    every = [row for row in itertools.product(*map(range, sizes)) if allowed(row)]

    def met(among: list[tuple[int, ...]], length: int) -> set[Any]:
        return {pair for row in among for pair in itertools.combinations(enumerate(row), length)}

    assert all(map(allowed, rows))
    assert met(rows, 2) == met(every, 2)
    assert len(rows) <= 1.5 * 7 * 5
    assert met(single_rows(rows), 1) == met(every, 1)
    assert rows == covering_rows(sizes, allowed)
