"""Objects that were there before a step, or that it makes, and leaves somewhere, returns, or gives to host calls."""

from __future__ import annotations

import copy
import dataclasses
import logging
import string
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import dovetail
from dovetail.errors import StateChangedOtherwise
from tests.object_programs import followed
from tests.rotation import rotated

CALLS = 6
X = [torch.arange(6.0).view(2, 3) * 0.1 - n for n in range(CALLS)]


class Box:
    def __init__(self, w: Any, other: Any = None) -> None:
        self.w = w
        self.other = other


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: torch.Tensor
    n: int = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    w: torch.Tensor
    n: int = 0


class Base:
    __slots__ = ("w",)


class Derived(Base):
    __slots__ = ("n",)

    def __init__(self, w: torch.Tensor, n: int) -> None:
        self.w, self.n = w, n


class Named:
    """What reading an attribute gives is not what the object holds under its name."""

    def __init__(self, w: torch.Tensor) -> None:
        self.__dict__["w"] = w

    @property
    def w(self) -> torch.Tensor:
        return self.__dict__["w"] * 2  # type: ignore[no-any-return]


class State:
    def __init__(self, box: Box, values: list[Any], w: torch.Tensor) -> None:
        self.flag, self.n, self.k, self.t = True, 3, None, (1, 2)
        self.m = self.cur = box
        self.l = self.c = values
        self.w = self.v = w


def _zeros() -> torch.Tensor:
    return torch.zeros(2, 3)


def a_frozen_dataclass(s: Any, x: torch.Tensor) -> Any:
    s.h = dataclasses.replace(s.h, w=s.h.w * 0.9 + x, n=s.h.n + 1)
    return s.h.n


def a_slotted_dataclass(s: Any, x: torch.Tensor) -> Any:
    s.h = Slotted(s.h.w + x, s.h.n + 2)
    return s.h.w.sum()


def slots_of_two_classes(s: Any, x: torch.Tensor) -> Any:
    s.h = Derived(s.h.w + x, s.h.n + 1)
    return s.h.w.sum()


def a_property(s: Any, x: torch.Tensor) -> Any:
    s.h = Named(s.h.w + x)
    return s.h.w


def a_namespace(s: Any, x: torch.Tensor) -> Any:
    s.h = SimpleNamespace(w=s.h.w + x, tag="new", old=None)
    return s.h.tag


def a_chain(s: Any, x: torch.Tensor) -> Any:
    s.h = Box(s.h.w + x, s.h)
    if s.h.other.other is not None:
        s.h.other.other = None
    return s.h.w * 1


def a_cycle(s: Any, x: torch.Tensor) -> Any:
    new = Box(s.h.w + x)
    new.other = [new]
    s.h = new
    return new.w * 1


def the_last_three(s: Any, x: torch.Tensor) -> Any:
    s.h.append(Box(x * 2))
    return torch.stack([box.w for box in s.h]).sum(0)


def a_policy(s: Any, x: torch.Tensor) -> Any:
    s.h = Categorical(logits=s.net(x))
    drawn = s.h.sample()
    loss = -s.h.log_prob(drawn).mean() - 0.1 * s.h.entropy().mean()
    s.net.zero_grad()
    loss.backward()
    with torch.no_grad():
        s.net.weight.sub_(s.net.weight.grad)
    return drawn


def a_belief(s: Any, x: torch.Tensor) -> Any:
    before, (mean, scale) = s.h, s.net(x).detach().chunk(2)
    s.h = Normal(mean + before.loc * 0.5, scale.exp())
    return torch.distributions.kl_divergence(s.h, before).sum()


def modules_exchanged(s: Any, x: torch.Tensor) -> Any:
    y = s.h(x).detach()
    s.h, s.net = s.net, s.h
    return y


def modules_and_optimizers_in_turn(s: Any, x: torch.Tensor) -> Any:
    net, optimizer = s.h[0]
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    s.h = [*s.h[1:], s.h[0]]
    return net.weight.sum().detach()


def returned_with_a_module(s: Any, x: torch.Tensor) -> Any:
    s.h.w.add_(x)
    return {"box": s.h, "net": s.net, "y": s.net(x).detach()}


