"""What a compiled step calls for real: in order, with copies, also when a program is given up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import BadOptionValue, DovetailError
from dovetail.frontends.step.schedulers import SchedulerState

Step = Callable[..., Any]
logger = logging.getLogger(__name__)


class Training:
    """A net, an optimizer, a scheduler, and what was told."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 2, gamma=0.5)

    def train(self, x: torch.Tensor) -> torch.Tensor:
        self.opt.zero_grad()
        loss: torch.Tensor = self.net(x).square().sum()
        loss.backward()
        self.opt.step()
        return loss.detach()


TOLD: list[Any] = []


@dovetail.host_call
def tell(*items: Any) -> None:
    TOLD.append([x.clone() if isinstance(x, torch.Tensor) else x for x in items])


@pytest.fixture(autouse=True)
def told() -> list[Any]:
    TOLD.clear()
    return TOLD


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and bool(a == b)


def _both(make: Callable[[Training], Step], inputs: list[torch.Tensor]) -> tuple[Any, Any]:
    """What was told and what became of the training: eager, compiled, which agree; and the compiled step."""
    found, step = [], None
    for compiled in (False, True):
        TOLD.clear()
        t = Training()
        step = dovetail.compile_step(make(t)) if compiled else make(t)
        results = [step(x) for x in inputs]
        found.append([results, list(TOLD), list(t.net.parameters()), t.opt.param_groups[0]["lr"], t.sched.last_epoch])
    assert _same(found[0], found[1])
    return found[1], step


INPUTS = [torch.full((2, 3), 0.1 * n) for n in range(1, 7)]


def test_order_and_arguments() -> None:
    def make(t: Training) -> Step:
        def step(x: torch.Tensor) -> torch.Tensor:
            tell("begin", x)
            loss = t.train(x)
            tell("loss", loss, loss.item(), {"twice": loss * 2}.get("twice"))
            tell("end")
            return loss

        return step

    found, step = _both(make, INPUTS)
    assert [items[0] for items in found[1]] == ["begin", "loss", "end"] * len(INPUTS)
    assert step.stats.captures == 1


def test_copies_are_given() -> None:
    """What is told is the weight of that moment, and writing it changes nothing."""

    @dovetail.host_call
    def spoil(weight: torch.Tensor, when: str) -> None:
        TOLD.append((when, weight.detach().clone()))
        if when == "spoil":
            weight.zero_()

    def make(t: Training) -> Step:
        def step(x: torch.Tensor) -> torch.Tensor:
            spoil(t.net.weight.detach().clone(), "before")
            loss = t.train(x)
            spoil(t.net.weight.detach().clone(), "spoil")
            return loss

        return step

    found, _ = _both(make, INPUTS)
    weights = [weight for _, weight in found[1]]
    assert all(torch.equal(a, b) for a, b in zip(weights[1::2], weights[2::2], strict=False))
    assert not torch.equal(weights[0], weights[1])


def test_the_result_is_not_given_to_the_step() -> None:
    @dovetail.host_call
    def answer() -> int:
        return 1

    def make(t: Training) -> Step:
        def step(x: torch.Tensor) -> Any:
            return t.train(x) if answer() is None else None  # type: ignore[func-returns-value]

        return step

    _both(make, INPUTS)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    t = Training()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = t.train(x)
        print("loss", loss.item() > 0, loss.shape, sep=":", end="!\n")
        return loss

    compiled = dovetail.compile_step(step)
    list(map(compiled, INPUTS))
    assert capsys.readouterr().out == "loss:True:torch.Size([])!\n" * len(INPUTS)
    assert compiled.stats.captures == 1


def test_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=__name__)
    losses = []
    t = Training()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = t.train(x)
        logger.info("loss %.6f of %s", loss.item(), "training")
        logger.debug("nobody hears %f", 1.0)
        return loss

    compiled = dovetail.compile_step(step)
    losses = [compiled(x).item() for x in INPUTS]
    own = [record for record in caplog.records if record.name == __name__]
    assert [record.getMessage() for record in own] == [f"loss {loss:.6f} of training" for loss in losses]
    assert {record.funcName for record in own} == {"step"}


