"""State as a function would hand it on: each call leaves new lists and dictionaries where it found some."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dovetail

CALLS = 7
X = [torch.arange(6.0).view(2, 3) * 0.1 + n for n in range(CALLS)]


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape or (2, 3))


def last_ones(s: Any, x: torch.Tensor) -> Any:
    s.h = [*s.h[-2:], x * 2]
    return torch.stack(s.h).sum(0)


def last_numbers(s: Any, x: torch.Tensor) -> Any:
    s.h = [x.mean().item(), *s.h[:2]]
    return sum(s.h)


def averages(s: Any, x: torch.Tensor) -> Any:
    s.h = {name: v * 0.9 + x.mean() for name, v in s.h.items()}
    return s.h["a"] * 1


def what_was_there_stays(s: Any, x: torch.Tensor) -> Any:
    s.h = [s.h[-1], x * 2]
    return s.alias[0] + s.h[0]


def written_and_left(s: Any, x: torch.Tensor) -> Any:
    old = s.h
    old.append(x)
    s.h = old[-2:]
    return old[0] + s.h[0]


def twice(s: Any, x: torch.Tensor) -> Any:
    s.h = [s.h[0] + x]
    s.h = [s.h[0] * 2]
    s.h.append(x)
    s.h = s.h[:1]
    return s.h[0] + 0


def tuples_inside(s: Any, x: torch.Tensor) -> Any:
    s.h = [(v + x.mean(), n + 1) for v, n in s.h]
    return s.h[0][1]


def one_list_in_two_places(s: Any, x: torch.Tensor) -> Any:
    new = [x.mean()]
    s.h = {"a": new, "b": new}
    s.h["a"].append(1)
    return len(s.h["b"])


def sometimes(s: Any, x: torch.Tensor) -> Any:
    s.n = s.n + 1
    if s.n % 2:
        s.h = [x]
    return s.h[0] * s.n


def emptied(s: Any, x: torch.Tensor) -> Any:
    s.h = [] if len(s.h) >= 3 else [*s.h, x.sum().item()]
    return len(s.h)


def both_kept(s: Any, x: torch.Tensor) -> Any:
    s.alias, s.h = s.h, [v + x for v in s.h]
    return s.h[0] + s.alias[0]


def the_like_of_it(s: Any, x: torch.Tensor) -> Any:
    s.alias, s.h = s.h, list(s.h)
    s.h[0].add_(x)
    return s.alias[0] * 2


def with_a_module(s: Any, x: torch.Tensor) -> Any:
    s.h = {"net": s.h["net"], "calls": s.h["calls"] + 1}
    return s.h["net"](x).detach()


def returned(s: Any, x: torch.Tensor) -> Any:
    s.h = [s.h[0] + x]
    result = [s.h, s.h]
    assert result[0] is s.h
    return result


def trained(s: Any, x: torch.Tensor) -> Any:
    weights = [w.detach().requires_grad_() for w in s.h]
    loss = ((x @ weights[0]).tanh() @ weights[1]).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    s.h = [w.detach() - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
    return loss.detach()


def trained_by_names(s: Any, x: torch.Tensor) -> Any:
    held = s.h["weights"]
    found = torch.func.grad(lambda w: (x @ w["w"] + w["b"]).square().mean())(held)
    new = {name: held[name] - s.h["rate"] * found[name] for name in held}
    s.h = {"weights": new, "rate": s.h["rate"] * 0.9, "calls": s.h["calls"] + 1, "tag": "a"}
    return s.h["calls"]


def _shared() -> Any:
    held = [_zeros(), _zeros()]
    return SimpleNamespace(h=held, alias=held)


def _named() -> Any:
    weights = {"w": torch.ones(3, 2), "b": torch.zeros(2)}
    return SimpleNamespace(h={"weights": weights, "rate": 0.1, "calls": 0, "tag": "a"})


def _module(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


def _with_module() -> Any:
    return SimpleNamespace(h={"net": _module(0), "calls": 0})


def _three() -> Any:
    return SimpleNamespace(h=[_zeros(), _zeros(), _zeros()])


Step = Callable[[Any, torch.Tensor], Any]
Between = Callable[[Any, int], object]
CASES: list[tuple[Step, Callable[[], Any], Between | None]] = [
    (last_ones, _three, None),
    (last_ones, _three, lambda s, n: s.h.append(torch.ones(2, 3)) if n == 3 else None),
    (last_ones, _three, lambda s, n: setattr(s, "h", [torch.ones(2, 3)] * 2) if n == 3 else None),
    (last_ones, _three, lambda s, n: s.h[-1].add_(n)),
    (last_ones, _three, lambda s, n: setattr(s, "h", [s.h[0]] * 3) if n == 3 else None),
    (last_numbers, lambda: SimpleNamespace(h=[0.0, 0.0, 0.0]), None),
    (averages, lambda: SimpleNamespace(h={"a": _zeros(1), "b": torch.ones(1)}), None),
    (what_was_there_stays, _shared, None),
    (what_was_there_stays, _shared, lambda s, n: setattr(s, "alias", s.h) if n == 3 else None),
    (written_and_left, lambda: SimpleNamespace(h=[_zeros(), _zeros()]), None),
    (twice, lambda: SimpleNamespace(h=[_zeros()]), None),
    (tuples_inside, lambda: SimpleNamespace(h=[(_zeros(), 0), (_zeros(), 5)]), None),
    (one_list_in_two_places, lambda: SimpleNamespace(h={"a": [_zeros()], "b": [1]}), None),
    (sometimes, lambda: SimpleNamespace(n=0, h=[_zeros()]), None),
    (emptied, lambda: SimpleNamespace(h=[]), None),
    (both_kept, lambda: SimpleNamespace(h=[_zeros()], alias=[_zeros()]), None),
    (both_kept, lambda: SimpleNamespace(h=[_zeros()], alias=[_zeros()]), lambda s, n: setattr(s, "h", [_zeros()])),
    (the_like_of_it, lambda: SimpleNamespace(h=[_zeros()], alias=None), None),
    (the_like_of_it, _shared, lambda s, n: setattr(s, "alias", [_zeros()]) if n == 3 else None),
    (with_a_module, _with_module, None),
    (with_a_module, _with_module, lambda s, n: s.h.update(net=_module(n))),
    (returned, lambda: SimpleNamespace(h=[_zeros()]), None),
    (trained, lambda: SimpleNamespace(h=[torch.ones(3, 4), torch.ones(4, 1)]), None),
    (trained_by_names, _named, None),
    (trained_by_names, _named, lambda s, n: s.h.update(rate=0.5) if n == 3 else None),
    (trained_by_names, _named, lambda s, n: s.h["weights"].update(w=torch.ones(3, 2)) if n == 4 else None),
]


def _shown(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return item.dtype, item.requires_grad, item.tolist()
    if isinstance(item, dict):
        return {name: _shown(value) for name, value in item.items()}
    if isinstance(item, torch.nn.Module):
        return [w.tolist() for w in item.parameters()]
    return [type(item), *map(_shown, item)] if isinstance(item, list | tuple) else item


def _followed(step: Step, make: Callable[[], Any], between: Between | None, compiled: bool) -> list[Any]:
    s = make()

    def call(x: torch.Tensor) -> Any:
        return step(s, x)

    run = dovetail.compile_step(call) if compiled else call
    seen = []
    for n, x in enumerate(X):
        if between is not None and n:
            between(s, n)
        result = run(x.clone())
        held = result[0] if type(result) is list else getattr(s, "alias", None)
        seen.append((_shown(result), _shown(vars(s)), held is s.h))
    return seen


@pytest.mark.parametrize(("step", "make", "between"), CASES, ids=lambda x: getattr(x, "__name__", "") or "none")
def test_new_containers_are_left_as_in_eager_mode(step: Step, make: Callable[[], Any], between: Between | None) -> None:
    assert _followed(step, make, between, compiled=True) == _followed(step, make, between, compiled=False)