def a_new_object_is_returned(s: Any, x: torch.Tensor) -> Any:
    found = Box(s.net(x), s.h)
    found.self = found  # type: ignore[attr-defined]
    s.h = Box(found.w.detach() * 2, [s.net])
    return {"found": found, "both": (s.h, found), "sum": found.w.sum()}


def a_dataclass_is_left_and_returned(s: Any, x: torch.Tensor) -> Any:
    s.h = dataclasses.replace(s.h, w=s.h.w + x)
    return {"h": s.h, "w": s.h.w}


def a_distribution_is_returned(s: Any, x: torch.Tensor) -> Any:
    return Categorical(logits=s.net(x)), Normal(s.net(x).mean(), 1.0)


def what_it_appends_to_is_returned(s: Any, x: torch.Tensor) -> Any:
    s.h.append(x.sum())
    return s.h


def what_it_put_something_into_is_replaced_by_the_like(s: Any, x: torch.Tensor) -> Any:
    s.h["k"] = s.net
    s.h = {"k": s.l[0], "l": s.l}
    return x * 2


def _net() -> Any:
    torch.manual_seed(0)
    return nn.Linear(3, 4)


def _pairs() -> Any:
    pairs = []
    for n in range(3):
        torch.manual_seed(n)
        net = nn.Linear(3, 2)
        pairs.append((net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)))
    return SimpleNamespace(h=pairs)


Between = Callable[[Any, int], object]
CASES: list[tuple[Callable[[Any, torch.Tensor], Any], Callable[[], Any], Between | None]] = [
    (a_frozen_dataclass, lambda: SimpleNamespace(h=Frozen(_zeros())), None),
    (a_frozen_dataclass, lambda: SimpleNamespace(h=Frozen(_zeros())), lambda s, n: setattr(s, "h", Frozen(X[n], n))),
    (a_slotted_dataclass, lambda: SimpleNamespace(h=Slotted(_zeros())), None),
    (slots_of_two_classes, lambda: SimpleNamespace(h=Derived(_zeros(), 1)), None),
    (a_property, lambda: SimpleNamespace(h=Named(_zeros())), None),
    (a_namespace, lambda: SimpleNamespace(h=SimpleNamespace(w=_zeros(), tag="old", old=1)), None),
    (a_chain, lambda: SimpleNamespace(h=Box(_zeros())), None),
    (a_chain, lambda: SimpleNamespace(h=Box(_zeros())), lambda s, n: setattr(s, "h", Box(X[n], Box(X[n])))),
    (a_cycle, lambda: SimpleNamespace(h=Box(_zeros())), None),
    (the_last_three, lambda: SimpleNamespace(h=deque(maxlen=3)), None),
    (a_policy, lambda: SimpleNamespace(h=None, net=_net()), None),
    (a_belief, lambda: SimpleNamespace(h=Normal(torch.zeros(1, 4), torch.ones(1, 4)), net=_net()), None),
    (modules_exchanged, lambda: SimpleNamespace(h=_net(), net=nn.Linear(3, 4)), None),
    (modules_exchanged, lambda: SimpleNamespace(h=_net(), net=_net()), lambda s, n: setattr(s, "net", _net())),
    (a_new_object_is_returned, lambda: SimpleNamespace(h=Box(_zeros()), net=_net()), None),
    (a_dataclass_is_left_and_returned, lambda: SimpleNamespace(h=Frozen(_zeros())), None),
    (a_distribution_is_returned, lambda: SimpleNamespace(net=_net()), lambda s, n: setattr(s, "net", _net())),
    (what_it_appends_to_is_returned, lambda: SimpleNamespace(h=[]), lambda s, n: s.h.pop(0)),
    (what_it_put_something_into_is_replaced_by_the_like, lambda: SimpleNamespace(h={}, l=[1], net=_net()), None),
    (modules_and_optimizers_in_turn, _pairs, None),
    (modules_and_optimizers_in_turn, _pairs, lambda s, n: s.h.reverse() if n == 3 else None),
    (returned_with_a_module, lambda: SimpleNamespace(h=Box(_zeros()), net=_net()), None),
    (
        returned_with_a_module,
        lambda: SimpleNamespace(h=Box(_zeros()), net=_net()),
        lambda s, n: vars(s).update(copy.deepcopy(vars(s))),
    ),
]


