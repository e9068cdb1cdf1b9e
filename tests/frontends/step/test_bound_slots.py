"""Each kind of value that a step can read: a change is noticed, an equal value is not a change."""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.record import difference
from tests.frontends.step.reachable_states import names_read_by, reachable_state_of
from tests.rotation import rotated

Pair = namedtuple("Pair", ["left", "right"])


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Settings:
    scale: float = 1.0
    names: list[str] = field(default_factory=list)


class Slotted:
    __slots__ = ("limit", "unset")

    def __init__(self) -> None:
        self.limit = 3


class Hostile:
    """Nothing can be asked of it."""

    def __init__(self, number: int = 1) -> None:
        object.__setattr__(self, "number", number)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("attribute")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __len__(self) -> int:
        raise RuntimeError("len")


def hostile_number(item: Hostile, value: int) -> None:
    object.__getattribute__(item, "__dict__")["number"] = value


class Closed(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class OfClosed(metaclass=Closed):
    pass


class Lying:
    __module__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.number = 1

    @property
    def __class__(self) -> Any:
        raise RuntimeError("class")


class Text(str):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = str.__hash__


class Own(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("iter")

    def values(self) -> Any:
        raise RuntimeError("values")


class Base:
    rate = 0.5

    def call(self, x: Any) -> Any:
        return x * self.rate

    @property
    def explosive(self) -> int:
        raise AssertionError("a property was run")


class Box:
    def __init__(self, held: Any) -> None:
        self.held = held


def one_step(held: Any) -> Callable[[], Any]:
    def step() -> Any:
        return held, vars(held)  # which can read every attribute

    return step


def both(held: Any) -> tuple[ReachableState, Any]:
    reachable = reachable_state_of(one_step(held))
    return reachable, reachable.guard()


class OtherSlots:
    __slots__ = ("limit", "unset")


class OtherOwn(Own):
    pass


def _slotted_one() -> Slotted:
    return Slotted()


def _slotted(value: Any) -> Slotted:
    item = Slotted()
    item.limit = value
    return item


NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64).item()
VALUES: list[tuple[Any, Any]] = [
    (1, 2),
    (1, True),
    (1, 1.0),
    (True, False),
    (0.0, -0.0),
    (NAN, OTHER_NAN),
    (NAN, 1.0),
    (1.5, 1.25),
    (1j, 2j),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    ("a", "b"),
    (b"a", b"b"),
    (None, 0),
    (range(3), range(4)),
    (range(0), range(1, 1)),
    (torch.float32, torch.float64),
    (torch.device("cpu"), torch.device("meta")),
    ((1, 2), (1, 3)),
    ((1, (2, 3)), (1, (2, 4))),
    ((1, 2), Pair(1, 2)),
    (Pair(1, 2), Pair(2, 1)),
    (Colour.RED, Colour.BLUE),
    (np.float64(1.0), np.float64(2.0)),
    (np.float32(1.0), np.float64(1.0)),
    (np.float64(1.0), 1.0),
    (len, min),
    (int, float),
    (Base, Slotted),
    (torch.zeros(2), torch.zeros(2)),
    ([1, 2], [1, 3]),
    ({"a": 1}, {"a": 2}),
    (frozenset({1}), frozenset({2})),
    (slice(1), slice(2)),
    (Box(1), Box(2)),
    (Hostile(1), Hostile(2)),
]


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "dict": (lambda x: {"k": x}, lambda c, x: c.__setitem__("k", x)),
    "ordered": (lambda x: OrderedDict(k=x), lambda c, x: c.__setitem__("k", x)),
    "default": (lambda x: defaultdict(list, k=x), lambda c, x: c.__setitem__("k", x)),
    "own dict": (lambda x: Own(k=x), lambda c, x: c.__setitem__("k", x)),
    "user dict": (lambda x: UserDict(k=x), lambda c, x: c.__setitem__("k", x)),
    "list": (lambda x: [0, x], lambda c, x: c.__setitem__(1, x)),
    "deque": (lambda x: deque([x], maxlen=2), lambda c, x: c.__setitem__(0, x)),
    "nested": (lambda x: {"a": ([{"b": x}],)}, lambda c, x: c["a"][0][0].__setitem__("b", x)),
    "object": (Box, lambda c, x: setattr(c, "held", x)),
    "namespace": (lambda x: types.SimpleNamespace(a=x), lambda c, x: setattr(c, "a", x)),
    "dataclass": (lambda x: Settings(scale=x), lambda c, x: setattr(c, "scale", x)),
    "slots": (_slotted, lambda c, x: setattr(c, "limit", x)),
    "partial": (lambda x: functools.partial(print, end=x), lambda c, x: c.keywords.__setitem__("end", x)),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    "pair", rotated(VALUES, 4), ids=lambda pair: f"{type(pair[0]).__name__}-{type(pair[1]).__name__}"
)
def test_a_value_that_changes_is_noticed_and_put_back(holder: str, pair: tuple[Any, Any]) -> None:
    make, put = HOLDERS[holder]
    old, new = pair
    held = make(old)
    step = one_step(held)
    reachable = reachable_state_of(step)
    guard = reachable.guard()
    record = reachable.record()
    assert guard.holds()
    assert guard.holds()
    put(held, new)
    assert not guard.holds()
    later = reachable_state_of(step).record()
    is_the_same_tensor_role = type(old) is torch.Tensor  # another tensor in the same only spot reads the same
    assert record.fits(later) is is_the_same_tensor_role
    assert bool(difference(record, later)) is not is_the_same_tensor_role
    assert reachable.changes()
    assert reachable.restore() == []
    assert guard.holds()
    assert not reachable.changes()
    assert record.fits(reachable_state_of(step).record())


