"""Tensors that a compiled function turns into Python objects: followed, or refused before a fake's memory is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

import dovetail
from dovetail.errors import DataDependentControlFlow, OutsideRead

TAKES: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy()[0],
    "numpy, by force": lambda t: t.numpy(force=True)[0],
    "numpy of a detached one": lambda t: t.detach().numpy()[0],
    "asarray": lambda t: np.asarray(t)[0],
    "address": lambda t: t.data_ptr() % 2 + 1,
    "version": lambda t: t._version + 1,
}
GIVES: dict[str, Callable[[Tensor], Any]] = {
    "tolist": lambda t: t.tolist()[1],
    "tolist of a number": lambda t: t[1].tolist(),
    "nested tolist": lambda t: t.view(2, 2).tolist()[1][0],
    "iteration": lambda t: sum(float(part) for part in t),
    "unpacked": lambda t: [*t][2].item(),
}


@pytest.mark.parametrize("place", ["argument", "closed over"])
@pytest.mark.parametrize("take", TAKES)
def test_memory_of_a_tensor_is_not_read(take: str, place: str) -> None:
    held = torch.arange(4.0)
    compiled = dovetail.compile(lambda x: x * float(TAKES[take](held if place == "closed over" else x)))
    with pytest.raises(DataDependentControlFlow, match=r"numpy|array|address|version"):
        compiled(torch.ones(4))


@pytest.mark.parametrize("place", ["argument", "closed over"])
@pytest.mark.parametrize("give", GIVES)
def test_numbers_of_lists_are_those_of_each_call(give: str, place: str) -> None:
    held = torch.arange(4.0)

    def f(x: Tensor) -> Tensor:
        number: float = GIVES[give](held if place == "closed over" else x)
        return x * number

    compiled = dovetail.compile(f)
    for call in range(3):
        x = torch.arange(4.0) + call
        held.add_(1)
        assert torch.equal(compiled(x), f(x)), call


def test_a_version_counter_in_a_graph_of_dynamos() -> None:
    held = torch.arange(4.0)
    compiled = torch.compile(lambda x: x * held._version, backend="dovetail")
    with pytest.raises(Exception, match="DT-CAPTURE-002"):
        compiled(torch.ones(4))


def test_a_tensor_shared_through_dlpack() -> None:
    held = torch.arange(4.0)
    compiled = dovetail.compile(lambda x: x * torch.from_dlpack(held))
    for _ in range(3):
        held.add_(1)
        assert torch.equal(compiled(torch.ones(4)), held)
    with pytest.raises(DataDependentControlFlow, match="dlpack"):
        dovetail.compile(lambda x: torch.from_dlpack(x) * 2)(torch.ones(4))


@pytest.mark.filterwarnings("ignore:.*to_dlpack.*")
def test_capsules_of_dlpack_are_refused() -> None:
    with pytest.raises(OutsideRead, match="to_dlpack"):
        dovetail.compile(lambda x: torch.from_dlpack(to_dlpack(x)) * 2)(torch.ones(4))


def test_many_numbers_of_a_tensor_that_the_code_holds_are_refused() -> None:
    held = torch.arange(1_001.0)
    with pytest.raises(DataDependentControlFlow, match="tolist"):
        dovetail.compile(lambda x: x * sum(held.tolist()))(torch.ones(4))
