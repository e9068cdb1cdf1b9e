"""What a step does to dictionaries, lists and objects among its arguments is done to the caller's, as in eager mode."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


class Batch(dict[str, Any]):
    """Entries are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    __setattr__ = dict.__setitem__


class Counting(OrderedDict[str, Any]):
    """Notes how often entries are put in by its own method."""

    puts = 0

    def __setitem__(self, key: str, value: Any) -> None:
        type(self).puts += 1
        super().__setitem__(key, value)


class Rows(list[Any]):
    pass


@dataclasses.dataclass
class Pair:
    x: Tensor
    mask: Tensor | None = None


@dataclasses.dataclass(slots=True)
class Slots:
    x: Tensor
    mask: Tensor | None = None


def _x(number: int) -> Tensor:
    return torch.arange(12.0).view(3, 4) / 7 + number


def _entries(number: int) -> dict[str, Any]:
    return {"x": _x(number), "labels": _x(number)[:, 0].clone()}


def _pop(b: Any) -> Tensor:
    labels = b.pop("labels")
    return b["x"].sum() + labels  # type: ignore[no-any-return]


def _put(b: Any) -> Tensor:
    b["y"], b["same"] = b["x"] * 2, b["x"]
    return b["y"].sum() + b["labels"]  # type: ignore[no-any-return]


def _replace(b: Any) -> Tensor:
    b["x"] = b["x"] / 2
    return b["x"].sum()  # type: ignore[no-any-return]


def _update(b: Any) -> Tensor:
    b.update({name: value * 2 for name, value in b.items()})
    return b["x"].sum()  # type: ignore[no-any-return]


def _clear(b: Any) -> Tensor:
    x = b["x"]
    b.clear()
    return x.sum()  # type: ignore[no-any-return]


def _order(b: Any) -> Tensor:
    b["x"] = b.pop("x")
    return b["x"].sum()  # type: ignore[no-any-return]


def _move(b: Any) -> Tensor:
    b.move_to_end("x")
    return b["x"].sum()  # type: ignore[no-any-return]


def _count(b: Any) -> Tensor:
    b["n"] = b.get("n", 0) + 1
    return b["x"].sum() * b["n"]  # type: ignore[no-any-return]


def _item(b: Any) -> Tensor:
    b["loss"] = b["x"].sum().item()
    return b["labels"]  # type: ignore[no-any-return]


def _sometimes(b: Any) -> Tensor:
    return b.pop("labels") if "labels" in b else b["x"].sum()  # type: ignore[no-any-return]


def _inside(b: Any) -> Tensor:
    return b["in"].pop("labels") + b["in"]["x"].sum()  # type: ignore[no-any-return]


def _two(b: Any, c: Any) -> Tensor:
    c["n"] = c["x"].sum()
    return b.pop("labels") + c["n"]  # type: ignore[no-any-return]


def _append(b: Any) -> Tensor:
    b.append(b[0] * 2)
    b[1] = b[1] + 1
    return b[2].sum() + b[1]  # type: ignore[no-any-return]


def _field(b: Any) -> Tensor:
    b.mask = (b.x > 1).float()
    return b.x * b.mask  # type: ignore[no-any-return]


def _attribute(b: Any) -> Tensor:
    b.y = b.x * 2
    return b.y.sum() + b.labels  # type: ignore[no-any-return]


def _read(b: Any) -> Tensor:
    return b["x"].sum() + b["labels"] if isinstance(b, dict) and list(b) == ["x", "labels"] else b["x"]


def _read_rows(b: Any) -> Tensor:
    return b[0].sum() + b[1] if len(b) == 2 else b[0]


def _of(kind: Callable[[dict[str, Any]], Any]) -> Callable[[int], tuple[Any, ...]]:
    return lambda number: (kind(_entries(number)),)


def _rows(kind: Callable[[list[Any]], Any]) -> Callable[[int], tuple[Any, ...]]:
    return lambda number: (kind([*_entries(number).values()]),)


