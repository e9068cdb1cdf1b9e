"""Random numbers from Python and NumPy in a step: drawn for real in each call, in order, also after a wrong guess."""

from __future__ import annotations

import builtins
import math
import random
from collections import deque
from collections.abc import Callable
from random import random as by_name
from typing import Any

import numpy as np
import pytest
import torch

import dovetail
from dovetail.errors import DovetailError, DovetailWarning
from tests.frontends.step.agreement import programs_of

Draw = Callable[[], Any]


def drawn(make: Callable[[], Draw], calls: int = 8, *, branches: bool = False, **options: Any) -> Any:
    """Compare a step that uses a draw, eager and compiled: results and generators. Returns the compiled one."""
    found, run = [], None
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        draw = make()
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> Any:
            number = draw()  # noqa: B023
            if branches and number > 0.5:
                x = -x
            optimizer.zero_grad()  # noqa: B023
            loss = net(number * x + (1 - number) * x.flip(0)).square().mean()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.item(), draw()  # noqa: B023

        run = dovetail.compile_step(step, **options) if compiled else step
        results = [run(torch.full((4, 3), 0.1 * n) + torch.arange(4.0)[:, None]) for n in range(calls)]
        states = repr(random.getstate()), repr(np.random.get_state()), [draw() for _ in range(3)]
        found.append((results, states, net.weight.tolist()))
    assert found[0] == found[1]
    return run


def closed_over(make: Callable[[], Any], name: str, *args: Any) -> Callable[[], Draw]:
    """A draw from a generator that a closure holds."""

    def made() -> Draw:
        numbers = make()
        return lambda: getattr(numbers, name)(*args)

    return made


