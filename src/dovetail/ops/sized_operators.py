"""Operators that take sizes as plain numbers, where these are symbols: pools over whole images, `linspace` of a width.

C++ would fix a symbol that it is handed for an `int`. So a stand-in of the same schema, but for these numbers, is
called in their place where one is a symbol. It reaches dispatch modes with the symbol, and stands for the operator
itself in what is recorded: a program hands that a number, in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from dovetail.ops.custom import define
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.dispatch import Overload
from dovetail.torch_compat.nested import has_symbolic_numbers
from dovetail.torch_compat.sized_fakes import SIZED_FAKES

_aten: Any = torch.ops.aten
_POOL = "(Tensor self, SymInt[{0}] kernel_size, SymInt[{0}] stride=[], SymInt[{0}] padding=0, "
_MEANS_TEXT = "bool ceil_mode=False, bool count_include_pad=True, SymInt? divisor_override=None) -> Tensor"
_LARGEST_TEXT = "SymInt[{0}] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"
_MEANS_OF = {rank: getattr(_aten, f"avg_pool{rank}d").default for rank in (2, 3)}
_LARGEST_OF = {rank: getattr(_aten, f"max_pool{rank}d_with_indices").default for rank in (2, 3)}
_MADE = ", *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
_SCHEMAS: dict[Overload, str] = {
    **{op: (_POOL + _MEANS_TEXT).format(rank) for rank, op in _MEANS_OF.items()},
    **{op: (_POOL + _LARGEST_TEXT).format(rank) for rank, op in _LARGEST_OF.items()},
    _aten.linspace.default: "(Scalar start, Scalar end, SymInt steps" + _MADE,
    _aten.logspace.default: "(Scalar start, Scalar end, SymInt steps, float base=10." + _MADE,
    **{
        overload: f"(SymInt window_length{more}{_MADE}"
        for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window")
        for overload, more in (
            (getattr(_aten, name).default, ""),
            (getattr(_aten, name).periodic, ", bool periodic"),
        )
    },
}


def _stand_in(op: Overload, schema: str) -> Any:
    name = op.name().removeprefix("aten::").replace(".", "_")
    return define(f"{name}_of_sizes", schema, op, SIZED_FAKES[op])


_STAND_INS: dict[Overload, Any] = {op: _stand_in(op, schema) for op, schema in _SCHEMAS.items()}
_MEANT: dict[Any, Overload] = {stand_in: op for op, stand_in in _STAND_INS.items()}


def meant(op: Any) -> Any:
    """The operator that a stand-in stands for; any other operator itself."""
    return _MEANT.get(op, op)


def sized_form(func: object, args: Sequence[Any], keywords: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What gives the same as a function for these arguments without fixing sizes; None where there is no such thing."""
    form, given = _FORMS.get(func), (*args, *keywords.values())
    if form is None or transform_is_active() or keywords.get("out") is not None or keywords.get("requires_grad"):
        return None
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return None
    reads_sizes = func in _OF_ROWS and any(has_symbolic_numbers(each.shape) for each in tensors)
    return form if reads_sizes or has_symbolic_numbers(given) else None


def _means(rank: int) -> Callable[..., torch.Tensor]:
    def pooled(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> torch.Tensor:
        op = _STAND_INS[_MEANS_OF[max(rank, 2)]]
        step = kernel_size if rank == 1 and stride in (None, (), []) else stride  # as C++ does
        numbers = (_in_row(each, rank, rest) for each, rest in ((kernel_size, 1), (step, 1), (padding, 0)))
        x = input.unsqueeze(-2) if rank == 1 else input
        made: torch.Tensor = op(x, *numbers, ceil_mode, count_include_pad, divisor_override)
        return made.squeeze(-2) if rank == 1 else made

    return pooled


def _largest(rank: int) -> Callable[..., Any]:
    def pooled(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        op = _STAND_INS[_LARGEST_OF[max(rank, 2)]]
        step = kernel_size if rank == 1 and stride in (None, (), []) else stride
        given = ((kernel_size, 1), (step, 1), (padding, 0), (dilation, 1))
        x = input.unsqueeze(-2) if rank == 1 else input
        made = op(x, *(_in_row(each, rank, rest) for each, rest in given), ceil_mode)
        values, places = [each.squeeze(-2) for each in made] if rank == 1 else made
        return (values, places) if return_indices else values

    return pooled


def _largest_and_places(rank: int) -> Callable[..., Any]:
    pooled = _largest(rank)
    return lambda *args, **keywords: pooled(*args, **{**keywords, "return_indices": True})


def _in_row(given: Any, rank: int, rest: int) -> list[Any]:
    """Numbers for each dimension of an image; a row is an image of one, for whose height there is another number."""
    numbers = list(given) if isinstance(given, list | tuple) else [] if given is None else [given] * rank
    return [rest, *numbers] if rank == 1 and numbers else numbers


def _window(name: str) -> Callable[..., torch.Tensor]:
    packet = getattr(_aten, name)

    def made(window_length: Any, *periodic: bool, **options: Any) -> torch.Tensor:
        if "periodic" in options:
            periodic = (options.pop("periodic"),)
        options.pop("requires_grad", None)
        stand_in = _STAND_INS[packet.periodic if periodic else packet.default]
        result: torch.Tensor = stand_in(window_length, *periodic, **_placed(options))
        return result

    return made


def _spaced(op: Overload) -> Callable[..., torch.Tensor]:
    def made(start: Any, end: Any, steps: Any, *base: float, **options: Any) -> torch.Tensor:
        options.pop("requires_grad", None)
        if "base" in options:
            base = (options.pop("base"),)
        result: torch.Tensor = _STAND_INS[op](start, end, steps, *base, **_placed(options))
        return result

    return made


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of what makes a tensor, with the device and the pinning that C++ hands on."""
    device = options.get("device")
    place = torch.get_default_device() if device is None else torch.device(device)
    given = {name: each for name, each in options.items() if name not in ("device", "pin_memory", "out")}
    return {**given, "device": place, "pin_memory": bool(options.get("pin_memory"))}


_OF_ROWS = frozenset({F.max_pool1d, torch.max_pool1d})  # whose C++ reads sizes
_FORMS: dict[object, Callable[..., Any]] = {
    **{getattr(F, f"avg_pool{rank}d"): _means(rank) for rank in (1, 2, 3)},
    **{getattr(F, f"max_pool{rank}d"): _largest(rank) for rank in (1, 2, 3)},
    **{getattr(F, f"max_pool{rank}d_with_indices"): _largest_and_places(rank) for rank in (1, 2, 3)},
    **{getattr(torch, f"max_pool{rank}d"): _largest(rank) for rank in (1, 2, 3)},
    torch.linspace: _spaced(_aten.linspace.default),
    torch.logspace: _spaced(_aten.logspace.default),
    **{getattr(torch, n): _window(n) for n in ("hann_window", "hamming_window", "blackman_window", "bartlett_window")},
}