def _shared(number: int) -> tuple[Any, ...]:
    entries = _entries(number)
    return entries, entries


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[int], tuple[Any, ...]]]] = {
    **{
        f"{change.__name__.lstrip('_')} {kind.__name__}": (change, _of(kind))
        for change in (_pop, _put, _replace, _update, _clear, _order, _count, _item)
        for kind in (dict, Batch)
    },
    "pop OrderedDict": (_pop, _of(OrderedDict)),
    "pop UserDict": (_pop, _of(UserDict)),
    "pop Counting": (_pop, _of(Counting)),
    "put Counting": (_put, _of(Counting)),
    "move OrderedDict": (_move, _of(OrderedDict)),
    "pop defaultdict": (_pop, _of(lambda entries: defaultdict(list, entries))),
    "sometimes": (_sometimes, lambda number: (_entries(number) if number % 2 else {"x": _x(number)},)),
    "inside": (_inside, lambda number: ({"in": _entries(number), "n": 3},)),
    "inside Batch": (_inside, lambda number: ({"in": Batch(_entries(number)), "n": 3},)),
    "two": (_two, lambda number: (_entries(number), _entries(number))),
    "one given twice": (_two, _shared),
    "append": (_append, _rows(list)),
    "append Rows": (_append, _rows(Rows)),
    "field": (_field, lambda number: (Pair(_x(number)),)),
    "slot": (_field, lambda number: (Slots(_x(number)),)),
    "attribute": (_attribute, _of(Batch)),
    "read Batch": (_read, _of(Batch)),
    "read Counting": (_read, _of(Counting)),
    "read Rows": (_read_rows, _rows(Rows)),
}


def _within(value: Any) -> Iterator[Any]:
    """A value and what is in it."""
    yield value
    if isinstance(value, UserDict):
        yield from _within(value.data)
    elif isinstance(value, dict | list | tuple):
        for part in list(value.values()) if isinstance(value, dict) else value:
            yield from _within(part)
    elif isinstance(value, Pair | Slots):
        yield from _within([value.x, value.mask])


def _shown(value: Any, known: list[Any]) -> Any:
    """What a value holds, and which of the known objects it is."""
    which = next((number for number, item in enumerate(known) if item is value), None)
    if isinstance(value, Tensor):
        return which, value.tolist()
    if isinstance(value, UserDict):
        return which, _shown(value.data, known)
    if isinstance(value, dict):
        return which, type(value), [(key, _shown(part, known)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_shown(part, known) for part in value]
    return _shown([value.x, value.mask], known) if isinstance(value, Pair | Slots) else value


def _run(case: str, wrap: Callable[[Any], Any], again: bool) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    change, make = CASES[case]
    net, found = nn.Linear(4, 4), list[Any]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(*args: Any) -> Tensor:
        optimizer.zero_grad()
        net(torch.ones(4)).sum().backward()
        optimizer.step()
        return change(*args) + net.weight.detach().sum()

    run, given = wrap(step), make(0)
    for number in range(6):
        given = given if again else make(number)
        known = list(_within(given))
        puts = Counting.puts
        found.append((run(*given).tolist(), _shown(given, known), Counting.puts - puts))
    return found, run


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("case", CASES)
def test_arguments_are_left_as_in_eager_mode(case: str) -> None:
    expected, _ = _run(case, lambda step: step, again=False)
    found, run = _run(case, dovetail.compile_step, again=False)
    assert [values[:2] for values in found] == [values[:2] for values in expected]
    assert run.stats.captures <= 3
    assert run.stats.eager_calls == 0


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("case", ["put dict", "count dict", "sometimes", "update Batch", "read Batch", "field"])
def test_one_batch_for_all_calls(case: str) -> None:
    expected, _ = _run(case, lambda step: step, again=True)
    found, _ = _run(case, dovetail.compile_step, again=True)
    assert [values[:2] for values in found] == [values[:2] for values in expected]