def _shown(item: Any, met: dict[int, Any]) -> Any:
    """Values, and which objects are one."""
    if isinstance(item, torch.Tensor):
        return item.tolist(), item.requires_grad, item.grad_fn is None
    if item is None or isinstance(item, int | float | str | torch.Size):
        return item
    if id(item) in met:
        return f"object {met[id(item)][0]}"
    met[id(item)] = len(met), item
    if isinstance(item, nn.Module):
        return [_shown(w, met) for w in item.parameters()]
    if isinstance(item, torch.optim.Optimizer):
        return _shown(item.state_dict(), met)
    if isinstance(item, dict):
        return {key: _shown(value, met) for key, value in item.items()}
    if isinstance(item, list | tuple | deque):
        return [type(item), *(_shown(part, met) for part in item)]
    names = [*getattr(item, "__dict__", ()), *(n for c in type(item).__mro__ for n in getattr(c, "__slots__", ()))]
    return [type(item), *((name, _shown(getattr(item, name), met)) for name in names)]


def _followed(step: Any, make: Callable[[], Any], between: Between | None, compiled: bool) -> list[Any]:
    torch.manual_seed(5)
    s = make()

    def call(x: torch.Tensor) -> Any:
        return step(s, x)

    run = dovetail.compile_step(call) if compiled else call
    seen = []
    for n, x in enumerate(X):
        if between is not None and n > 1:
            between(s, n)
        torch.manual_seed(n)
        met: dict[int, Any] = {}
        seen.append((_shown(run(x.clone()), met), _shown(vars(s), met)))
    return seen


@pytest.mark.parametrize(("step", "make", "between"), CASES, ids=lambda x: getattr(x, "__name__", "") or "none")
def test_objects_are_left_and_returned_as_in_eager_mode(step: Any, make: Any, between: Between | None) -> None:
    assert _followed(step, make, between, compiled=True) == _followed(step, make, between, compiled=False)


@pytest.mark.parametrize("seed", rotated(list(range(400)), 20))
def test_random_programs_hand_on_the_objects_that_eager_mode_does(seed: int) -> None:
    (got, program), (expected, _) = followed(seed, dovetail.compile_step), followed(seed, lambda step: step)
    assert got == expected[: len(got)], program
    assert len(got) == CALLS + 2 or "returns an object" in program, program


# --- what is there already -------------------------------------------------------------------------------------------


SET = [
    "s.flag = True",
    "s.n = 3",
    "s.cur = s.m",
    "s.c = s.l",
    "s.v = s.w",
    "s.k = None",
    "s.t = (1, 2)",
    "s.t = (s.m,)",
]
OTHERS = ["s.flag = False", "s.n = 4", "s.cur = Box(1)", "s.c = [5]", "s.v = s.w * 2", "s.k = s.w", "s.t = (3, 4)"]


@pytest.mark.parametrize("line", SET)
def test_an_attribute_is_set_though_it_held_the_same_when_the_step_was_recorded(line: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        s: Any = State(Box(1), [1, 2], _zeros())
        known = {"s": s, "Box": Box}
        exec(f"def step(x):\n {line}\n return x * 2\n", known)
        step, seen = wrap(known["step"]), []
        for n, between in enumerate(["", "", *OTHERS, "s.m = Box(2)", "s.l = [3]", "s.w = s.w + 1", "s.m = s.cur"]):
            exec(between, known)
            step(torch.ones(2) * n)
            seen.append(_shown(vars(s), {}))
        return seen

    assert run(dovetail.compile_step) == run(lambda step: step)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (string.Formatter, "o.attribute = 5"),
        (logging.Filter, "o.attribute = 5"),
        (lambda: logging.Logger("one"), "o.setLevel(logging.DEBUG)"),
        (lambda: torch.utils.data.SequentialSampler(range(3)), "o.attribute = 5"),
    ],
)
def test_what_a_step_sets_in_an_object_of_a_library_is_refused_where_it_was_something_else(
    make: Any, line: str
) -> None:
    """It was left out, as libraries remember for themselves what they have worked out."""
    known = {"o": make(), "logging": logging}
    exec(line, known)
    exec(f"def step(x):\n {line}\n return x * 2\n", known)
    step = dovetail.compile_step(known["step"])
    assert all(torch.equal(step(x), x * 2) for x in X[:2])
    held: Any = known["o"]
    held.attribute, held.level = 6, 7
    with pytest.raises(StateChangedOtherwise, match=r"\.(attribute|level)"):
        step(X[2])
    assert (held.attribute, held.level) == (6, 7)


