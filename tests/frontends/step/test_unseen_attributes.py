"""Attributes that calls set by way of `__dict__`, `object.__setattr__` or `globals()`, of objects they reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

Act = Callable[[Any, Tensor], Any]


class _Plain:
    def set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def record(self, **values: Any) -> None:
        self.__dict__.update(values)

    def drop(self) -> None:
        self.__dict__.pop("loss", None)


class _Own(dict[str, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.__dict__ = self


class _Writing:
    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class _Passing:
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


class _Slotted:
    __slots__ = ("loss", "seen")

    def __init__(self) -> None:
        self.seen = 0

    def set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class _Dictionary(dict[str, Any]):
    pass


@dataclasses.dataclass(frozen=True)
class _Frozen:
    seen: int = 0

    def count(self) -> None:
        object.__setattr__(self, "seen", self.seen + 1)


class _Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        object.__setattr__(self, "loss", x.sum().detach())
        self.__dict__["seen"] = 3
        return self.linear(x)


def _drop_or_record(item: Any, loss: Tensor) -> None:
    if "loss" in item.__dict__:
        item.drop()
    else:
        item.record(loss=1)


def _clear(item: Any, loss: Tensor) -> None:
    item.__dict__.clear()
    item.__dict__["seen"] = 1


def _count(item: Any, loss: Tensor) -> None:
    item.__dict__["seen"] = item.__dict__.get("seen", 0) + 1


def _set_loss(item: Any, loss: Tensor) -> None:
    item.loss = loss.item()


_CASES: dict[str, tuple[type, Act]] = {
    "number by vars": (_Plain, lambda item, loss: vars(item).update(loss=loss.item())),
    "tensor by __dict__": (_Plain, lambda item, loss: item.__dict__.update(loss=loss)),
    "number by a method": (_Plain, lambda item, loss: item.record(loss=loss.item(), seen=3)),
    "tensor by a method": (_Plain, lambda item, loss: item.record(loss=loss)),
    "count": (_Plain, _count),
    "list by default": (_Plain, lambda item, loss: item.__dict__.setdefault("seen", []).append(1)),
    "taken away": (_Plain, _drop_or_record),
    "cleared": (_Plain, _clear),
    "set past its class": (_Plain, lambda item, loss: item.set("loss", 1.5)),
    "number set past its class": (_Plain, lambda item, loss: item.set("loss", loss.item())),
    "object that is its dictionary": (_Own, _set_loss),
    "class that writes": (_Writing, _set_loss),
    "class that passes on": (_Passing, _set_loss),
    "slot": (_Slotted, lambda item, loss: item.set("seen", 7)),
    "slot with a tensor": (_Slotted, lambda item, loss: item.set("loss", loss)),
    "attribute of a dictionary": (_Dictionary, lambda item, loss: item.__dict__.update(loss=loss)),
    "frozen": (_Frozen, lambda item, loss: item.count()),
    "module": (_Module, lambda item, loss: item(torch.ones(2, 3) * loss)),
}


def _build(name: str) -> tuple[Callable[[Tensor], Tensor], Any]:
    torch.manual_seed(0)
    kind, act = _CASES[name]
    net, holder = nn.Linear(3, 2), _Plain()
    held: Any = kind()
    vars(holder)["held"] = held

    def step(x: Tensor) -> Tensor:
        loss = net(x).sum().detach()
        act(vars(holder)["held"] if name == "number by vars" else holder.held, loss)  # type: ignore[attr-defined]
        return loss

    return step, held


def _run(step: Callable[[Tensor], Tensor], held: Any) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(7)
    for number in range(6):
        if number == 3 and isinstance(held, _Plain | _Slotted):
            object.__setattr__(held, "loss" if isinstance(held, _Plain) else "seen", 9.0)
        yield step(torch.randn(4, 3, generator=generator)).tolist(), _shown(held)


def _shown(held: Any) -> list[Any]:
    found = [vars(held).get(x) if hasattr(held, "__dict__") else getattr(held, x, None) for x in ("loss", "seen")]
    return [(type(x), repr(x)) for x in found]


@pytest.mark.parametrize("name", _CASES)
def test_in_a_step(name: str) -> None:
    expected = list(_run(*_build(name)))
    step, held = _build(name)
    assert list(_run(dovetail.compile_step(step), held)) == expected


@pytest.mark.parametrize("name", _CASES)
@pytest.mark.filterwarnings("ignore::dovetail.DovetailWarning")
def test_in_a_compiled_function(name: str) -> None:
    """A call that leaves a tensor, or a number of one, may be refused; it leaves nothing then."""
    expected = list(_run(*_build(name)))
    step, held = _build(name)
    found, refused, before = list[Any](), False, _shown(held)
    try:
        for outcome in _run(dovetail.compile(step), held):
            found.append(outcome)
    except dovetail.DovetailError:
        refused = True
        assert _shown(held) == (found[-1][-1] if found else before)
    assert found == expected[: len(found)]
    assert refused or len(found) == len(expected)


def test_a_global_variable_by_name() -> None:
    def step(x: Tensor) -> Tensor:
        globals()["_LEFT_BY_NAME"] = x.sum()
        return x * 2

    compiled = dovetail.compile_step(step)
    try:
        for number in range(4):
            x = torch.full((3,), float(number))
            assert torch.equal(compiled(x), x * 2)
            left = globals()["_LEFT_BY_NAME"]
            assert type(left) is Tensor
            assert left.item() == 3 * number
            if number == 2:
                del globals()["_LEFT_BY_NAME"]
    finally:
        globals().pop("_LEFT_BY_NAME", None)
