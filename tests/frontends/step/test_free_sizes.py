"""Sizes of arguments that are free (`dynamic=True`), as the numbers that a step's code takes them for: counts in its
state, results, rates, texts and keys.

Each step runs in eager mode and compiled, on batches of several lengths; results and state are compared bit by bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from tests.alike import assert_alike

LENGTHS = (8, 8, 5, 7, 3, 8, 11)
Body = Callable[[SimpleNamespace, Tensor, Tensor], Any]


def loss_of(s: SimpleNamespace, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(s.net(x), y)


def count_rows(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    s.seen += len(x)
    return loss_of(s, x, y)


def mean_over_rows(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    loss = loss_of(s, x, y)
    s.total += loss.item() * x.size(0)
    s.seen += x.size(0)
    return loss, s.total / s.seen


def accuracy(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    out = s.net(x)
    s.right += int((out.argmax(1) == y).sum().item())
    s.seen += y.numel()
    return F.cross_entropy(out, y), s.right / s.seen


def sizes_in_a_list(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    s.log.append((len(x), x.numel() // 2, sum([len(x), len(y)]), max(len(x), 4) / 3))
    return loss_of(s, x, y)


def results(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    return loss_of(s, x, y), {"rows": len(x), "half": x.shape[0] // 2, "rest": divmod(len(x), 3), "shape": x.shape}


def rate_by_rows(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    for group in s.optimizer.param_groups:
        group["lr"] = 0.1 * len(x) / 8 * 0.3
    return loss_of(s, x, y)


def rate_by_rows_so_far(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    s.seen += x.numel()
    s.optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, s.seen / 200)
    return loss_of(s, x, y)


def functions_of_sizes(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    n = len(x)
    return (
        loss_of(s, x, y) / math.sqrt(n) * np.sqrt(n),
        math.log(n + 0.5),
        x[math.ceil(n / 3) :].sum(),
        round(n * 0.3, 2),
    )


def parts_of_rows(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    cut = int(len(x) * 0.6)
    first, second = x.split([cut, len(x) - cut])
    return F.cross_entropy(s.net(torch.cat([second, first])), y), cut, x[-cut:].sum(0)


def reshaped(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    turned = x.reshape(len(x), 2, 3).transpose(1, 2).reshape(len(x), -1)
    return loss_of(s, turned, y), turned.unfold(0, 2, 1).reshape(x.shape[0] - 1, -1).sum(1)


def padded(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    more = (4 - len(x) % 4) % 4
    rows = (torch.arange(len(x) + more) < len(x)).float()
    each = F.cross_entropy(s.net(F.pad(x, (0, 0, 0, more))), F.pad(y, (0, more)), reduction="none")
    return (each * rows).sum() / rows.sum()


def masked(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    n = x.size(0)
    mask = torch.triu(torch.full((n, n), float("-inf")), 1)
    return loss_of(s, (x @ x.T / math.sqrt(x.size(1)) + mask).softmax(-1) @ x, y)


def drawn_by_a_generator(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    n = len(x)
    rows = torch.randint(0, n, (n,), generator=s.generator)[torch.randperm(n, generator=s.generator)]
    noise = torch.randn(x.shape, generator=s.generator) + torch.rand(n, 1, generator=s.generator)
    return loss_of(s, x[rows] + 0.1 * noise, y[rows])


def average_of_lengths(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    s.total = s.total * 0.9 + 0.1 * len(x)
    return loss_of(s, x, y), s.total


def keys_of_lengths(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    s.counts[len(x)] += 1
    s.counts[f"{len(x)} rows"] += 1
    return loss_of(s, x, y)


def texts_of_lengths(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    print("rows", len(x), tuple(x.shape), x.shape, f"{len(x) / 3:.2f}")
    return loss_of(s, x, y), f"{len(x)} rows of {x.shape}"


def questions(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    match len(x):
        case 8:
            factor = 2.0
        case 5 | 7:
            factor = 3.0
        case _:
            factor = 0.5
    return loss_of(s, x, y) * factor * (2.0 if len(x) in (3, 5) else 1.0), isinstance(len(x), int), x.shape == (8, 6)


def table_that_grows(s: SimpleNamespace, x: Tensor, y: Tensor) -> Any:
    if s.table is None or s.table.shape[0] < len(x):
        s.table = torch.arange(len(x)).float()[:, None] * 0.1
    return loss_of(s, x + s.table[: len(x)], y)


ONE_PROGRAM = [
    count_rows,
    mean_over_rows,
    accuracy,
    sizes_in_a_list,
    rate_by_rows,
    rate_by_rows_so_far,
    functions_of_sizes,
    parts_of_rows,
    reshaped,
    padded,
    masked,
    drawn_by_a_generator,
]
MORE = [results, average_of_lengths, keys_of_lengths, texts_of_lengths, questions, table_that_grows]


def followed(body: Body, compile_it: Callable[[Any], Any]) -> list[Any]:
    """What calls give, and leave, of lengths in turn."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    s = SimpleNamespace(net=net, seen=0, total=0.0, right=0, log=[], counts=defaultdict(int), table=None)
    s.optimizer, s.generator = torch.optim.SGD(net.parameters(), lr=0.1), torch.Generator().manual_seed(3)

    def step(x: Tensor, y: Tensor) -> Any:
        s.optimizer.zero_grad()
        found = body(s, x, y)
        loss = found[0] if isinstance(found, tuple) else found
        loss.backward()
        s.optimizer.step()
        return (loss.detach(), *found[1:]) if isinstance(found, tuple) else loss.detach()

    run, drawn, seen = compile_it(step), torch.Generator().manual_seed(1), list[Any]()
    for length in LENGTHS:
        found = run(torch.randn(length, 6, generator=drawn), torch.randint(0, 3, (length,), generator=drawn))
        weights = [weight.detach().clone() for weight in net.parameters()]
        rates = [group["lr"] for group in s.optimizer.param_groups]
        state = [s.seen, s.total, s.right, list(s.log), dict(s.counts), s.table, s.generator.get_state(), rates]
        seen.append((found, weights, state))
    return seen


@pytest.mark.parametrize("body", [*ONE_PROGRAM, *MORE], ids=lambda body: body.__name__)
def test_sizes_are_numbers_of_each_call(body: Body, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: list[Any] = []

    def compile_it(step: Any) -> Any:
        compiled.append(dovetail.compile_step(step, dynamic=True))
        return compiled[0]

    found, wanted = followed(body, compile_it), followed(body, lambda step: step)
    assert repr(found) == repr(wanted)
    assert_alike(found, wanted)
    if body in ONE_PROGRAM:
        assert compiled[0].stats.captures == 1
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


def test_a_tensor_of_which_only_the_size_is_read_is_an_input() -> None:
    for body in (
        lambda x: torch.full((len(x),), 0.1 * len(x)),
        lambda x: torch.randint(len(x), (5,)),
        lambda x: len(x) / 2,
    ):
        step = dovetail.compile_step(body, dynamic=True)
        for length in (8, 5, 3, 9):
            torch.manual_seed(length)
            wanted = body(torch.zeros(length))
            torch.manual_seed(length)
            assert_alike(step(torch.zeros(length)), wanted)
        assert step.stats.captures == 1
