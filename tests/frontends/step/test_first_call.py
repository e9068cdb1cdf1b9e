"""Steps under a limit from their first call: no call in eager mode, its bits, and nothing left behind by a failure."""

from __future__ import annotations

import argparse
import copy
import gc
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import dovetail
from dovetail.capture.step_recorder import StepRecorder
from dovetail.errors import DovetailWarning, MemoryLimitTooLow
from dovetail.frontends.step.runner import StepRunner
from dovetail.frontends.step.unrun import record_unrun
from dovetail.inspect.memory import measure_peak
from dovetail.pipeline.doors import COMPILE_STEP
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.options import resolve_options

LIMIT = "1GiB"


def _with(kind: Any, **options: Any) -> Callable[[Any], optim.Optimizer]:
    return lambda parameters: kind(parameters, **options)


class Lion(optim.Optimizer):
    """An optimizer of the user's: its step count is a plain number."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["average"] = 0, torch.zeros_like(p)
                state["step"] += 1
                first, second = group["betas"]
                p.add_(torch.sign(state["average"] * first + p.grad * (1 - first)), alpha=-group["lr"] / state["step"])
                state["average"].mul_(second).add_(p.grad, alpha=1 - second)


OPTIMIZERS: dict[str, tuple[Callable[[Any], optim.Optimizer], int]] = {
    "SGD": (_with(optim.SGD, lr=0.1), 1),
    "momentum": (_with(optim.SGD, lr=0.1, momentum=0.9), 2),
    "AdamW": (optim.AdamW, 1),
    "AMSGrad": (_with(optim.Adam, amsgrad=True), 1),
    "foreach": (_with(optim.Adam, foreach=True), 1),
    "fused": (_with(optim.AdamW, fused=True), 1),
    "Adagrad": (optim.Adagrad, 1),
    "RMSprop": (_with(optim.RMSprop, centered=True, momentum=0.9), 2),
    "Adadelta": (optim.Adadelta, 1),
    "NAdam": (optim.NAdam, 1),
    "RAdam": (optim.RAdam, 1),
    "ASGD": (optim.ASGD, 1),
    "Rprop": (optim.Rprop, 2),
    "Adamax": (optim.Adamax, 1),
    "Adafactor": (optim.Adafactor, 2),
    "Lion": (Lion, 2),
}


class Training:
    """A model, its optimizer, and a step under a limit, or in eager mode without one."""

    def __init__(self, make: Callable[[Any], optim.Optimizer], limit: str | int | None, **options: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5))
        self.optimizer = make(self.net.parameters())
        self.batch = torch.randn(8, 16), torch.arange(8) % 5
        self.step: Any = self.plain
        if limit is not None:
            self.step = dovetail.compile_step(self.plain, memory_limit=limit, keep_grads=True, **options)

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def left(self) -> list[Any]:
        """All that a call leaves behind, copied."""
        tensors = [(p.detach().clone(), None if p.grad is None else p.grad.clone()) for p in self.net.parameters()]
        return [*tensors, copy.deepcopy(self.optimizer.state_dict()), torch.get_rng_state()]


def _are_equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (a.dtype, a.stride(), a.requires_grad) == (b.dtype, b.stride(), b.requires_grad) and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(_are_equal, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_call_is_eagers(name: str) -> None:
    make, programs = OPTIMIZERS[name]
    eager, compiled = Training(make, None), Training(make, LIMIT)
    for call in range(3):
        torch.manual_seed(call)
        wanted = [eager.step(*eager.batch), eager.left()]
        torch.manual_seed(call)
        found = [compiled.step(*compiled.batch), compiled.left()]
        assert _are_equal(wanted, found), call
    stats = compiled.step.stats
    assert (stats.eager_calls, stats.captures, stats.eager_reasons) == (0, programs, ())


@pytest.mark.parametrize("name", ["AdamW", "momentum", "Lion"])
def test_what_does_not_fit_leaves_no_state(name: str) -> None:
    training = Training(OPTIMIZERS[name][0], "1KiB")
    before = training.left()
    for _ in range(2):
        with pytest.raises(MemoryLimitTooLow):
            training.step(*training.batch)
        assert _are_equal(before, training.left())
        assert not training.optimizer.state


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
def test_a_call_that_fails_leaves_no_state(name: str) -> None:
    training = Training(OPTIMIZERS[name][0], LIMIT)
    x, y = training.batch
    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
        training.step(x, y + 1)
    assert not training.optimizer.state
    training.step(x, y)
    assert len(training.optimizer.state) == 4


def test_numbers_that_only_a_run_tells_are_met_in_eager_mode_first() -> None:
    training = Training(optim.AdamW, None)

    @dovetail.compile_step(memory_limit=LIMIT)
    def step(x: Tensor, y: Tensor) -> Tensor:
        training.optimizer.zero_grad()
        loss = F.cross_entropy(training.net(x), y)
        loss.backward()
        if torch.isfinite(loss):  # after dropout, which is not drawn beforehand
            training.optimizer.step()
        return loss.detach()

    with pytest.warns(DovetailWarning, match="ran in eager mode, and was not held to memory_limit='1GiB', because"):
        step(*training.batch)
    step(*training.batch)
    assert (step.stats.eager_calls, step.stats.captures) == (1, 1)
    assert "in eager mode: control flow" in str(step.stats)
    assert step.explain().in_eager_mode == step.stats.eager_reasons


def test_numbers_of_arguments_are_known_before() -> None:
    training = Training(optim.AdamW, None)

    @dovetail.compile_step(memory_limit=LIMIT)
    def step(x: Tensor, y: Tensor) -> Tensor:
        factor = 1.0 if (y.diff() == 1).all() else 2.0
        return factor * training.plain(x, y)

    x, y = training.batch
    for labels in (y, y.flip(0)):
        twin = copy.deepcopy(training.net)
        torch.manual_seed(0)
        factor = 1.0 if (labels.diff() == 1).all() else 2.0
        wanted = factor * F.cross_entropy(twin(x), labels)
        torch.manual_seed(0)
        assert torch.equal(step(x, labels), wanted)
        if labels is y:
            assert step.stats.eager_calls == 0


def test_two_steps_share_an_optimizer() -> None:
    def trained(limit: str | None) -> list[Any]:
        training = Training(optim.AdamW, None)
        steps: list[Any] = [training.plain, lambda x, y: training.plain(2 * x, y)]
        if limit is not None:
            steps = [dovetail.compile_step(step, memory_limit=limit, keep_grads=True) for step in steps]
        torch.manual_seed(1)
        found = [[step(*training.batch), training.left()] for _ in range(2) for step in steps]
        assert limit is None or all(step.stats.eager_calls == 0 for step in steps)
        return found

    assert _are_equal(trained(None), trained(LIMIT))


@pytest.mark.parametrize("make", [optim.AdamW, _with(optim.SGD, lr=0.1, momentum=0.9)])
def test_state_that_a_later_call_makes(make: Any) -> None:
    """Gradients are collected: the third call is the first to update."""

    def trained(limit: str | None) -> list[Any]:
        training = Training(make, None)

        def plain(number: int, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(training.net(x), y)
            loss.backward()
            if number % 3 == 2:
                training.optimizer.step()
                training.optimizer.zero_grad()
            return loss.detach()

        step: Any = plain if limit is None else dovetail.compile_step(plain, memory_limit=limit, keep_grads=True)
        torch.manual_seed(1)
        found = [[step(number, *training.batch), training.left()] for number in range(9)]
        assert limit is None or step.stats.eager_calls == 0
        return found

    assert _are_equal(trained(None), trained(LIMIT))


def test_gradients_that_the_step_asks_for() -> None:
    """Whether there is a gradient decides what the step does: the first call does as if there were none."""

    def trained(limit: str | None) -> list[Any]:
        training = Training(optim.AdamW, None)

        def plain(x: Tensor, y: Tensor) -> Tensor:
            scale = 1.0 if training.net[0].weight.grad is None else 3.0  # type: ignore[union-attr]
            return scale * training.plain(x, y)

        step: Any = plain if limit is None else dovetail.compile_step(plain, memory_limit=limit, keep_grads=True)
        torch.manual_seed(1)
        return [[step(*training.batch), training.left()] for _ in range(3)]

    assert _are_equal(trained(None), trained(LIMIT))


def test_a_scheduler_that_is_called_too_early_warns_as_in_eager_mode() -> None:
    for early in (False, True):
        training = Training(optim.AdamW, None)
        schedule = optim.lr_scheduler.StepLR(training.optimizer, 1)

        @dovetail.compile_step(memory_limit=LIMIT)
        def step(x: Tensor, y: Tensor) -> None:
            if early:  # noqa: B023
                schedule.step()  # noqa: B023
            training.plain(x, y)  # noqa: B023
            if not early:  # noqa: B023
                schedule.step()  # noqa: B023

        if early:
            with pytest.warns(UserWarning, match="before `optimizer.step"):
                step(*training.batch)
        else:
            step(*training.batch)


@pytest.mark.parametrize("name", ["AdamW", "momentum", "SGD"])
def test_a_program_without_a_run(name: str) -> None:
    make = OPTIMIZERS[name][0]
    training, reached = Training(make, None), Training(make, LIMIT)
    before = training.left()
    options = resolve_options({"keep_grads": True, "memory_limit": LIMIT}, PASS_NAMES, COMPILE_STEP)
    found = record_unrun(training.plain, training.batch, {}, options=options)
    assert _are_equal(before, training.left())
    assert not training.optimizer.state
    reached.step(*reached.batch)
    reached.step(*reached.batch)
    assert found.program.state_bytes == reached.step.explain().state_bytes
    assert found.program.peak_bytes == reached.step.explain().peak_bytes
    held = [x for state in reached.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    assert found.made_bytes == sum(x.numel() * x.element_size() for x in held)


@pytest.mark.parametrize("name", ["AdamW", "momentum", "RMSprop"])
def test_the_first_call_keeps_the_lowest_limit(name: str) -> None:
    """With the state that it makes; nothing of the capture is held meanwhile. Another step has run before, as a process
    finds out once which kernels may write over their operands.
    """
    make = OPTIMIZERS[name][0]
    before = Training(make, "1GiB")
    before.step(*before.batch)
    tried = Training(make, "transient:1B")
    with pytest.raises(MemoryLimitTooLow) as refused:
        tried.step(*tried.batch)
    floor = int(str(refused.value.facts["floor_bytes"]))
    training = Training(make, f"transient:{floor}B")
    peaks = [measure_peak(lambda: training.step(*training.batch)).peak_bytes for _ in range(3)]
    state = pytree.tree_leaves(training.optimizer.state_dict()["state"])
    made = sum(item.untyped_storage().nbytes() for item in state if isinstance(item, Tensor))
    numbers = 16 * len(
        state
    )  # that the recording works with, before the program runs: the peak of steps as small as this
    assert training.step.stats.eager_calls == 0
    assert peaks[0] <= floor + made + numbers
    assert max(peaks[1:]) <= floor


def test_no_recording_is_held_while_the_first_call_runs() -> None:
    """Nor its real tensors: constants, numbers that are known. That needs no collection of cycles."""
    training = Training(optim.AdamW, "1GiB")
    held: list[int] = []
    gc.collect()
    others = {id(item) for item in gc.get_objects() if type(item) is StepRecorder}  # of other tests
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patched:
            run = StepRunner.run

            def watched(*args: Any) -> Any:
                held.append(sum(type(item) is StepRecorder and id(item) not in others for item in gc.get_objects()))
                return run(*args)

            patched.setattr(StepRunner, "run", watched)
            training.step(*training.batch)
    finally:
        gc.enable()
    assert held == [0]


def test_a_parameter_without_a_shape_gets_it_in_eager_mode() -> None:
    def trained(limit: str | None) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = optim.AdamW(net.parameters())

        def plain(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step: Any = plain if limit is None else dovetail.compile_step(plain, memory_limit=limit)
        x = torch.randn(3, 5)
        if limit is None:
            losses = [step(x) for _ in range(3)]
        else:
            with pytest.warns(DovetailWarning, match="a parameter of a lazy module"):
                losses = [step(x)]
            losses += [step(x) for _ in range(2)]
            assert (step.stats.eager_calls, step.stats.captures) == (1, 1)
        return [*losses, *(p.detach() for p in net.parameters())]

    assert _are_equal(trained(LIMIT), trained(None))


@pytest.mark.parametrize("limit", [LIMIT, None])
@pytest.mark.parametrize("make", [argparse.Namespace, SimpleNamespace, lambda: torch.distributions.Normal(0.0, 1.0)])
def test_objects_of_library_classes_are_as_eager_mode_leaves_them(make: Any, limit: str | None) -> None:
    """The first recording does not know them before it meets them; what it changes is put back all the same."""
    held, training = make(), Training(optim.AdamW, None)
    held.count = 0

    def plain(x: Tensor, y: Tensor) -> Tensor:
        held.count += 1
        return training.plain(x, y)

    if limit is None:
        dovetail.estimate(plain, *training.batch)
        assert held.count == 0
        return
    step = dovetail.compile_step(plain, memory_limit=limit)
    counts = []
    for _ in range(3):
        step(*training.batch)
        counts.append(held.count)
    assert counts == [1, 2, 3]


@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_begins_in_eager_mode(unscales: bool) -> None:
    """Whether it steps depends on data. The recording that finds out leaves nothing in it."""

    def trained(limit: str | None) -> list[Any]:
        training = Training(optim.AdamW, None)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

        def plain(x: Tensor, y: Tensor) -> Tensor:
            training.optimizer.zero_grad()
            loss = F.mse_loss(training.net(x), y)
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(training.optimizer)
            scaler.step(training.optimizer)
            scaler.update()
            return loss.detach()

        step: Any = plain if limit is None else dovetail.compile_step(plain, memory_limit=limit)
        x = training.batch[0]
        target = torch.ones_like(training.net(x))
        return [[step(x, target), *map(torch.clone, training.net.parameters()), scaler.state_dict()] for _ in range(3)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DovetailWarning)
        assert _are_equal(trained(None), trained(LIMIT))
