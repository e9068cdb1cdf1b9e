"""The cheapest Python call that reaches exactly one operator overload.

`torch.add(a, b)` takes about two thirds of the time of `torch.ops.aten.add.Tensor(a, b)`, a method too. Whether a
binding calls the wanted overload, with the wanted arguments, is not guessed: it is called once on meta tensors under a
dispatch mode that notes what arrives and stops it there. The answer is kept per overload and kinds of arguments.
Bindings that are written in Python are left out: they may make something else of the results (`unique_consecutive`
drops some).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import Any

import torch

from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Value
from dovetail.ir.sizes import SizeExpr
from dovetail.ir.text import Names, plain_call
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.dispatch import Overload, PlainMode, is_composite, python_bindings, schema_of

_PROBE_SIZE = 2
_ITEM = torch.ops.aten._local_scalar_dense.default


class _Arrived(Exception):
    """Stops a probed call; carries what arrived."""

    def __init__(self, func: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.func = func
        self.call = _by_name(func, args, kwargs)


class _Stop(PlainMode):
    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        raise _Arrived(func, args, kwargs or {})


_KNOWN: dict[object, str | None] = {}
_METHOD = "method"


def cheapest_call(names: Names, node: Node) -> str:
    """The call expression of a node: a method, a Python function, or the operator itself."""
    if isinstance(node.target, Prim):
        return f"{names.constant(node.target, node.target.name)}({names.arguments(node)})"
    if not isinstance(node.target, Overload):
        return plain_call(names, node)
    if node.target is _ITEM and isinstance(node.args[0], Value) and all(n == 1 for n in node.args[0].tensor.shape):
        return f"{node.args[0].name}.item()"  # a third of the time, and nothing else: it refuses several elements
    binding = _binding_for(node, node.target)
    name = schema_of(node.target).name
    if binding is None:
        return plain_call(names, node)
    if binding == _METHOD:
        assert isinstance(node.args[0], Value), "methods are called on values"
        return f"{node.args[0].name}.{name}({names.arguments(node, skip=1)})"
    for prefix, function in python_bindings(name):
        if prefix == binding:
            public = prefix == "torch" and getattr(torch, name, None) is function
            callee = f"torch.{name}" if public else names.constant(function, f"{prefix}_{name}")
            return f"{callee}({names.arguments(node)})"
    raise AssertionError(f"the binding {binding} of {name} is gone")


def _binding_for(node: Node, target: Overload) -> str | None:
    key = (target, _kinds(node.args), tuple((name, _kinds(a)) for name, a in node.kwargs))
    if key not in _KNOWN:
        _KNOWN[key] = _probe(node, target)
    return _KNOWN[key]


def _probe(node: Node, target: Overload) -> str | None:
    args = [_materialize(a) for a in node.args]
    kwargs = {name: _materialize(a) for name, a in node.kwargs}
    name = schema_of(target).name
    if schema_of(target).namespace != "aten" or name.startswith("__"):
        return None
    method = getattr(torch.Tensor, name, None)
    candidates: list[tuple[str, Any]] = []
    if callable(method) and node.args and isinstance(node.args[0], Value):
        candidates.append((_METHOD, method))
    candidates += python_bindings(name)
    for label, function in candidates:
        if not isinstance(function, FunctionType) and _reaches(function, target, args, kwargs):
            return label
    return None


def _reaches(function: Any, target: Overload, args: list[Any], kwargs: dict[str, Any]) -> bool:
    whole = below_autograd() if is_composite(target) else nullcontext()  # or its parts would arrive
    try:
        with torch.no_grad(), _Stop(), whole:
            function(*args, **kwargs)
    except _Arrived as arrived:
        return arrived.func is target and _same(arrived.call, _by_name(target, args, kwargs))
    except (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError):
        return False
    return False


def _by_name(func: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = schema_of(func).arguments
    values = {a.name: a.default for a in arguments if a.has_default}
    values.update({a.name: value for a, value in zip(arguments, args, strict=False)})
    values.update(kwargs)
    return values


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b)
    return type(a) is type(b) and bool(a == b)


def _materialize(operand: Operand) -> Any:
    """A stand-in of its own for each operand, also where two are one value: other nodes share the answer, and with one
    stand-in for both, a binding that swaps them would pass.
    """
    if isinstance(operand, Value):
        if not operand.is_tensor:
            return _PROBE_SIZE
        meta = operand.tensor
        shape = [s if isinstance(s, int) else _PROBE_SIZE for s in meta.shape]
        stride = [s if isinstance(s, int) else 1 for s in meta.stride]
        return torch.empty_strided(shape, stride, dtype=meta.dtype, device="meta")
    if isinstance(operand, SizeExpr):
        return _PROBE_SIZE
    if isinstance(operand, tuple | list):
        return type(operand)(_materialize(item) for item in operand)
    return operand


def _kinds(operand: Operand) -> object:
    """Equal for operands that Python's argument parser treats alike."""
    if isinstance(operand, Value):
        return ("tensor", len(operand.tensor.shape) == 0, operand.tensor.dtype) if operand.is_tensor else "number"
    if isinstance(operand, tuple | list):
        return tuple(map(_kinds, operand))
    if isinstance(operand, SizeExpr):
        return int
    return operand if operand is None or isinstance(operand, bool) else type(operand)
