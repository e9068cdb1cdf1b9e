"""One compiled function called by several threads: also the first time, when all of them want to compile it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doors import DOORS, Door

pytestmark = pytest.mark.usefixtures("alone")

THREADS = 6
CALLS = 8


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _step(call: Callable[..., Any], x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    result = call(leaf)
    return [result.detach(), *torch.autograd.grad(result.sum(), [leaf, *parameters])]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("shapes", [1, 3])
@pytest.mark.parametrize("door", DOORS)
def test_results_are_those_of_one_thread(door: Door, shapes: int, warm: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))
    parameters = list(net.parameters())
    inputs = [torch.randn(3 + k % shapes, 6) for k in range(THREADS)]
    expected = [_step(net, x, parameters) for x in inputs]
    compiled = door(net).call
    if warm:
        _step(compiled, inputs[0], parameters)
    start = threading.Barrier(THREADS)
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            start.wait()
            for _ in range(CALLS):
                found = _step(compiled, inputs[number], parameters)
                if not all(torch.equal(a, b) for a, b in zip(found, expected[number], strict=True)):
                    failures.append(number)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
