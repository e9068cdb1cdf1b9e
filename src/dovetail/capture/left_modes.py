"""Modes of torch that code leaves otherwise than it found them: `torch.set_grad_enabled(False)`, and never back.

Eager code that does so changes what its caller runs next. A program does the same after each call, for the modes by
which programs are guarded; code that leaves another one changed is refused. Recording itself changes none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from dovetail.capture.origins import OriginTracker
from dovetail.errors import OtherSettingsInside, PythonSideEffect
from dovetail.ir.program import values_in
from dovetail.ir.provenance import origin_of
from dovetail.torch_compat.modes import DEFAULT_DTYPE, kernel_switches, set_switches, switches

_GUARDED = frozenset(
    {
        "torch.set_grad_enabled",
        "torch.set_default_dtype",
        "torch.use_deterministic_algorithms",
        "torch.set_autocast_enabled('cpu')",
        "torch.set_autocast_enabled('cuda')",
    }
)
_IN_GRAPHS = {"set_deterministic_algorithms": "use_deterministic_algorithms"}


@contextmanager
def modes_left(left: dict[str, Any], set_anyway: Collection[str] = ()) -> Iterator[None]:
    """While active, modes may change; then they are as before, and what was left changed is in `left`.

    set_anyway: names of functions that set modes to what is known, whatever they were.
    Raises: PythonSideEffect for a mode that a program would not set again.
    """
    before = switches()
    try:
        yield
        after = switches()
        known = {name: value for name, value in after.items() if _function_of(name) in set_anyway}
        left.update({**_changed(before, after), **known})
        for name, value in left.items():
            if name not in _GUARDED and name not in known:
                raise PythonSideEffect(what=f"left {name} at {value}, which was {before[name]}")
    finally:
        changed = _changed(switches(), before)
        if changed:
            set_switches(changed)


def refuse_switched(
    before: Mapping[str, Any], operands: Sequence[object], results: Sequence[object], origins: OriginTracker
) -> None:
    """Raises: OtherSettingsInside where an operator runs under other settings than those the program began with."""
    now = kernel_switches() if before else before
    for name, value in _changed(before, now).items():
        if name != DEFAULT_DTYPE or _takes_default(value, operands, results):
            raise OtherSettingsInside(setting=name, now=value, before=before[name], origin=origins.here())


def _takes_default(dtype: torch.dtype, operands: Sequence[object], results: Sequence[object]) -> bool:
    """Whether results may have this dtype because it is the default: neither operands nor arguments say so."""
    if not any(isinstance(item, torch.Tensor) and item.dtype in (dtype, dtype.to_complex()) for item in results):
        return False
    given = {value.tensor.dtype for value in values_in(operands) if value.is_tensor}
    return dtype not in given and not any(isinstance(item, torch.dtype) for item in operands)


def switched_in(targets: Iterable[object]) -> frozenset[str]:
    """Names of the functions that set modes, among the targets of a graph's nodes."""
    known = set(map(_function_of, switches()))
    names = (str(getattr(target, "__name__", "")).lstrip("_") for target in targets)
    return frozenset(_IN_GRAPHS.get(name, name) for name in names if _IN_GRAPHS.get(name, name) in known)


def refuse_kernels_switched(nodes: Iterable[fx.Node]) -> None:
    """Raises: OtherSettingsInside where a graph switches what kernels look at before other operators of its own.

    Dynamo has carried that out while it made the graph: nobody knows what the caller had set.
    """
    switches = {_function_of(name): name for name in kernel_switches() if name != DEFAULT_DTYPE}
    set_inside = ""
    for node in nodes:
        if node.op not in ("call_function", "call_method", "call_module"):
            continue
        function = str(getattr(node.target, "__name__", "")).lstrip("_")
        name = switches.get(_IN_GRAPHS.get(function, function), "")
        if set_inside and not switched_in([node.target]):
            before = "what the caller had set"
            raise OtherSettingsInside(setting=set_inside, now="set inside", before=before, origin=origin_of(node))
        set_inside = set_inside or name


def unknown_before(set_anyway: Collection[str]) -> dict[str, Any]:
    """What to take the default dtype for where code sets it that has run already, while Dynamo made the graph.

    A program runs all its operators under the setting of its caller: those that look at it are refused.
    """
    return {DEFAULT_DTYPE: "what the caller had set"} if _function_of(DEFAULT_DTYPE) in set_anyway else {}


def _function_of(switch: str) -> str:
    return switch.partition("(")[0].rpartition(".")[2]


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if before[name] != value}
