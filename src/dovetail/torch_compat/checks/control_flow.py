"""Checks of `torch_compat.control_flow`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from dovetail.torch_compat import control_flow, dispatch, fakes, symbols
from dovetail.torch_compat.checks.difference import first_difference


class _Seen(dispatch.DispatchMode):
    """Notes the names of the operators that arrive."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def check_traced_apart() -> str | None:
    """A mode sees a scan with gradients as one operator forward and one backward, and nothing of how it is made."""
    seen = _Seen()
    with warnings.catch_warnings(), control_flow.traced_apart(), fakes.new_fake_mode(), torch.enable_grad():
        warnings.simplefilter("ignore")  # torch's partitioner imports much, some of it deprecated
        rows = torch.ones(4, 2, requires_grad=True)
        with seen:
            carry, items = torch.ops.higher_order.scan(lambda c, r: (c * r, c + r), [rows[0]], [rows], ())
            torch.autograd.grad(carry.sum() + items.sum(), rows)
    return first_difference(
        ("how many scans a mode sees", seen.names.count("scan"), 2),
        ("whether it sees the step", "mul.Tensor" in seen.names, False),
    )


class _NotHereError(Exception):
    """Raised in Dynamo's place."""


def check_sub_programs_by_dynamo() -> str | None:
    """What `cond` and its kind hand to Dynamo passes by the function that is replaced; no graph is made here."""

    def capture(*_: object) -> Any:
        raise _NotHereError

    x, place, passed = torch.ones(2), vars(control_flow), []
    untyped_map: Any = map_over
    calls: list[Callable[[], object]] = [
        lambda: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        lambda: untyped_map(lambda row: row.sin(), x),
        lambda: scan(lambda c, r: (c, r), x[0], x),
        lambda: while_loop(lambda x: x.sum() < 0, lambda x: (x,), (x,)),
    ]
    before = place["_captured"]
    place["_captured"] = capture
    try:
        with control_flow.sub_programs_by_dynamo(lambda *_: None):
            for call in calls:
                try:
                    call()
                except _NotHereError:
                    passed.append(True)
    finally:
        place["_captured"] = before
    parameters = list(inspect.signature(torch._dynamo.convert_frame.fullgraph_capture).parameters)[:3]
    return first_difference(
        ("how many operators pass by", len(passed), len(calls)),
        ("what Dynamo's capture takes", parameters, ["mod", "args", "kwargs"]),
    )


def check_let_sizes_be_unknown() -> str | None:
    """A fake mode without symbols has them afterwards, and sizes that are known stay numbers."""
    with fakes.new_fake_mode() as mode:
        control_flow.let_sizes_be_unknown()
        size = torch.ones(3).size(0)
    return first_difference(
        ("whether it has symbols", mode.shape_env is not None, True), ("a known size", type(size), int)
    )


def check_unknown_integer() -> str | None:
    """It is a symbol that no fake has, and the mode goes on as if it were not there."""
    with fakes.new_fake_mode() as mode:
        control_flow.let_sizes_be_unknown()
        number = control_flow.unknown_integer()
        waiting = list(mode.shape_env.pending_fresh_unbacked_symbols) if mode.shape_env is not None else None
    return first_difference(
        ("what it is", type(number), torch.SymInt),
        ("whether it is a symbol", symbols.symbol_name(number) is not None, True),
        ("what the mode waits for", waiting, []),
    )


CHECKS = (check_traced_apart, check_sub_programs_by_dynamo, check_let_sizes_be_unknown, check_unknown_integer)
