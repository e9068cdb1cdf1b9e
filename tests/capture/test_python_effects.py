"""Python objects that a function reads or changes: never stale, never left with a tensor that has no numbers."""

from __future__ import annotations

import builtins
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import PythonSideEffect

LAST: Any = None


class Holder:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.last: Any = "nothing"


def _closure_list() -> tuple[Callable[..., Any], Callable[[], Any]]:
    kept: list[Any] = [1]

    def f(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x + 1

    return f, lambda: kept == [1]


def _nested_containers() -> tuple[Callable[..., Any], Callable[[], Any]]:
    kept: dict[str, Any] = {"steps": deque([3], maxlen=2)}

    def f(x: Tensor) -> Tensor:
        kept["steps"].append((x * 2, 1))
        return x + 1

    return f, lambda: kept == {"steps": deque([3])}


def _nonlocal_variable() -> tuple[Callable[..., Any], Callable[[], Any]]:
    last: Any = None

    def f(x: Tensor) -> Tensor:
        nonlocal last
        last = x * 2
        return x + 1

    return f, lambda: last is None


def _global_variable() -> tuple[Callable[..., Any], Callable[[], Any]]:
    def f(x: Tensor) -> Tensor:
        global LAST  # noqa: PLW0603 - what is tested
        LAST = x * 2
        return x + 1

    return f, lambda: LAST is None


def _object() -> tuple[Callable[..., Any], Callable[[], Any]]:
    holder = Holder()

    def f(x: Tensor) -> Tensor:
        holder.last = x * 2
        return x + 1

    return f, lambda: holder.last == "nothing"


def _module_without_tensors() -> tuple[Callable[..., Any], Callable[[], Any]]:
    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return x + 1

    module = Keeps()
    return module, lambda: not hasattr(module, "last")


def _forward_hook() -> tuple[Callable[..., Any], Callable[[], Any]]:
    module, seen = nn.Linear(2, 2), []
    module.register_forward_hook(lambda module, args, output: seen.append(output))
    return module, lambda: seen == []


def _backward_hook() -> tuple[Callable[..., Any], Callable[[], Any]]:
    module, seen = nn.Linear(2, 2), []
    module.register_full_backward_hook(lambda module, grads, outputs: seen.append(outputs))
    return module, lambda: seen == []


def _tensor_hook() -> tuple[Callable[..., Any], Callable[[], Any]]:
    seen: list[Any] = []

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(seen.append)
        return y + 1

    return f, lambda: seen == []


@pytest.mark.parametrize(
    "make",
    [
        _closure_list,
        _nested_containers,
        _nonlocal_variable,
        _global_variable,
        _object,
        _module_without_tensors,
        _forward_hook,
        _backward_hook,
        _tensor_hook,
    ],
)
def test_a_tensor_that_is_kept_outside_is_refused_and_not_left_there(
    make: Callable[[], tuple[Callable[..., Any], Callable[[], Any]]],
) -> None:
    target, is_as_before = make()
    with pytest.raises(PythonSideEffect, match=r"left a tensor in|set Keeps"):
        dovetail.compile(target)(torch.ones(1, 2, requires_grad=True))
    assert is_as_before()


def test_a_failure_puts_containers_back() -> None:
    kept: list[Any] = []

    def f(x: Tensor) -> Tensor:
        kept.append(1)
        return x if x.sum() > 0 else -x

    with pytest.raises(dovetail.DovetailError):
        dovetail.compile(f)(torch.ones(2))
    assert kept == []


def test_plain_values_in_objects_and_dictionaries_are_never_stale() -> None:
    holder, table = Holder(), {"offset": 1.0, "more": [1.0, {"deep": 3.0}]}

    def f(x: Tensor) -> Tensor:
        return x * holder.scale + table["offset"] + table["more"][1]["deep"]

    compiled, x = dovetail.compile(f), torch.ones(2)
    for change in (lambda: None, lambda: setattr(holder, "scale", 5.0), lambda: table.update(offset=2.0)):
        change()
        assert torch.equal(compiled(x), f(x))
    table["more"][1]["deep"] = 7.0
    assert torch.equal(compiled(x), f(x))


def test_what_a_hook_reads_is_never_stale() -> None:
    module, factor = nn.Linear(2, 2), [2.0]
    module.register_forward_hook(lambda module, args, output: output * factor[0])
    compiled, x = dovetail.compile(module), torch.ones(1, 2)
    assert torch.equal(compiled(x), module(x))
    factor[0] = 3.0
    assert torch.equal(compiled(x), module(x))


def test_a_counter_counts_as_in_eager() -> None:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return x + len(calls)

    compiled = dovetail.compile(f, max_variants=2)
    with pytest.warns(dovetail.DovetailWarning, match="eager mode"):
        results = [compiled(torch.zeros(1)).item() for _ in range(4)]
    assert results == [1.0, 2.0, 3.0, 4.0]
    assert calls == [0, 1, 2, 3]


def test_what_somebody_has_put_into_builtins_is_read_as_global_variables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "factor_", 2.0, raising=False)
    monkeypatch.setattr(builtins, "names_", ["first"], raising=False)
    compiled, x = dovetail.compile(lambda x: x * factor_ + len(names_)), torch.ones(2)  # type: ignore[name-defined] # noqa: F821
    assert torch.equal(compiled(x), x * 3)
    monkeypatch.setattr(builtins, "factor_", 5.0)
    builtins.names_.append("second")  # type: ignore[attr-defined]
    assert torch.equal(compiled(x), x * 7)
