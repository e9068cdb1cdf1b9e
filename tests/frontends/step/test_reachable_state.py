"""What a step function reaches, how it is called, what its code changed, and putting it back."""

from __future__ import annotations

import collections
import functools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from dovetail.reach.contents import MISSING
from tests.frontends.step.reachable_states import reachable_state_of
from tests.rotation import rotated

SETTING = 3.0
_STREAM = iter([1, 2])


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = torch.nn.Linear(2, 2)
        self.layer2 = torch.nn.Linear(2, 2, bias=False)
        self.layer2.weight = self.layer1.weight
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer2(self.layer1(x))


def training() -> tuple[Any, Callable[..., Any]]:
    made = collections.namedtuple("Made", ["model", "opt", "sched", "scaler", "ema"])
    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2)
    scaler = torch.amp.GradScaler("cpu")
    ema = AveragedModel(model)

    def step(batch: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = model(batch).sum() * SETTING
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        ema.update_parameters(model)
        return loss

    step(torch.ones(1, 2))
    return made(model, opt, sched, scaler, ema), step


def test_tensors_come_once_those_of_modules_first() -> None:
    made, step = training()
    reachable = reachable_state_of(step)
    labels = [place.label for place, _ in reachable.tensors]
    tensors = [tensor for _, tensor in reachable.tensors]
    assert len({id(x) for x in tensors}) == len(tensors)
    assert "model.layer1.weight" in labels
    assert "model.seen" in labels
    assert "model.layer2.weight" not in labels
    assert "opt.state[model.layer1.weight]['exp_avg']" in labels
    assert "scaler._scale" in labels
    assert "ema.module.layer1.weight" in labels
    assert "ema.n_averaged" in labels
    first_of_optimizer = labels.index("opt.state[model.layer1.weight]['step']")
    assert all(label.startswith(("model", "ema")) for label in labels[:first_of_optimizer])
    assert {x for x in labels[first_of_optimizer:] if not x.startswith("opt")} == {
        "scaler._scale",
        "scaler._growth_tracker",
    }
    weight = [place.label for place in reachable.slots_of_tensor(made.model.layer1.weight)]
    assert weight[:2] == ["model.layer1.weight", "model.layer2.weight"]
    assert weight[2].startswith("opt.param_groups[0]['params'][")
    assert reachable.slots_of_tensor(torch.zeros(1)) == []
    paths = {place.label: place.path for place, _ in reachable.tensors}
    inner = paths["model.layer1.weight"]
    assert paths["opt.state[model.layer1.weight]['exp_avg']"] == ("opt", "state", inner, "exp_avg")


def test_what_there_is_has_names() -> None:
    made, step = training()
    reachable = reachable_state_of(step)
    assert dict(reachable.optimizers) == {"opt": made.opt}
    assert dict(reachable.schedulers) == {"sched": made.sched}
    assert dict(reachable.scalers) == {"scaler": made.scaler}
    assert sorted(name for name, _ in reachable.modules) == [
        "ema", "ema.module", "ema.module.layer1", "ema.module.layer2", "model", "model.layer1", "model.layer2",
    ]  # fmt: skip
    by_label = {place.label: place for place in reachable.slots}
    assert by_label["opt.param_groups[0]['lr']"].read() == 0.1
    assert by_label["opt.param_groups[0]['betas'][1]"].read() == 0.999
    assert by_label["global variable SETTING"].read() == 3.0
    assert by_label["model.calls"].read() == 1
    assert len({place.path for place in reachable.slots}) == len(reachable.slots)


def test_only_a_scheduler_or_an_optimizer_leads_there() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt := torch.optim.SGD([parameter], lr=0.1),
        [torch.optim.lr_scheduler.ConstantLR(opt, 0.5), torch.optim.lr_scheduler.StepLR(opt, 1)],
        [2],
    )

    def step() -> None:
        sched.step()

    reachable = reachable_state_of(step)
    assert dict(reachable.optimizers) == {"sched.optimizer": opt}
    assert len(reachable.schedulers) == 3
    assert [(p.label, x) for p, x in reachable.tensors] == [("sched.optimizer.param_groups[0]['params'][0]", parameter)]


def test_a_method_and_a_callable_object() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = torch.nn.Linear(1, 1)

        def __call__(self) -> Any:
            return self.model

        def train(self) -> Any:
            return self.model

    trainer = Trainer()
    for target in (trainer, trainer.train):
        assert [place.label for place, _ in reachable_state_of(target).tensors] == [
            "self.model.weight",
            "self.model.bias",
        ]
    partial = functools.partial(Trainer.train, trainer)
    assert len(reachable_state_of(partial).tensors) == 2