DRAWS: dict[str, Callable[[], Draw]] = {
    "beta": lambda: lambda: np.random.beta(0.2, 0.2),
    "randint of NumPy": lambda: lambda: np.random.randint(0, 5),
    "rand": lambda: lambda: np.random.rand() + 0.5,
    "random": lambda: lambda: random.random() / 2,
    "uniform": lambda: lambda: random.uniform(-1, 1),
    "gauss": lambda: lambda: random.gauss(0, 1),
    "randint": lambda: lambda: random.randint(0, 9),
    "by its name": lambda: lambda: by_name() * 1.0,
    "choice": lambda: lambda: random.choice([0.1, 0.2, 0.7]),
    "a generator": closed_over(lambda: np.random.default_rng(0), "beta", 0.3, 0.3),
    "an old generator": closed_over(lambda: np.random.RandomState(0), "normal"),
    "a generator of Python": closed_over(lambda: random.Random(0), "uniform", 0, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_drawn_in_every_call_by_one_program(name: str) -> None:
    stats = drawn(DRAWS[name]).stats
    assert (programs_of(stats), stats.eager_calls) == (1, 0), stats


@pytest.mark.parametrize("name", ["uniform", "a generator"])
def test_a_branch_on_a_draw_puts_the_generators_back(name: str) -> None:
    stats = drawn(DRAWS[name], 12, branches=True).stats
    assert stats.captures == 2
    assert stats.guard_misses


def test_draws_whose_number_depends_on_data() -> None:
    def make() -> Draw:
        def draw() -> float:
            number = random.random()
            return number + random.random() if number > 0.6 else number

        return draw

    drawn(make, 12)


OUT = np.zeros(3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.shuffle(OUT),
        lambda: np.random.seed(1),
        lambda: str(np.random.rand(3)),
        lambda: print(np.random.rand(3)),
        lambda: np.add(np.zeros(3), np.random.rand(3), out=OUT),
    ],
    ids=["array", "seed", "text", "printed", "out"],
)
def test_other_draws_are_refused_and_nothing_has_moved(draw: Callable[[], Any]) -> None:
    weight = torch.ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        draw()
        return weight.add_(x).clone()

    run = dovetail.compile_step(step)
    run(torch.ones(3))
    before = repr(random.getstate()), repr(np.random.get_state()), weight.clone()
    with pytest.raises(DovetailError, match=r"draws|sets|writes"):
        run(torch.ones(3))
    assert (repr(random.getstate()), repr(np.random.get_state())) == before[:2]
    assert torch.equal(weight, before[2])


def test_arguments_that_are_computed_are_refused() -> None:
    def step(x: torch.Tensor) -> float:
        return random.uniform(0, x.sum().item())

    run = dovetail.compile_step(step)
    run(torch.ones(3))
    with pytest.raises(DovetailError, match="with arguments that it computes"):
        run(torch.ones(3))


def _masked(shape: tuple[int, int], chance: float) -> Any:
    """Spans to mask, as audio models choose them: their number is drawn as well."""
    mask = np.zeros(shape, dtype=bool)
    for row in range(shape[0]):
        count = int(chance * shape[1] + np.random.rand())
        mask[row, np.random.choice(shape[1], count, replace=False)] = True
    return mask


def _shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.shuffle(order)
    return order


def _changed(rng: Any) -> Any:
    array = rng.random(4)
    view = array[1:]
    view[0] = 0.5
    array *= 2
    rng.shuffle(array)
    array[array > 1.0] = 0.25
    return array


GENERATOR = np.random.default_rng(0)
Take = Callable[[torch.Tensor], Any]
ARRAYS: dict[str, Take] = {
    "permutation": lambda x: x[torch.from_numpy(np.random.permutation(len(x)))],
    "permutation as an index": lambda x: x[np.random.permutation(len(x))[:2]],
    "weights": lambda x: x * torch.tensor(np.random.beta(0.2, 0.2, size=len(x)), dtype=torch.float32)[:, None],
    "as_tensor": lambda x: x * torch.as_tensor(np.random.rand(4, 3).astype(np.float32)),
    "integers": lambda x: x[GENERATOR.integers(0, len(x), size=3)],
    "a mask": lambda x: x.masked_fill(torch.from_numpy(np.random.rand(*x.shape) < 0.5), 0.0),
    "where": lambda x: x * torch.from_numpy(np.where(np.random.rand(4, 1) < 0.5, np.float32(2.0), np.float32(0.5))),
    "spans": lambda x: x.masked_fill(torch.tensor(_masked((4, 3), 0.4)), 0.0),
    "sample": lambda x: x[random.sample(range(len(x)), 3)],
    "shuffle": lambda x: x[_shuffled(len(x))],
    "choices": lambda x: x * torch.tensor(random.choices([0.5, 1.0, 2.0], k=4))[:, None],
    "a number of an array": lambda x: x * np.random.rand(3)[1],
    "float of an array": lambda x: x * float(np.random.rand(1)[0]) + np.random.rand(1).item(),
    "changed": lambda x: x * torch.tensor(_changed(np.random), dtype=torch.float32)[:, None],
    "changed, a generator passed on": lambda x: x * torch.tensor(_changed(GENERATOR), dtype=torch.float32)[:, None],
    "written": lambda x: torch.from_numpy(np.random.rand(4, 3)).mul_(2).add_(x).float(),
    "reduced": lambda x: x * float(np.random.rand(3).sum()) * np.random.rand(3).max(),
    "numbers of an array": lambda x: x * torch.tensor(list(np.random.rand(3))).sum(),
    "two of one": lambda x: x * sum(torch.from_numpy(a[k:]).sum() for a in [np.random.rand(4)] for k in (0, 1)).float(),
}


def taken(take: Take, calls: int = 6, sizes: tuple[int, ...] = (4,), **options: Any) -> Any:
    """Compare a step that uses an array, eager and compiled, weights and generators included."""
    found, run = [], None
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        GENERATOR.bit_generator.state = np.random.default_rng(3).bit_generator.state
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()  # noqa: B023
            loss = net(take(x)).square().mean()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.item()

        run = dovetail.compile_step(step, **options) if compiled else step
        results = [run(torch.randn(sizes[n % len(sizes)], 3)) for n in range(calls)]
        states = repr(random.getstate()), repr(np.random.get_state()), repr(GENERATOR.bit_generator.state)
        found.append((results, states, net.weight.tolist(), net.weight.grad.tolist()))
    assert found[0] == found[1]
    return run


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_drawn_in_every_call_by_one_program(name: str) -> None:
    stats = taken(ARRAYS[name]).stats
    assert (programs_of(stats), stats.eager_calls) == (1, 0), stats


def test_arrays_of_other_sizes() -> None:
    taken(ARRAYS["permutation"], 9, (4, 6, 4))
    taken(lambda x: x[np.flatnonzero(np.random.rand(len(x)) < 0.5)].sum(0), 12)


def test_no_draws_in_a_branch() -> None:
    taken(lambda x: x[np.random.permutation(len(x))] if x.sum() > 0 else x, 12)


def test_a_function_that_draws_and_changes_what_is_reached_is_refused() -> None:
    seen: list[str] = []

    def choose(count: int) -> Any:
        chosen = np.zeros(count, dtype=bool)
        chosen[np.random.choice(count, 2)] = True
        seen.append(str(chosen))
        return chosen

    def step(x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor(choose(len(x)))].sum()

    run = dovetail.compile_step(step)
    run(torch.ones(4))
    with pytest.raises(DovetailError, match="makes a text of an array"):
        run(torch.ones(4))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "number",
    [
        lambda: float(np.random.rand(2)[0]),
        lambda: float(np.random.rand(2)[0]) * 3 + 1,
        lambda: math.sqrt(np.random.rand()),
        lambda: max(float(np.random.rand()), 0.5),
        lambda: int(np.random.rand() * 5),
        np.random.rand,
        lambda: np.random.rand(2)[0],
    ],
    ids=["float", "float times", "math", "max", "int", "drawn", "taken"],
)
def test_tensors_of_numbers_are_of_64_bits_where_the_numbers_are_of_numpy(number: Callable[[], Any]) -> None:
    taken(lambda x: (x * torch.tensor([number(), 1, 2]) / 3).to(x.dtype))