@pytest.mark.parametrize(
    "make",
    [
        lambda: 12345.5 + len(sys.argv) * 0,
        lambda: 10**20 + len(sys.argv) * 0,
        lambda: float("nan"),
        lambda: "".join(["a b", "c"]),
        lambda: (0.5, (float("1.5"), "".join(["x", "y"]))),
        lambda: np.float32(1.5),
        lambda: range(100, 100000),
    ],
)
@pytest.mark.parametrize("holder", HOLDERS)
def test_an_equal_value_is_no_change(holder: str, make: Callable[[], Any]) -> None:
    container, put = HOLDERS[holder]
    held = container(make())
    reachable, guard = both(held)
    put(held, make())
    assert guard.holds()
    assert guard.holds()
    assert not reachable.changes()
    assert reachable.record().fits(reachable_state_of(one_step(held)).record())


EDITS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "append": (lambda: [1], lambda x: x.append(2)),
    "append to an empty list": (lambda: [], lambda x: x.append(2)),
    "pop": (lambda: [1, 2], lambda x: x.pop()),
    "swap": (lambda: [1, 2], lambda x: x.reverse()),
    "new key": (lambda: {"a": 1}, lambda x: x.update(b=1)),
    "new key in an empty dictionary": (lambda: {}, lambda x: x.update(b=1)),
    "key renamed": (lambda: {"a": 1}, lambda x: x.update(b=x.pop("a"))),
    "key of another type": (lambda: {1: "a"}, lambda x: (x.clear(), x.update({True: "a"}))),
    "order of keys": (lambda: {"a": 1, "b": 1}, lambda x: x.update(a=x.pop("a"))),
    "order of an ordered dictionary": (lambda: OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    "counter": (Counter, lambda x: x.update("a")),
    "deque": (lambda: deque([1, 2]), lambda x: x.rotate(1)),
    "set": (lambda: {1, 2}, lambda x: x.add(3)),
    "set, same length": (lambda: {1, 2}, lambda x: (x.add(3), x.discard(1))),
    "empty set": (set, lambda x: x.add(3)),
    "new attribute": (Settings, lambda x: setattr(x, "more", 1)),
    "attribute gone": (Settings, lambda x: delattr(x, "scale")),
    "inner list": (Settings, lambda x: x.names.append("a")),
    "inner list replaced": (lambda: Settings(names=["a"]), lambda x: setattr(x, "names", ["b"])),
    "unset slot": (Slotted, lambda x: setattr(x, "unset", 1)),
    "slot gone": (Slotted, lambda x: delattr(x, "limit")),
    "class of an object": (lambda: Box(1), lambda x: setattr(x, "__class__", Base)),
    "dictionary of an object": (lambda: Box(1), lambda x: setattr(x, "__dict__", {"held": 2})),
    "class of an object with slots": (_slotted_one, lambda x: setattr(x, "__class__", OtherSlots)),
    "class of a dictionary": (lambda: Own(a=1), lambda x: setattr(x, "__class__", OtherOwn)),
    "closed class": (lambda: [OfClosed()], lambda x: object.__setattr__(x[0], "number", 2)),
    "lying class": (Lying, lambda x: setattr(x, "number", 2)),
    "key that cannot be compared": (lambda: {Text("a"): 1}, lambda x: x.update(b=2)),
    "hostile": (Hostile, lambda x: hostile_number(x, 2)),
    "array": (lambda: np.zeros(4), lambda x: x.fill(1.0)),
    "bytearray": (lambda: bytearray(b"abc"), lambda x: x.append(1)),
    "training": (lambda: torch.nn.Linear(2, 2), lambda x: x.eval()),
    "attribute of a module": (lambda: torch.nn.Linear(2, 2), lambda x: setattr(x, "gain", 2)),
    "number of a module": (lambda: torch.nn.Dropout(0.5), lambda x: setattr(x, "p", 0.25)),
    "hook": (lambda: torch.nn.Linear(2, 2), lambda x: x.register_forward_hook(lambda *_: None)),
    "parameter bound again": (
        lambda: torch.nn.Linear(2, 2),
        lambda x: setattr(x, "weight", torch.nn.Parameter(torch.ones(2, 2))),
    ),
    "parameter gone": (lambda: torch.nn.Linear(2, 2), lambda x: setattr(x, "bias", None)),
    "buffer": (lambda: torch.nn.Linear(2, 2), lambda x: x.register_buffer("b", torch.ones(1))),
    "child": (lambda: torch.nn.Sequential(torch.nn.ReLU()), lambda x: x.append(torch.nn.ReLU())),
    "child replaced": (
        lambda: torch.nn.Sequential(torch.nn.ReLU()),
        lambda x: x.__setitem__(0, torch.nn.Sigmoid()),
    ),
    "attribute of a parameter": (lambda: torch.nn.Linear(2, 2), lambda x: setattr(x.weight, "decay", False)),
    "tensor in a distribution": (
        lambda: torch.distributions.Normal(torch.zeros(1), torch.ones(1)),
        lambda x: setattr(x, "loc", torch.ones(1)),
    ),
    "group": (
        lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1),
        lambda x: x.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    ),
    "rate": (
        lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1),
        lambda x: x.param_groups[0].update(lr=0.2),
    ),
    "hook of an optimizer": (
        lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1),
        lambda x: x.register_step_post_hook(lambda *_: None),
    ),
    "scaler": (lambda: torch.amp.GradScaler("cpu"), lambda x: x.set_growth_interval(7)),
    "optimizer of a scheduler": (
        lambda: torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1), 2),
        lambda x: x.optimizer.param_groups[0].update(lr=0.2),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_noticed_and_undone(name: str) -> None:
    make, edit = EDITS[name]
    held = make()
    step = one_step(held)
    reachable = reachable_state_of(step)
    guard, record = reachable.guard(), reachable.record()
    assert guard.holds()
    edit(held)
    assert not guard.holds()
    assert reachable.changes()
    if name not in ("parameter bound again", "tensor in a distribution"):
        assert not record.fits(reachable_state_of(step).record())
        assert difference(record, reachable_state_of(step).record())
    assert reachable.restore() == []
    assert guard.holds()
    assert not reachable.changes()
    assert record.fits(reachable_state_of(step).record())