# --- host calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["s.box", "s.names", "s.losses", "[s.box, s.box]", "{'box': s.box}", "(s.box, 1)"])
def test_host_calls_get_the_objects_of_their_call(given: str) -> None:
    """Which may be others than those of the call that was recorded, and lists themselves, not copies."""

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        heard: list[Any] = []

        @dovetail.host_call
        def told(item: Any, number: torch.Tensor) -> None:
            heard.append(_shown(item, {}))
            if isinstance(item, list):
                item.append(float(number))

        s = SimpleNamespace(box=Box("first"), names=["a"], losses=[])
        known = {"s": s, "told": told}
        exec(f"def step(x):\n told({given}, x.sum())\n return x * s.box.w.count('s')\n", known)
        step = wrap(known["step"])
        for n in range(CALLS):
            if n == 3:
                s.box, s.names, s.losses = Box("second"), ["b"], []
            step(X[n])
            heard.append([list(s.names), list(s.losses)])
        return heard

    assert run(dovetail.compile_step) == run(lambda step: step)


@pytest.mark.parametrize("is_read", [False, True], ids=["stepped after the program", "stepped before it"])
def test_a_scheduler_that_was_replaced_is_not_stepped(is_read: bool) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        s = SimpleNamespace(net=net, opt=torch.optim.SGD(net.parameters(), 0.1))
        s.schedule = torch.optim.lr_scheduler.StepLR(s.opt, 1, 0.5)

        def step(x: torch.Tensor) -> Any:
            loss = s.net(x).square().mean()
            s.opt.zero_grad()
            loss.backward()
            s.opt.step()
            s.schedule.step()
            return loss.detach(), s.opt.param_groups[0]["lr"] if is_read else 0

        compiled, seen = wrap(step), []
        for n in range(2 * CALLS):
            if n == 3:
                s.schedule = torch.optim.lr_scheduler.StepLR(s.opt, 1, 0.9)
            if n == 5:
                s.opt = torch.optim.SGD(net.parameters(), 0.2)
                s.schedule = torch.optim.lr_scheduler.StepLR(s.opt, 2, 0.7)
            if n == 7:
                vars(s).update(copy.deepcopy(vars(s)))
            result = compiled(X[n % CALLS])
            seen.append((_shown(result, {}), s.opt.param_groups[0]["lr"], s.schedule.last_epoch))
        return seen

    assert run(dovetail.compile_step) == run(lambda step: step)


def test_a_container_that_changes_after_a_host_call_is_given_as_it_was() -> None:
    heard = []
    told = dovetail.host_call(lambda items: heard.append(list(items)))
    s = SimpleNamespace(names=["a"])

    def step(x: torch.Tensor) -> torch.Tensor:
        told(s.names)
        s.names = [*s.names, "b"]
        s.names.append("c")
        return x * 2

    run = dovetail.compile_step(step)
    for _ in range(3):
        s.names = ["a"]
        run(X[0])
    assert heard == [["a"]] * 3


def test_an_object_that_runs_code_as_it_goes_is_not_made() -> None:
    class Last(Box):
        def __del__(self) -> None: ...

    s = SimpleNamespace(h=Box(_zeros()))

    def step(x: torch.Tensor) -> None:
        s.h = Last(x * 2)

    run = dovetail.compile_step(step)
    run(X[0])  # as eager mode does
    before = s.h
    assert isinstance(before, Last)
    with pytest.raises(StateChangedOtherwise, match=r"changes s\.h"):
        run(X[1])
    assert s.h is before