def test_places_are_read_and_written() -> None:
    held = {"a": [1, (2.0, 3)], "s": {4}, "d": deque([5])}
    variable = 6.0

    def step() -> Any:
        return held, variable, SETTING

    reachable = reachable_state_of(step)
    by_path = {place.path: place for place in reachable.slots}
    by_path["held", "a", 0].write(10)
    by_path["held", "d", 0].write(50)
    by_path["variable",].write(60.0)
    assert held["a"][0] == 10
    assert held["d"][0] == 50
    assert variable == 60.0
    assert {by_path[path].kind for path in by_path if path[:1] in (("held",), ("variable",), ("SETTING",))} == {
        "list", "tuple", "set", "cell", "names",
    }  # fmt: skip
    assert by_path["held", "a", 1, 0].read() == 2.0
    with pytest.raises(TypeError, match="is in a tuple"):
        by_path["held", "a", 1, 0].write(1.0)
    with pytest.raises(TypeError, match="set"):
        by_path["held", "s", 0].write(1)
    held["a"].clear()
    with pytest.raises(LookupError):
        by_path["held", "a", 0].read()


def test_extra_is_walked_whole() -> None:
    class Average:
        def __init__(self) -> None:
            self.shadow = {"w": torch.zeros(1)}

    average = Average()

    def step() -> None:
        return None

    assert reachable_state_of(step).tensors == []
    assert [p.label for p, _ in reachable_state_of(step, extra=[average]).tensors] == ["state[0].shadow['w']"]
    assert [p.label for p, _ in reachable_state_of(step, extra={"ema": average}).tensors] == [
        "state['ema'].shadow['w']"
    ]
    assert [p.label for p, _ in reachable_state_of(step, arguments=[1, torch.ones(1), [torch.ones(1)]]).tensors] == [
        "argument_2[0]"
    ]


def test_small_arrays_are_compared_and_large_things_left_to_the_guard_of_reads() -> None:
    large, long, small = np.zeros(1000), list(range(20_000)), np.zeros(3)

    def step() -> Any:
        return large, long, small

    reachable = reachable_state_of(step)
    cells = dict(zip(step.__code__.co_freevars, step.__closure__ or (), strict=True))
    assert {name for name, cell in cells.items() if (id(cell), name) in reachable.compared} == {"small"}
    guard = reachable.guard()
    small[1] = 4
    assert not guard.holds()
    assert [change.label for change in reachable.changes()] == ["variable small"]
    assert reachable.restore() == []
    assert small[1] == 0
    assert guard.holds()


def test_changes_name_what_the_code_did() -> None:
    made, step = training()
    log: list[float] = []
    model = made.model
    counts = {"steps": 0}

    def logged() -> None:
        step(torch.ones(1, 2))
        log.append(1.0)
        counts["steps"] += 1
        counts["new"] = 1
        model.seen = torch.ones(1)
        model.extra = 5
        random.random()
        np.random.rand()

    reachable = reachable_state_of(logged)
    record, guard = reachable.record(), reachable.guard()
    order = list(vars(made.model)), list(made.opt.state)
    logged()
    changes = {change.label: (change.old, change.new) for change in reachable.changes()}
    assert changes["log[0]"] == (MISSING, 1.0)
    assert changes["counts['steps']"] == (0, 1)
    assert changes["counts['new']"] == (MISSING, 1)
    assert changes["model.calls"] == (1, 2)
    assert changes["model.extra"] == (MISSING, 5)
    assert torch.equal(changes["model.seen"][1], torch.ones(1))
    assert changes["sched.last_epoch"] == (1, 2)
    assert changes["opt.param_groups[0]['lr']"][1] == pytest.approx(0.01)
    assert "Python's random numbers" in changes
    assert "NumPy's random numbers" in changes
    assert reachable.restore() == []
    assert reachable.changes() == []
    assert guard.holds()
    assert record.fits(reachable_state_of(logged).record())
    assert (list(vars(made.model)), list(made.opt.state)) == order


def test_restoring_goes_on_after_a_failure() -> None:
    class Moody:
        broken = False

        def __hash__(self) -> int:
            if Moody.broken:
                raise RuntimeError("no")
            return 1

    first, last = {Moody(): 1, "a": 2}, [1]

    def step() -> Any:
        return first, last

    reachable = reachable_state_of(step)
    first.clear()
    last.append(2)
    Moody.broken = True
    failed = reachable.restore()
    assert [text for text in failed if text.startswith("first: RuntimeError: no")]
    assert last == [1]
    assert first == {"a": 2}
    Moody.broken = False


def test_containers_that_contain_themselves() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    table: dict[str, Any] = {"loop": loop}
    table["me"] = (table, [table])

    def step() -> Any:
        return loop, table

    reachable = reachable_state_of(step)
    guard, record = reachable.guard(), reachable.record()
    assert record.fits(reachable_state_of(step).record())
    table["me"] = (table, [loop])
    assert not guard.holds()
    assert not record.fits(reachable_state_of(step).record())
    assert reachable.restore() == []
    assert record.fits(reachable_state_of(step).record())


def test_deep_nesting() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]

    def step() -> Any:
        return deep

    reachable = reachable_state_of(step)
    assert reachable.guard().holds()
    assert reachable.record().fits(reachable_state_of(step).record())