GLOBAL_WEIGHT = 0.5
GLOBAL_TABLE = {"a": 1}


def of_globals() -> Any:
    def inner() -> Any:
        return GLOBAL_TABLE

    return GLOBAL_WEIGHT, inner()


def with_default(a: int = 1, *, b: list[int] | None = None) -> Any:
    return a, b


def of_functions() -> Any:
    return with_default()


def reads_class(item: Any = None) -> Any:
    return Base().call(1)


class Derived(Base):
    pass


def reads_derived(item: Any = None) -> Any:
    return Derived().call(1)


def reads_by_text() -> Any:
    return globals()["GLOBAL_WEIGHT"]


def sets_global() -> None:
    global COUNT  # noqa: PLW0603
    COUNT = 1


def imports_inside() -> Any:
    from json import decoder as other  # noqa: PLC0415

    return other.NaN


HERE = sys.modules[__name__]


@pytest.mark.parametrize(
    ("step", "edit"),
    [
        (of_globals, lambda: setattr(HERE, "GLOBAL_WEIGHT", 0.25)),
        (of_globals, lambda: GLOBAL_TABLE.update(a=2)),
        (of_globals, lambda: delattr(HERE, "GLOBAL_WEIGHT")),
        (of_functions, lambda: setattr(with_default, "__defaults__", (2,))),
        (of_functions, lambda: setattr(with_default, "__kwdefaults__", {"b": [1]})),
        (of_functions, lambda: setattr(with_default, "__code__", of_globals.__code__)),
        (of_functions, lambda: setattr(with_default, "calls", 1)),
        (of_functions, lambda: setattr(HERE, "with_default", of_globals)),
        (of_functions, lambda: setattr(of_functions, "calls", 1)),
        (reads_class, lambda: setattr(Base, "rate", 0.25)),
        (reads_class, lambda: setattr(Base, "call", lambda self, x: x)),
        (reads_derived, lambda: setattr(Derived, "rate", 1.0)),
        (reads_derived, lambda: setattr(Base, "rate", 0.75)),
        (reads_by_text, lambda: setattr(HERE, "GLOBAL_WEIGHT", 1.0)),
        (sets_global, lambda: setattr(HERE, "COUNT", 5)),
    ],
)
def test_what_code_names_is_watched(step: Callable[..., Any], edit: Callable[[], Any]) -> None:
    read = names_read_by(step)
    reachable = ReachableState(step, read)
    guard, record = reachable.guard(), reachable.record()
    assert guard.holds()
    edit()
    assert not guard.holds()
    assert difference(record, ReachableState(step, read).record())
    assert reachable.changes()
    assert reachable.restore() == []
    assert guard.holds()
    assert record.fits(ReachableState(step, read).record())