def test_what_other_threads_say_while_a_step_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=__name__)
    t = Training()

    def aside() -> None:
        logger.info("from elsewhere")

    def step(x: torch.Tensor) -> torch.Tensor:
        return t.train(x)

    thread = threading.Thread(target=aside)
    compiled = dovetail.compile_step(step)
    compiled(INPUTS[0])
    thread.start()
    compiled(INPUTS[0])
    thread.join()
    assert [record.getMessage() for record in caplog.records if record.name == __name__] == ["from elsewhere"]


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")
def test_schedulers_before_and_after(is_first: bool) -> None:
    def make(t: Training) -> Step:
        def step(x: torch.Tensor) -> torch.Tensor:
            if is_first:
                t.sched.step()
            loss = t.train(x)
            if not is_first:
                t.sched.step()
            return loss

        return step

    _, step = _both(make, INPUTS)
    assert step.stats.captures == 1 + is_first  # whether the optimizer was called before is noted by the first call


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")
def test_a_program_that_is_given_up_has_called_nothing() -> None:
    """The branch changes with the data; a scheduler that was stepped before the program is taken back."""

    def make(t: Training) -> Step:
        def step(x: torch.Tensor) -> torch.Tensor:
            t.sched.step()
            loss = t.net(x).square().sum()
            tell("large" if loss.item() > 1 else "small", loss.detach())
            t.opt.zero_grad()
            if loss.item() > 1:
                loss = loss * 0.5
            loss.backward()
            t.opt.step()
            return loss.detach()

        return step

    inputs = [INPUTS[0] * scale for scale in (1, 1, 1, 90, 1, 95, 1, 97, 1)]
    found, step = _both(make, inputs)
    assert step.stats.guard_misses > 0
    assert len(found[1]) == len(inputs)


def test_an_error_of_a_host_call_comes_through() -> None:
    t = Training()

    @dovetail.host_call
    def fail(loss: torch.Tensor) -> None:
        raise KeyError("from the host")

    def step(x: torch.Tensor, is_late: bool) -> torch.Tensor:
        loss = t.train(x)
        if is_late:
            fail(loss)
        return loss

    compiled = dovetail.compile_step(step)
    for _ in range(3):
        compiled(INPUTS[0], False)
    with pytest.raises(KeyError, match="from the host"):
        compiled(INPUTS[0], True)


def test_nothing_stays_replaced_after_a_failed_capture() -> None:
    t = Training()
    before = (print, logging.Logger.handle, torch.nn.Module._apply)

    def step(x: torch.Tensor) -> Any:
        return t.train(x).numpy()

    compiled = dovetail.compile_step(step)
    compiled(INPUTS[0])
    with pytest.raises(DovetailError):
        compiled(INPUTS[0])
    assert (print, logging.Logger.handle, torch.nn.Module._apply) == before
    assert "step" not in vars(t.sched)
    tell("outside")
    assert TOLD == [["outside"]]


def test_what_schedulers_hold_is_put_back() -> None:
    rate = torch.tensor(0.1)
    opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
    parts = [torch.optim.lr_scheduler.ConstantLR(opt, 0.5, 2), torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)]
    sched = torch.optim.lr_scheduler.SequentialLR(opt, parts, [2])

    def now() -> Any:
        return [float(opt.param_groups[0]["lr"]), sched.last_epoch, [part.last_epoch for part in parts]]

    held, before = SchedulerState([sched]), now()
    opt.step()
    for _ in range(3):
        sched.step()
    assert now() != before
    held.put_back()
    assert now() == before
    assert opt.param_groups[0]["lr"] is rate


@pytest.mark.parametrize("every_call", [False, True])
def test_a_message_that_a_library_tells_once_needs_no_program_of_its_own(every_call: bool) -> None:
    """The optimizer makes its state in the same call."""
    library = pytest.importorskip("transformers.utils.logging")
    logger = library.get_logger("transformers.of_a_test")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            TOLD.append(record.getMessage().rpartition(" ")[0])

    def told_by(compiled: bool) -> tuple[list[Any], int]:
        training = Training()
        training.opt = torch.optim.AdamW(training.net.parameters())
        TOLD.clear()

        def step(x: torch.Tensor) -> torch.Tensor:
            if every_call:
                tell("begins", x)
            logger.warning_once(f"first {compiled}")
            loss = training.train(x)
            if every_call:
                tell("loss", loss)
            logger.warning_once(f"last {compiled}")
            return loss

        run: Any = dovetail.compile_step(step) if compiled else step
        losses = [run(torch.full((2, 3), float(n))) for n in range(4)]
        return [*TOLD, losses, training.net.weight.detach()], len(run.stats.variants) if compiled else 0

    handler = Handler()
    logger.addHandler(handler)
    library.warning_once.cache_clear()
    try:
        (eager, _), (ours, variants) = told_by(False), told_by(True)
    finally:
        logger.removeHandler(handler)
    assert _same(eager, ours)
    assert "first" in eager
    assert variants == 1


def test_what_a_first_call_tells_of_its_results_is_told_once() -> None:
    def told_by(compiled: bool) -> list[Any]:
        training = Training()
        training.opt = torch.optim.AdamW(training.net.parameters())
        TOLD.clear()
        seen: set[int] = set()

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = training.train(x)
            if not seen:
                seen.add(1)
                tell("the first loss", loss)
            return loss

        run: Any = dovetail.compile_step(step) if compiled else step
        return [[run(torch.full((2, 3), float(n))) for n in range(4)], *TOLD]

    assert _same(told_by(False), told_by(True))


@pytest.mark.parametrize("wrong", [None, 1, "print"])
def test_what_is_no_function_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(BadOptionValue, match="option 'function' cannot be"):
        dovetail.host_call(wrong)
