"""`tensor.data = other` in a step: from then on the tensor lies on the other one's memory, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import DovetailError

Do = Callable[[list[Tensor], Tensor], Any]


class Own(torch.optim.Optimizer):
    """An optimizer that binds new memory in each step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad)
                p.data = p.data - group["lr"] * mean


def _swap(ps: list[Tensor], _: Tensor) -> None:
    ps[0].data, ps[1].data = ps[1].data, ps[0].data


def _one(ps: list[Tensor], _: Tensor) -> Tensor:
    ps[1].data = ps[0].data
    with torch.no_grad():
        ps[0].mul_(0.5)
    return ps[1].sum()


def _old_is_kept(ps: list[Tensor], _: Tensor) -> Tensor:
    old = ps[0].data
    ps[0].data = ps[0].data * 2
    old.add_(1)
    return ps[0].sum() - old.sum()


def _restored(ps: list[Tensor], x: Tensor) -> Tensor:
    old = ps[0].data
    ps[0].data = old + 0.1 * x.sum()
    loss = ps[0].square().sum()
    ps[0].data = old
    return loss + ps[0].sum()


def _flat(ps: list[Tensor], _: Tensor) -> None:
    flat = torch.cat([p.data.reshape(-1) for p in ps]) * 0.5
    at = 0
    for p in ps:
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()


def _returned(ps: list[Tensor], _: Tensor) -> Tensor:
    new = ps[0].data * 0.5
    ps[0].data = new
    return new


def _in_place_after(ps: list[Tensor], x: Tensor) -> None:
    ps[0].data = ps[0].data + x.mean()
    ps[0].data.mul_(0.5)
    with torch.no_grad():
        ps[0].add_(1)


def _own_part(ps: list[Tensor], _: Tensor) -> None:
    ps[0].data *= 0.5
    ps[0].data = ps[0].data.clamp(-1, 1)


def _thrice(ps: list[Tensor], _: Tensor) -> None:
    ps[0].data, ps[1].data, ps[2].data = ps[1].data, ps[2].data, ps[0].data * 2


WAYS: dict[str, Do] = {
    "swapped": _swap,
    "one memory": _one,
    "old memory is written": _old_is_kept,
    "restored": _restored,
    "parts of a flat buffer": _flat,
    "returned": _returned,
    "written after": _in_place_after,
    "in place": _own_part,
    "three": _thrice,
    "nothing new": lambda ps, _: setattr(ps[0], "data", ps[0].data),
    "of no gradient": lambda ps, x: setattr(ps[0], "data", torch.full_like(ps[0], 0.5) + x.mean()),
}


def _sharing(tensors: list[Tensor]) -> list[list[bool]]:
    addresses = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for b in addresses] for a in addresses]


def bound(do: Do, own: bool = False, calls: int = 5) -> Any:
    """Compare a step, eager and compiled, bit by bit: values, gradients, state, and who shares memory with whom."""
    found, run = [], None
    for compiled in (False, True):
        torch.manual_seed(0)
        ps = [nn.Parameter(torch.randn(3, 4)) for _ in range(3)]
        optimizer = Own(ps) if own else torch.optim.SGD(ps, lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Any:
            optimizer.zero_grad()  # noqa: B023
            loss = sum(F.linear(x, p).square().mean() * (n + 1) for n, p in enumerate(ps))  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.detach(), do(ps, x)  # noqa: B023

        run = dovetail.compile_step(step) if compiled else step
        seen: list[Any] = []
        outside: list[Tensor] = []
        for _ in range(calls):
            held = [p.data for p in ps]  # memory from before, in other hands
            results = [x for x in run(torch.randn(5, 4)) if x is not None]
            outside += [*held, *results]
            seen.append([x.tolist() for x in (*ps, *(p.grad for p in ps), *outside)])
            seen.append(_sharing([*ps, *outside]))
            seen.append([(p.stride(), p.requires_grad, p.is_leaf) for p in ps])
        seen += [[x.tolist() for x in state.values() if isinstance(x, Tensor)] for state in optimizer.state.values()]
        found.append(seen)
    assert found[0] == found[1]
    return run


@pytest.mark.parametrize("own", [False, True], ids=["SGD", "own optimizer"])
@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_lies_where_eager_mode_puts_it(way: str, own: bool) -> None:
    if way == "one memory" and not own:
        with pytest.raises(DovetailError, match="shares memory with"):  # the optimizer writes both of them
            bound(WAYS[way], own)
    else:
        assert bound(WAYS[way], own).stats.eager_calls == 0


def test_other_kinds_of_tensors_are_refused() -> None:
    weight = torch.ones(3)

    def step(x: Tensor, wide: bool) -> None:
        weight.data = torch.cat([x, x]) if wide else x.double()

    for wide, says in ((True, "shape or strides"), (False, r"\.data")):
        weight.data = torch.ones(3)
        run = dovetail.compile_step(step)
        run(torch.ones(3), wide)
        weight.data = torch.ones(3)
        with pytest.raises(DovetailError, match=says):
            run(torch.ones(3), wide)
        assert weight.tolist() == [1, 1, 1]