def test_modes_are_watched() -> None:
    reachable, guard = both(1)
    with torch.no_grad():
        assert not guard.holds()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not guard.holds()
        assert [d.label for d in difference(reachable.record(), reachable_state_of(one_step(1)).record())] == [
            "the modes of torch"
        ]
    assert guard.holds()


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.epoch = 0
        self.weight = 0.5
        self.history: list[float] = []

    def train_step(self, batch: Any) -> Any:
        return self.model(batch) * self.weight

    def fit(self) -> None:
        self.epoch += 1
        self.history.append(1.0)


def test_attributes_that_no_code_names_may_change() -> None:
    trainer = Trainer()
    read = names_read_by(trainer.train_step, torch.ones(1, 2))
    reachable = ReachableState(trainer.train_step, read)
    guard, record = reachable.guard(), reachable.record()
    trainer.fit()
    trainer.other = 1  # type: ignore[attr-defined]
    assert guard.holds()
    assert guard.holds()
    assert record.fits(ReachableState(trainer.train_step, read).record())
    trainer.weight = 0.25
    assert not guard.holds()
    assert [d.label for d in difference(record, ReachableState(trainer.train_step, read).record())] == ["self.weight"]


class Dynamic(Trainer):
    def train_step(self, batch: Any) -> Any:
        return getattr(self, "ep" + "och")


def test_computed_names_are_taken_to_name_everything() -> None:
    trainer = Dynamic()
    guard = ReachableState(trainer.train_step, names_read_by(trainer.train_step, torch.ones(1, 2))).guard()
    trainer.epoch += 1
    assert not guard.holds()


class Careful(Trainer):
    def train_step(self, batch: Any) -> Any:
        return getattr(self, "weight", None)


def test_a_name_that_is_written_out_is_that_name() -> None:
    trainer = Careful()
    guard = ReachableState(trainer.train_step, names_read_by(trainer.train_step, torch.ones(1, 2))).guard()
    trainer.epoch += 1
    assert guard.holds()
    trainer.weight = 0.25
    assert not guard.holds()


class Shadowed:
    rate = 0.5

    def step(self) -> Any:
        return self.rate


def test_an_attribute_that_hides_one_of_the_class_is_noticed() -> None:
    item = Shadowed()
    reachable = reachable_state_of(item.step)
    guard, record = reachable.guard(), reachable.record()
    item.rate = 0.25
    assert not guard.holds()
    assert not record.fits(reachable_state_of(item.step).record())
    assert reachable.restore() == []
    assert guard.holds()


