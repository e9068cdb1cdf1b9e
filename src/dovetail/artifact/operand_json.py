"""Operands as plain data for JSON, and back. Anything JSON cannot express is an object with one entry:

`{"value": name}`, `{"size": ...}`, `{"tuple": [...]}`, `{"torch_size": [...]}`, `{"float": "nan"}`,
`{"complex": [re, im]}`, `{"bytes": hexadecimal}`, `{"dtype": ...}`, `{"device": ...}`, `{"layout": ...}`,
`{"memory_format": ...}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail.artifact.source_names import checked_size
from dovetail.ir.convert import QUANTIZED
from dovetail.ir.program import Operand, Value
from dovetail.ir.sizes import SizeExpr
from dovetail.ir.sizes import to_json as size_to_json

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_BY_NAME: Mapping[tuple[str, str], Any] = {
    (kind, name): found
    for kind, type_ in _NAMED.items()
    for name, found in vars(torch).items()
    if isinstance(found, type_) and found not in QUANTIZED
}
_DEVICES = frozenset({"cpu", "cuda", "meta"})
_INFINITIES = ("nan", "inf", "-inf")


def operand_to_json(operand: Operand) -> Any:
    """The operand as data. Raises: ValueError for an object that has no coding."""
    if operand is None or type(operand) in (bool, int, str):
        return operand
    if isinstance(operand, Value):
        return {"value": operand.name}
    if type(operand) is list:
        return [operand_to_json(item) for item in operand]
    if isinstance(operand, torch.Size | tuple) and type(operand) in (torch.Size, tuple):
        kind = "tuple" if type(operand) is tuple else "torch_size"
        return {kind: [operand_to_json(item) for item in operand]}
    return _rare_to_json(operand)


def _rare_to_json(operand: Operand) -> Any:
    if type(operand) is float:
        return operand if math.isfinite(operand) else {"float": str(operand)}
    if type(operand) is complex:
        return {"complex": [operand_to_json(operand.real), operand_to_json(operand.imag)]}
    if isinstance(operand, SizeExpr):
        return {"size": size_to_json(operand)}
    if type(operand) is bytes:
        return {"bytes": operand.hex()}
    if isinstance(operand, torch.device):
        return {"device": str(operand)}
    for kind, type_ in _NAMED.items():
        if isinstance(operand, type_):
            return {kind: str(operand).removeprefix("torch.")}
    raise ValueError(f"an operand is a {type(operand).__name__}")


def operand_from_json(data: Any, value: Callable[[str], Value]) -> Operand:
    """The operand that `operand_to_json` wrote. value: the value of a name.

    Raises: ValueError for other data; what `value` raises.
    """
    if data is None or type(data) in (bool, int, str, float):
        return data
    if isinstance(data, list):
        return [operand_from_json(item, value) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError(f"{data!r} is not an operand")
    ((kind, content),) = data.items()
    if kind in ("value", "device", "bytes", *_NAMED) and not isinstance(content, str):
        raise ValueError(f"{content!r} is not a name")
    if kind == "value":
        return value(content)
    if kind in ("tuple", "torch_size", "complex"):
        return _sequence(kind, content, value)
    if kind == "size":
        return checked_size(content)
    return _constant(kind, content)


def _constant(kind: str, content: Any) -> Operand:
    if kind == "float":
        return _special_float(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    return read_device(content) if kind == "device" else read_named(kind, content)


def _sequence(kind: str, content: Any, value: Callable[[str], Value]) -> Operand:
    if not isinstance(content, list):
        raise ValueError(f"{content!r} is not a valid {kind}")
    if kind == "complex":
        if len(content) != 2:
            raise ValueError(f"{content!r} is not a complex number")
        return complex(*(part if type(part) is float else _special_float_of(part) for part in content))
    items = [operand_from_json(item, value) for item in content]
    if kind == "tuple":
        return tuple(items)
    if not all(type(item) is int for item in items):
        raise ValueError(f"{content!r} is not a torch.Size")
    return torch.Size(items)  # type: ignore[arg-type]


def _special_float_of(part: Any) -> float:
    if not isinstance(part, dict) or set(part) != {"float"}:
        raise ValueError(f"{part!r} is not part of a complex number")
    return _special_float(part["float"])


def _special_float(content: Any) -> float:
    if content not in _INFINITIES:
        raise ValueError(f"{content!r} is not a number")
    return float(content)


def read_named(kind: str, name: object) -> Any:
    """The dtype, layout or memory format that torch calls so. Raises: ValueError when it has none."""
    found = _BY_NAME.get((kind, name)) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"{name!r} is not a valid {kind} of this torch")
    return found


def read_device(name: object) -> torch.device:
    """The device of this name. Raises: ValueError when torch knows none."""
    try:
        if isinstance(name, str):
            device = torch.device(name)
            if device.type in _DEVICES:
                return device
            raise ValueError(f"{name!r} is not a device that a file can name")
    except RuntimeError as error:
        raise ValueError(f"{name!r} is not a device of this torch: {error}") from error
    raise ValueError(f"{name!r} is not a device")