def test_a_tensor_of_what_is_computed_with_a_number_of_numpy_is_of_64_bits() -> None:
    taken(lambda x: x * torch.tensor(np.random.rand(2)[0] * 3, dtype=torch.float32))
    taken(lambda x: x * torch.tensor(np.random.rand(2)[0] * 3))
    taken(lambda x: x * torch.tensor([np.random.rand(2)[0] / 3, 1.0, 2.0]).sum())


CHANCE = 0.5


def _chosen(count: int) -> Any:
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.choice(count, int(count * CHANCE), replace=False)] = True
    return chosen


def test_numbers_that_a_function_reads_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for compiled in (False, True):
        np.random.seed(0)
        torch.manual_seed(0)
        weight = torch.zeros(3)

        def step(x: torch.Tensor) -> torch.Tensor:
            return weight.add_(x[torch.from_numpy(_chosen(len(x)))].sum(0)).clone()  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        results = []
        for number in range(10):
            monkeypatch.setitem(globals(), "CHANCE", (0.5, 0.2, 0.9)[number // 2 % 3])
            results.append(run(torch.randn(6, 3)).tolist())
        found.append((results, repr(np.random.get_state())))
    assert found[0] == found[1]


def test_what_a_function_raises_before_a_run_is_what_eager_mode_raises() -> None:
    found = []
    for compiled in (False, True):
        np.random.seed(0)
        weight = torch.zeros(3)

        def choose(count: int) -> Any:
            chosen = np.zeros(count)
            if (place := np.random.randint(5)) == 4:
                raise ValueError("four")
            chosen[place] = 1
            return chosen

        def step(x: torch.Tensor) -> torch.Tensor:
            return weight.add_(x[0] * torch.from_numpy(choose(5)).sum()).clone()  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        results: list[Any] = []
        for _ in range(12):
            try:
                results.append(run(torch.ones(2, 3)).tolist())
            except ValueError as error:
                results.append(str(error))
        found.append((results, repr(np.random.get_state())))
    assert found[0] == found[1]
    assert "four" in found[0][0]


def test_a_function_that_reads_what_the_step_changes_before_is_refused() -> None:
    class Scale:
        now = 1.0

    scale = Scale()

    def choose(count: int) -> Any:
        chosen = np.zeros(count)
        chosen[np.random.choice(count, 2)] = scale.now
        return chosen

    def step(x: torch.Tensor) -> torch.Tensor:
        scale.now = 2.0
        chosen = torch.from_numpy(choose(len(x)))
        scale.now = 1.0
        return (x[:, 0] * chosen).sum()

    run = dovetail.compile_step(step)
    run(torch.ones(4, 3))
    with pytest.raises(DovetailError, match="what the step has changed before"):
        run(torch.ones(4, 3))


def chosen(make: Callable[[], Callable[[torch.Tensor], Any]], calls: int = 8) -> Any:
    """Compare a step that chooses, eager and compiled: results and generators. Returns the compiled one."""
    found, run = [], None
    for compiled in (False, True):
        random.seed(0)
        np.random.seed(0)
        step = make()
        run = dovetail.compile_step(step) if compiled else step
        results = [run(torch.full((2,), 0.5 + n)).tolist() for n in range(calls)]
        found.append((results, repr(random.getstate()), repr(np.random.get_state())))
    assert found[0] == found[1]
    return run


def items() -> list[torch.Tensor]:
    return [torch.arange(2.0) * n for n in range(3)]


def shuffled(items: list[Any], shuffle: Callable[[list[Any]], None]) -> list[Any]:
    shuffle(items)
    return items


CHOICES: dict[str, tuple[Callable[[], Any], Callable[[torch.Tensor, Any], Any]]] = {
    "tensor": (items, lambda x, t: random.choice(t) + x),
    "of a deque": (lambda: deque(items(), maxlen=3), lambda x, t: torch.stack(random.sample(t, 2)) + x),
    "by keywords": (items, lambda x, t: torch.stack(random.choices(population=t, k=2, weights=[1, 2, 1])) + x),
    "module": (lambda: torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()]), lambda x, t: random.choice(t)(x)),
    "text": (lambda: "ab", lambda x, t: x * 2 if random.choice(t) == "a" else x),
    "text of NumPy": (lambda: ["a", "b"], lambda x, t: x * 2 if np.random.choice(t, p=[0.7, 0.3]) == "a" else x),
    "texts of NumPy": (lambda: ("a", "b"), lambda x, t: x * list(np.random.permutation(t)).index("a")),
    "of a generator": (lambda: np.random.default_rng(0), lambda x, r: r.choice([torch.sin, torch.cos])(x)),
    "several of NumPy": (lambda: [torch.sin, torch.cos], lambda x, t: np.random.choice(t, size=2)[1](x)),
    "shuffled": (items, lambda x, t: shuffled(t, random.shuffle)[0] + x),
    "shuffled by NumPy": (items, lambda x, t: shuffled(t, np.random.shuffle)[0] + x),
    "of what is computed": (lambda: 2.0, lambda x, n: x * random.choice([x.sum().item(), n])),
    "numbers of a deque": (lambda: deque([1.0, 2.0], maxlen=2), lambda x, t: x * random.choice(t)),
    "list that is changed": (
        lambda: [[1.0], [2.0]],
        lambda x, t: x * len(shuffled(random.choice(t), lambda chosen: chosen.append(3.0))),
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_among_objects_have_programs_of_their_own(name: str) -> None:
    make, use = CHOICES[name]

    def made() -> Callable[[torch.Tensor], Any]:
        population = make()
        return lambda x: use(x, population)

    stats = chosen(made).stats
    assert stats.eager_calls < stats.calls / 2, stats


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_batch_out_of_many_objects_is_drawn_in_eager_mode(is_inside: bool) -> None:
    def make() -> Callable[[torch.Tensor], Any]:
        memory: deque[tuple[torch.Tensor, int]] = deque([(item, 1) for item in items() * 9], maxlen=30)

        def step(x: torch.Tensor) -> Any:
            if is_inside:
                memory.append((x, 2))
            states, counts = zip(*random.sample(memory, 5), strict=True)
            return torch.stack(states).sum() + torch.tensor(counts) + x.sum()

        return step

    with pytest.warns(DovetailWarning, match=r"chooses 5 of \d+ objects at random[^ ]*\s+from .*test_draws.py"):
        stats = chosen(make).stats
    assert (stats.captures, stats.eager_calls) == (0, 8)


def test_a_batch_out_of_many_objects_is_refused_under_a_limit() -> None:
    memory = items() * 9
    run = dovetail.compile_step(lambda: random.sample(memory, 5)[0] * 1, memory_limit="1MB")
    before = random.getstate()
    with pytest.raises(DovetailError, match="chooses 5 of 27 objects at random"):
        run()
    assert random.getstate() == before


def test_a_choice_of_none_raises_what_eager_mode_does() -> None:
    empty: list[torch.Tensor] = []
    for choose, error in ((random.choice, IndexError), (lambda x: random.sample({*x}, 1), TypeError)):
        with pytest.raises(error):
            dovetail.compile_step(lambda choose=choose: choose(empty))()


def test_generators_and_counters_that_somebody_has_put_into_builtins(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    def step(x: torch.Tensor) -> torch.Tensor:
        calls_[0] += 1  # type: ignore[name-defined] # noqa: F821
        with torch.no_grad():
            weight.add_(x * rng_.random() * calls_[0])  # type: ignore[name-defined] # noqa: F821
        return weight.sum()

    found = []
    for call in (step, dovetail.compile_step(step)):
        monkeypatch.setattr(builtins, "rng_", random.Random(3), raising=False)
        monkeypatch.setattr(builtins, "calls_", [0], raising=False)
        with torch.no_grad():
            weight.fill_(1)
        found.append([call(torch.ones(3)).item() for _ in range(4)])
        assert builtins.calls_ == [4]  # type: ignore[attr-defined]
    assert found[0] == found[1]