def adam() -> tuple[torch.nn.Module, Any, Any, Callable[[], None]]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=50)

    def step() -> None:
        opt.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        opt.step()
        sched.step()

    step()
    return model, opt, sched, step


def numbers_of(reachable: ReachableState) -> frozenset[Any]:
    return frozenset(p.path for p in reachable.slots if "param_groups" in p.path and isinstance(p.read(), float))


def test_lifted_numbers_may_change_but_not_their_type() -> None:
    _, opt, _, step = adam()
    reachable = reachable_state_of(step)
    lifted = numbers_of(reachable)
    guard, record = reachable.guard(lifted), reachable.record(lifted)
    for _ in range(3):
        step()
        assert guard.holds()
        assert record.fits(reachable_state_of(step).record(lifted))
    opt.param_groups[0]["betas"] = (0.5, 0.5)
    assert guard.holds()
    opt.param_groups[0]["betas"] = (0.5, 1)
    assert not guard.holds()
    opt.param_groups[0]["betas"] = (0.5, 0.5, 0.5)
    assert not guard.holds()
    opt.param_groups[0]["betas"] = (0.5, 0.5)
    assert guard.holds()
    opt.param_groups[0]["lr"] = torch.tensor(0.1)
    assert not guard.holds()


def test_a_lifted_global_and_a_lifted_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    number = 1.5

    def step() -> Any:
        return number, GLOBAL_WEIGHT

    reachable = reachable_state_of(step)
    assert [p.label for p in reachable.slots if p.path == ("number",)] == ["variable number"]
    guard = reachable.guard(frozenset({("number",), ("GLOBAL_WEIGHT",)}))
    number = 2.5
    monkeypatch.setattr(HERE, "GLOBAL_WEIGHT", 7.0)
    assert guard.holds()
    monkeypatch.setattr(HERE, "GLOBAL_WEIGHT", 7)
    assert not guard.holds()


def test_state_that_is_loaded_has_the_same_record() -> None:
    model, opt, sched, step = adam()
    before = reachable_state_of(step)
    lifted = numbers_of(before)
    record = before.record(lifted)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict(), sched.state_dict()))
    guard = before.guard(lifted)
    model.load_state_dict(saved[0])
    sched.load_state_dict(saved[2])
    assert guard.holds()
    opt.load_state_dict(saved[1])
    assert not guard.holds()
    assert difference(record, reachable_state_of(step).record(lifted)) == []
    assert record.fits(reachable_state_of(step).record(lifted))
    paths = [place.path for place, _ in before.tensors]
    assert [place.path for place, _ in reachable_state_of(step).tensors] == paths
    model.load_state_dict(saved[0], assign=True)
    assert not record.fits(reachable_state_of(step).record(lifted))  # the optimizer has the old parameters still
    assert not before.guard(lifted).holds()


def test_a_new_world_keeps_no_old_tensor() -> None:
    model = torch.nn.Linear(2, 2)

    def step() -> Any:
        return model

    reachable = reachable_state_of(step)
    record, guard = reachable.record(), reachable.guard()
    old = weakref.ref(model.weight)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    assert not guard.holds()
    reachable = reachable_state_of(step)
    guard = reachable.guard()
    assert old() is None
    assert guard.holds()
    assert record.fits(reachable.record())


def test_what_only_a_scheduler_owns_is_not_watched() -> None:
    _, _, sched, step = adam()
    reachable = reachable_state_of(step)
    guard = reachable.guard()
    sched.last_epoch += 1
    sched.total_steps = 70
    assert guard.holds()
    assert {c.label for c in reachable.changes()} == {"sched.last_epoch", "sched.total_steps"}
    assert reachable.restore() == []
    assert not reachable.changes()


def test_a_scaler_that_is_updated() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    guard = reachable_state_of(one_step(scaler)).guard()
    scaler.scale(torch.ones(1))
    assert not guard.holds()
    reachable = reachable_state_of(one_step(scaler))
    guard, record = reachable.guard(), reachable.record()
    assert [place.label for place, _ in reachable.tensors] == ["held._scale", "held._growth_tracker"]
    scaler.load_state_dict(scaler.state_dict())
    reachable_state_of(one_step(scaler))
    assert guard.holds() == (
        reachable.record().fits(reachable_state_of(one_step(scaler)).record()) and not reachable.changes()
    )
    assert record.fits(reachable.record())