def test_keys_that_are_tensors_or_objects() -> None:
    weight, only_key = torch.ones(1), torch.zeros(1)
    owner = object()
    table = {weight: torch.zeros(1), owner: 1, only_key: 2, (1, "a"): 3}

    def step() -> Any:
        return table, weight

    reachable = reachable_state_of(step)
    labels = {place.label for place in reachable.slots}
    assert {"table[variable weight]", "table[<object 1>]", "table[<Tensor 2>]", "table[(1, 'a')]"} <= labels
    assert {id(x) for _, x in reachable.tensors} == {id(weight), id(only_key), id(table[weight])}
    guard = reachable.guard()
    table[owner] = 2
    assert not guard.holds()
    assert not reachable.record().fits(reachable_state_of(step).record())


def test_functions_of_one_name_and_decorated_ones() -> None:
    def make(value: float) -> Callable[[], float]:
        def inner() -> float:
            return value

        return inner

    one, two = make(1.0), functools.lru_cache(make(2.0))

    @torch.no_grad()
    def decorated() -> Any:
        return one(), two()

    reachable = reachable_state_of(decorated)
    values = [(place.label, place.read()) for place in reachable.slots if isinstance(place.read(), float)]
    name = "variable value of test_functions_of_one_name_and_decorated_ones.<locals>.make.<locals>.inner"
    assert sorted(values) == [(name, 1.0), (name, 2.0)]
    assert reachable.caches == ["variable two of test_functions_of_one_name_and_decorated_ones.<locals>.decorated"]
    guard = reachable.guard()
    one.__closure__[0].cell_contents = 3.0  # type: ignore[attr-defined]
    assert not guard.holds()


# --- random graphs of objects


class Item:
    pass


def _random_value(draw: random.Random, made: list[Any], depth: int) -> Any:
    kind = draw.randrange(13 if depth else 6)
    if kind == 0 and made:
        return draw.choice(made)
    if kind < 5:
        plain = [draw.randrange(3), draw.random(), True, None, "ab"[draw.randrange(2)], 0.0, -0.0, float("nan"), 1j]
        return draw.choice(plain)
    if kind == 5:
        return torch.zeros(1)
    parts = [_random_value(draw, made, depth - 1) for _ in range(draw.randrange(4))]
    value: Any
    if kind == 6:
        return tuple(parts)
    if kind in (7, 8):
        value = parts if kind == 7 else deque(parts)
    elif kind in (9, 10):
        value = (dict, OrderedDict)[kind - 9]((f"k{n}", x) for n, x in enumerate(parts))
    elif kind == 11:
        value = {x for x in parts if isinstance(x, int | str)}
    else:
        value = Item()
        vars(value).update((f"a{n}", x) for n, x in enumerate(parts))
    made.append(value)
    return value


def _edit(draw: random.Random, made: list[Any]) -> None:
    target = draw.choice(made)
    new = _random_value(draw, made, 1)
    held = vars(target) if isinstance(target, Item) else target
    if isinstance(held, set):
        held.symmetric_difference_update({draw.randrange(4)})
    elif isinstance(held, list | deque):
        choice = draw.randrange(4)
        if held and choice < 2:
            held[draw.randrange(len(held))] = new
        elif held and choice == 2:
            held.pop()
        else:
            held.append(new)
    else:
        keys = [*held, "k9"]
        key = draw.choice(keys)
        if key in held and draw.randrange(3) == 0:
            held[key + "_"] = held.pop(key)
        else:
            held[key] = new


def _readable(value: Any, seen: dict[int, int]) -> Any:
    """What code can read, worked out another way: by recursion."""
    if isinstance(value, float | complex):
        return repr(value)
    if value is None or isinstance(value, int | str):
        return (type(value), value)
    if isinstance(value, tuple):
        return tuple(_readable(x, seen) for x in value)
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value))
    if isinstance(value, set):
        return frozenset(value)
    held = vars(value) if isinstance(value, Item) else value
    items = list(held.items()) if isinstance(held, dict) else list(enumerate(held))
    return (type(value), [(key, _readable(x, seen)) for key, x in items])


@pytest.mark.parametrize("seed", rotated(range(150), 4))
def test_random_graphs_and_random_edits(seed: int) -> None:
    draw = random.Random(seed)
    made: list[Any] = []
    roots = [_random_value(draw, made, 4) for _ in range(4)]
    roots.append(made)

    def step() -> Any:
        return roots, vars(roots)

    reachable = reachable_state_of(step)
    guard, record, before = reachable.guard(), reachable.record(), _readable(roots, {})
    assert record.fits(reachable_state_of(step).record())
    for _ in range(draw.randrange(1, 4)):
        if made:
            _edit(draw, [x for x in made if x is not roots] or made)
    changed = _readable(roots, {}) != before
    if changed:
        assert not guard.holds()
        assert reachable.changes()
    elif guard.holds():
        assert record.fits(reachable_state_of(step).record())
    assert reachable.restore() == []
    assert reachable.changes() == []
    assert _readable(roots, {}) == before
    assert guard.holds()
    assert record.fits(reachable_state_of(step).record())
