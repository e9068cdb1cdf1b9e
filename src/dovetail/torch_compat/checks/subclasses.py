"""Checks of `torch_compat.subclasses`."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.torch_compat import subclasses
from dovetail.torch_compat.checks.difference import first_difference


class _Pair(torch.Tensor):
    """Two tensors of one shape."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> _Pair:
        made: _Pair = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        made.a, made.b = a, b
        return made

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: object, size: object, stride: object) -> _Pair:
        return _Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError("no operator is meant to run on it")


def check_is_wrapper() -> str | None:
    """A wrapper is told from a plain tensor."""
    x = torch.zeros(2)
    found = (subclasses.is_wrapper(_Pair(x, x)), subclasses.is_wrapper(x))
    return first_difference(("a wrapper and a plain tensor", found, (True, False)))


def check_is_wrapper_type() -> str | None:
    """The class of a wrapper is told from Tensor and Parameter."""
    found = tuple(subclasses.is_wrapper_type(t) for t in (_Pair, torch.Tensor, torch.nn.Parameter))
    return first_difference(("wrapper, tensor, parameter", found, (True, False, False)))


class _Plain(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class _Told(torch.Tensor):
    pass


def check_decides_operators() -> str | None:
    """Classes that are asked what functions do with their tensors are told from those that switch that off."""
    classes = (torch.Tensor, torch.nn.Parameter, _Plain, _Told, torch.nn.UninitializedParameter)
    found = tuple(subclasses.decides_operators(cls) for cls in classes)
    return first_difference(("which classes decide", found, (False, False, False, True, True)))


def check_take_apart() -> str | None:
    """A nested wrapper gives its plain tensors, depth first."""
    x, y, z = torch.zeros(2), torch.ones(2), torch.ones(2)
    tensors, layout = subclasses.take_apart(_Pair(_Pair(x, y), _Pair(z, x)))
    same = [a is b for a, b in zip(tensors, (x, y, z, x), strict=True)]
    return first_difference(("the tensors", same, [True] * 4), ("the size", layout.size, (2,)))


def check_put_together() -> str | None:
    """What was taken apart is put together over other tensors."""
    x = torch.zeros(2)
    _, layout = subclasses.take_apart(_Pair(x, x))
    made = subclasses.put_together(layout, [torch.ones(2), torch.full((2,), 3.0)])
    found = (type(made), made.a.tolist(), made.b.tolist())
    return first_difference(("the wrapper", found, (_Pair, [1.0, 1.0], [3.0, 3.0])))


def check_as_parameter() -> str | None:
    """The marked wrapper passes for a parameter and is the same object."""
    x = torch.zeros(2)
    pair = _Pair(x, x)
    found = subclasses.as_parameter(pair)
    return first_difference(("a parameter", (found is pair, isinstance(pair, torch.nn.Parameter)), (True, True)))


CHECKS = (
    *(check_as_parameter, check_is_wrapper, check_is_wrapper_type, check_decides_operators),
    *(check_take_apart, check_put_together),
)
