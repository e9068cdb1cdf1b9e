"""Checks of `torch_compat.recurrent`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.torch_compat import dispatch, recurrent
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.checks.difference import first_difference


class _Watch(dispatch.DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(
        self, func: dispatch.Overload, types: object, args: Sequence[object] = (), kwargs: object = None
    ) -> object:
        self.seen.append(func)
        return func(*args)


def check_functions_below_autograd() -> str | None:
    """A GRU is one operator for modes, with the same results, and none of it is left afterwards."""
    with torch.random.fork_rng(devices=[]):  # weights are drawn
        layer, x = torch.nn.GRU(2, 2), torch.ones(3, 1, 2)
    spaces = [dict(vars(torch)), dict(vars(torch._VF))]
    with torch.no_grad():
        wanted = layer(x)[0]
        with recurrent.functions_below_autograd(("gru",), lambda args: True), _Watch() as watch:
            found = layer(x)[0]
    same = torch.equal(wanted, found)
    return first_difference(
        ("the claim that the operator is seen", torch.ops.aten.gru.input in watch.seen, True),
        ("the claim of equal results", same, True),
        ("the claim that all is as before", spaces == [vars(torch), vars(torch._VF)], True),
    )


def check_runs_packed() -> str | None:
    """An error of a layer over a packed sequence is known from one of a layer over a tensor."""
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.GRU(2, 2)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 2), torch.ones(1, 2)])
    found = []
    for given in (packed, torch.ones(2, 1, 2)):
        try:
            layer(given, torch.ones(1, 9, 9))
        except RuntimeError as error:
            found.append(recurrent.runs_packed(error))
    return first_difference(("which of two errors are of packed sequences", found, [True, False]))


def check_functions_replaced() -> str | None:
    """Another function runs in the place of one of torch, where it is meant to, and is gone afterwards."""
    before = [dict(vars(torch)), dict(vars(torch._VF))]
    x = torch.ones(2)
    with recurrent.functions_replaced({"sin": (lambda args, _: args[0] is x, lambda _: "instead")}):
        found = [torch.sin(x), torch._VF.sin(x), torch.equal(torch.sin(-x), -x.sin())]
    return first_difference(
        ("what the functions give", found, ["instead", "instead", True]),
        ("the claim that all is as before", before == [vars(torch), vars(torch._VF)], True),
    )


def check_above_autograd() -> str | None:
    """Below autograd, and within this again above, operators have gradients."""
    x = torch.ones(2, requires_grad=True)
    with below_autograd():
        below = x.sin().requires_grad
        with recurrent.above_autograd():
            above = x.sin().requires_grad
        again = x.sin().requires_grad
    return first_difference(("whether results require gradients", [below, above, again], [False, True, False]))


CHECKS = (check_functions_below_autograd, check_functions_replaced, check_above_autograd, check_runs_packed)
