"""The arguments of a call, or its results, in a safetensors file: bytes, layouts, and shared memory.

A file holds whole storages as bytes (`storage.0`, ...). Its metadata has one entry for each argument: a tensor's dtype,
shape, stride and offset in elements, storage and device, or a number. Tensors that shared memory share it again when
read.

Source: the safetensors format, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dovetail.artifact.json_text import read_json
from dovetail.artifact.operand_json import read_device, read_named
from dovetail.artifact.regular_file import check_regular
from dovetail.errors import BadArtifact, NotSerializable

FORMAT = "dovetail call"


def save_call(path: str | Path, items: Sequence[Any]) -> None:
    """Write tensors, numbers and None to a file, which is replaced if it exists.

    Raises: NotSerializable for anything else, for subclasses of tensors, and for tensors that are not strided or
    have no memory (meta and fake ones); before the file is touched.
    """
    storages: dict[int, tuple[str, torch.Tensor]] = {}
    entries = [_entry(item, position, storages) for position, item in enumerate(items)]
    metadata = {"format": FORMAT, "items": json.dumps(entries, allow_nan=False)}
    save_file(dict(storages.values()), str(path), metadata)


def load_call(path: str | Path) -> list[Any]:
    """What `save_call` wrote, in memory of its own.

    Raises: BadArtifact for a file that is missing or no such file, or when a device is not here.
    """
    try:
        check_regular(path)
        with safe_open(str(path), framework="pt") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError("it was not written by dovetail")
            entries = read_json(metadata["items"].encode())
            memory: dict[str, torch.Tensor] = {}
            return [_made(entry, file, memory) for entry in entries]
    except (
        OSError,
        SafetensorError,
        LookupError,
        ValueError,
        TypeError,
        RuntimeError,
        AttributeError,
        OverflowError,
    ) as error:
        hint = "write it again with dovetail.artifact.call.save_call, on a machine like this one"
        raise BadArtifact(path=path, expected="the tensors of a call", reason=error, hint=hint) from error


def _entry(item: object, position: int, storages: dict[int, tuple[str, torch.Tensor]]) -> dict[str, Any]:
    if item is None or isinstance(item, bool | int | str):
        return {"kind": "plain", "value": item}
    if isinstance(item, float):
        return {"kind": "float", "value": item if math.isfinite(item) else str(item)}
    what = f"item {position}"
    if not isinstance(item, torch.Tensor):
        raise _refusal(what, f"it is a {type(item).__name__}", "give tensors and numbers, flattened")
    is_plain = type(item) in (torch.Tensor, torch.nn.Parameter) and item.layout is torch.strided
    if not is_plain or item.is_meta or item.is_neg():
        kind = f"a {type(item).__name__} ({item.layout}, {item.device})"
        raise _refusal(what, f"it is {kind}", "give plain strided tensors that have memory")
    memory = item.detach().untyped_storage()
    key = memory.data_ptr() if memory.nbytes() else -1 - position  # storages without bytes all begin at 0
    if key not in storages:
        whole = torch.empty(0, dtype=torch.uint8, device=item.device).set_(memory)
        storages[key] = (f"storage.{len(storages)}", whole)
    return {
        "kind": "tensor",
        "dtype": str(item.dtype).removeprefix("torch."),
        "shape": list(item.shape),
        "stride": list(item.stride()),
        "offset": item.storage_offset(),
        "storage": storages[key][0],
        "device": str(item.device),
        "requires_grad": item.requires_grad,
        "is_conj": item.is_conj(),
    }


def _refusal(what: str, reason: str, hint: str) -> NotSerializable:
    return NotSerializable(what=what, reason=reason, hint=hint)


def _made(entry: Mapping[str, Any], file: Any, memory: dict[str, torch.Tensor]) -> Any:
    if entry["kind"] == "float" and type(entry["value"]) in (float, str):
        return float(entry["value"])
    if entry["kind"] == "plain" and type(entry["value"]) in (type(None), bool, int, str):
        return entry["value"]
    if entry["kind"] != "tensor":
        raise ValueError(f"{entry['kind']!r} is not a kind of item, or has another value")
    name, device = entry["storage"], read_device(entry["device"])
    if name not in memory:
        stored = file.get_tensor(name)
        memory[name] = torch.empty(stored.numel(), dtype=torch.uint8, device=device).copy_(stored)
    dtype = read_named("dtype", entry["dtype"])
    place = _checked_place(entry, dtype, memory[name].numel())
    tensor = torch.empty(0, dtype=dtype, device=device).set_(memory[name].untyped_storage(), *place)
    tensor = tensor.conj() if entry["is_conj"] else tensor
    return tensor.requires_grad_(entry["requires_grad"])


def _checked_place(
    entry: Mapping[str, Any], dtype: torch.dtype, size_bytes: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset, shape and strides of a tensor that lies in its storage: `set_` would make the storage larger."""
    offset, shape, stride = entry["offset"], entry["shape"], entry["stride"]
    numbers = [offset, *shape, *stride]
    if len(shape) != len(stride) or any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
        raise ValueError("a tensor has an impossible shape or strides")
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
    if (offset + reach) * dtype.itemsize > size_bytes and reach:
        raise ValueError("a tensor reaches beyond its storage")
    if offset * dtype.itemsize > size_bytes:
        raise ValueError("a tensor begins beyond its storage")
    return offset, tuple(shape), tuple(stride)
