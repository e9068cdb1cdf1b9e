"""Tensors in a container: their bytes as a safetensors file, and beside it, in JSON, how each lies in them.

    constants.safetensors    each storage once, aligned to 64 bytes
    constants.json           {"format": "dovetail tensors", "version": 1,
                              "storages": [{"name", "dtype", "shape", "bytes"}],
                              "tensors": {name: {"storage", "dtype", "shape", "stride", "offset", "is_parameter", ...}}}

A storage that one whole, contiguous tensor fills is called like the tensor and has its dtype and shape, so that any
reader of safetensors shows weights by name. Any other storage is bytes, `storage.N`. Filling of zeros (`filling.N`)
keeps storages aligned, since the format allows no gaps.

Tensors that shared memory share it again. A conjugated view comes back as a conjugated view; so does a negated one.

Source: the safetensors format, https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dovetail.artifact.container import Container
from dovetail.artifact.json_text import json_bytes
from dovetail.errors import NotSerializable

FORMAT = "dovetail tensors"
VERSION = 1

_ALIGNMENT = 64
_MAX_NUMBER = 1 << 62
# What the safetensors format calls the dtypes it knows. A tensor of any other dtype is stored as bytes.
_KNOWN_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *_KNOWN_DTYPES,
        *(torch.complex128, torch.complex32),
        *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
        *(torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2),
        *(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)),
    )
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A storage as the safetensors file lists it. bytes: without filling."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class _Laid:
    """A tensor: where it lies in which storage; shape, stride and offset in elements."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_parameter: bool
    requires_grad: bool
    is_conj: bool
    is_neg: bool


def save_tensors(tensors: Mapping[str, torch.Tensor], stem: str = "constants") -> dict[str, bytes | TensorBytes]:
    """Members for `write_container`: `<stem>.safetensors` and `<stem>.json`.

    The bytes are read from the tensors' own memory when they are written: nothing is copied, and the tensors are not to
    change before then. Each storage is written whole, whatever part of it is seen, because views are made by offset.

    Raises: NotSerializable for subclasses of tensors, sparse, quantized, meta and fake tensors, those that lie on
    another device, and two storages over parts of the same memory (arrays of NumPy can be).
    """
    memory: dict[int, tuple[int, torch.Tensor]] = {}  # address -> number of the storage, and all of its bytes
    laid = {name: _laid_out(name, tensor, memory) for name, tensor in tensors.items()}
    _refuse_overlaps(memory)
    wholes = [whole for _, whole in memory.values()]
    stored = _listing([whole.numel() for whole in wholes], laid)
    index = {
        "format": FORMAT,
        "version": VERSION,
        "storages": [asdict(storage) for storage in stored],
        "tensors": {name: asdict(tensor) for name, tensor in laid.items()},
    }
    return {f"{stem}.safetensors": TensorBytes(_head(stored), wholes), f"{stem}.json": json_bytes(index)}


class TensorBytes:
    """The chunks of a safetensors file: its head, then each storage with its filling. It may be repeated."""

    def __init__(self, head: bytes, wholes: Sequence[torch.Tensor]) -> None:
        self._head = head
        self._wholes = tuple(wholes)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        for whole in self._wholes:
            if whole.numel():
                yield whole.numpy().data
                yield bytes(_filling(whole.numel()))

    def __bytes__(self) -> bytes:
        return b"".join(self)


def load_tensors(
    container: Container, stem: str = "constants", *, private: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors that `save_tensors` gave members for, over the mapped file: no bytes are copied.

    private: names of tensors that will be written; they, and those that share memory with them, get memory of their
    own. The others share pages with other processes until they are written, which the file never sees.

    Raises: BadArtifact when the members are not such members. KeyError for a private name that is not there.
    """
    index_name, data_name = f"{stem}.json", f"{stem}.safetensors"
    stored, laid = container.decode(index_name, _read_index)
    data = container.map(data_name)
    head = _head(stored)
    if len(data) != len(head) + sum(s.bytes + _filling(s.bytes) for s in stored) or data[: len(head)] != head:
        raise container.refusal(data_name, f"it does not hold what {index_name} lists")
    own = {laid[name].storage for name in private}
    # What is made in inference mode could not be written outside it.
    with torch.inference_mode(False):
        return _mapped(container, data_name, len(head), stored, laid, own)


def _mapped(
    container: Container,
    data_name: str,
    at: int,
    stored: Sequence[_Stored],
    laid: Mapping[str, _Laid],
    own: Collection[int],
) -> dict[str, torch.Tensor]:
    data = container.map(data_name)
    memory: list[torch.Tensor] = []
    for number, storage in enumerate(stored):
        memory.append(_bytes_at(data, at, storage.bytes, number in own))
        if any(data[at + storage.bytes : at + storage.bytes + _filling(storage.bytes)]):
            raise container.refusal(data_name, "its filling is not zeros")
        at += storage.bytes + _filling(storage.bytes)
    return {name: _made(tensor, memory[tensor.storage]) for name, tensor in laid.items()}


def _laid_out(name: str, tensor: torch.Tensor, memory: dict[int, tuple[int, torch.Tensor]]) -> _Laid:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain or tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        layout = getattr(tensor, "layout", "")
        reason = f"it is a {type(tensor).__name__} ({layout}, {getattr(tensor, 'device', '')})"
        raise NotSerializable(what=f"tensor {name}", reason=reason, hint="keep plain strided tensors on the CPU")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise NotSerializable(what=f"tensor {name}", reason=f"its dtype is {dtype}", hint="convert it")
    whole = tensor.detach().untyped_storage()
    # Storages without bytes share nothing; all of them begin at 0.
    address = whole.data_ptr() if whole.nbytes() else -1 - len(memory)
    if address not in memory:
        memory[address] = (len(memory), torch.empty(0, dtype=torch.uint8, device="cpu").set_(whole))
    elif memory[address][1].numel() != whole.nbytes():
        raise _overlap(name)
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    flags = (is_parameter, tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
    return _Laid(memory[address][0], dtype, shape, stride, int(tensor.storage_offset()), *flags)


def _refuse_overlaps(memory: Mapping[int, tuple[int, torch.Tensor]]) -> None:
    reach = 0
    for address, (number, whole) in sorted(memory.items()):
        if address >= 0 and address < reach:
            raise _overlap(f"in storage {number}")
        reach = max(reach, address + whole.numel())


def _overlap(name: str) -> NotSerializable:
    reason = "its storage partly overlaps another storage"
    return NotSerializable(what=f"tensor {name}", reason=reason, hint="clone one of the two, or make one a view")


def _listing(sizes: Sequence[int], laid: Mapping[str, _Laid]) -> list[_Stored]:
    """How the safetensors file lists each storage: as the first tensor that fills it, or as bytes."""
    listing = [_Stored(f"storage.{number}", "U8", (size,), size) for number, size in enumerate(sizes)]
    for name, tensor in laid.items():
        size = sizes[tensor.storage]
        is_free = listing[tensor.storage].name == f"storage.{tensor.storage}"
        if is_free and not name.startswith(("storage.", "filling.", "__")) and _fills(tensor, size):
            listing[tensor.storage] = _Stored(name, _KNOWN_DTYPES[_DTYPES[tensor.dtype]], tensor.shape, size)
    return listing


def _fills(tensor: _Laid, size: int) -> bool:
    expected = []
    step = 1
    for length in reversed(tensor.shape):
        expected.append(step)
        step *= length
    dtype = _DTYPES[tensor.dtype]
    contiguous = tensor.stride == tuple(reversed(expected)) and tensor.offset == 0
    is_whole = contiguous and step * dtype.itemsize == size and dtype in _KNOWN_DTYPES
    return is_whole and not (tensor.is_conj or tensor.is_neg)


def _filling(size: int) -> int:
    return -size % _ALIGNMENT


def _head(stored: Sequence[_Stored]) -> bytes:
    """The head of the safetensors file, so long that the data behind it is aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "written_by": FORMAT}}
    at = 0
    for number, storage in enumerate(stored):
        end = at + storage.bytes
        entries[storage.name] = {"dtype": storage.dtype, "shape": storage.shape, "data_offsets": (at, end)}
        at = end + _filling(storage.bytes)
        if at > end:
            entries[f"filling.{number}"] = {"dtype": "U8", "shape": (at - end,), "data_offsets": (end, at)}
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_at(data: memoryview, at: int, size: int, is_private: bool) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    mapped = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=at)
    return mapped.clone() if is_private else mapped


def _empty(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.complex32:  # torch warns of those that it makes, not of those that it views
        return torch.empty(0, dtype=torch.int32, device="cpu").view(dtype)
    return torch.empty(0, dtype=dtype, device="cpu")


def _made(laid: _Laid, whole: torch.Tensor) -> torch.Tensor:
    tensor = _empty(_DTYPES[laid.dtype]).set_(whole.untyped_storage(), laid.offset, laid.shape, laid.stride)
    tensor = tensor.conj() if laid.is_conj else tensor
    if laid.is_neg:
        tensor = torch.ops.aten._neg_view.default(tensor)
    if laid.is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=laid.requires_grad)
    return tensor.requires_grad_(laid.requires_grad)


def _read_index(data: Any) -> tuple[tuple[_Stored, ...], dict[str, _Laid]]:
    if not isinstance(data, dict) or set(data) != {"format", "version", "storages", "tensors"}:
        raise ValueError("it lists no tensors")
    if data["format"] != FORMAT or data["version"] != VERSION or isinstance(data["version"], bool):
        raise ValueError(f"it is a {data['format']} of version {data['version']}")
    if not isinstance(data["storages"], list) or not isinstance(data["tensors"], dict):
        raise ValueError("it lists no tensors")
    laid = {name: _read_laid(name, entry) for name, entry in data["tensors"].items()}
    listed = [_record(_Stored, entry) for entry in data["storages"]]
    _check_storages(listed, laid)
    return tuple(listed), laid


def _check_storages(stored: Sequence[_Stored], laid: Mapping[str, _Laid]) -> None:
    """Each storage is listed as it would be written, and holds all elements of its tensors."""
    seen: dict[int, None] = {}
    for name, tensor in laid.items():
        seen[tensor.storage] = None
        if not 0 <= tensor.storage < len(stored):
            raise ValueError(f"tensor {name} lies in no storage")
        reach = 0
        if math.prod(tensor.shape):
            reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
        if (tensor.offset + reach) * _DTYPES[tensor.dtype].itemsize > stored[tensor.storage].bytes and reach:
            raise ValueError(f"tensor {name} reaches beyond its storage")
    if list(seen) != list(range(len(stored))):
        raise ValueError("its storages are not those of its tensors")
    if _listing([storage.bytes for storage in stored], laid) != list(stored):
        raise ValueError("its storages are not listed as they are written")


def _read_laid(name: str, entry: object) -> _Laid:
    laid: _Laid = _record(_Laid, entry)
    if laid.dtype not in _DTYPES:
        raise ValueError(f"tensor {name} has an unknown dtype")
    if len(laid.shape) != len(laid.stride):
        raise ValueError(f"tensor {name} has a shape of another rank than its strides")
    dtype = _DTYPES[laid.dtype]
    can_require = dtype.is_floating_point or dtype.is_complex
    if (laid.requires_grad and not can_require) or (laid.is_conj and not dtype.is_complex):
        raise ValueError(f"the description of tensor {name} is impossible")
    if laid.is_neg and dtype is torch.bool:
        raise ValueError(f"tensor {name} cannot be negated")
    return laid


def _record(cls: Any, entry: object) -> Any:
    """An instance from data with exactly its fields: numbers from 0 on, texts, truth values and lists of numbers."""
    names = cls.__slots__
    if not isinstance(entry, dict) or set(entry) != set(names):
        raise ValueError("an entry has unknown fields")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    numbers = {"storage", "offset", "bytes"}
    for name, value in values.items():
        if name in ("shape", "stride"):
            right = isinstance(value, tuple) and all(map(_is_number, value)) and math.prod(value) < _MAX_NUMBER
        elif name in numbers:
            right = _is_number(value)
        else:
            right = type(value) is (str if name in ("name", "dtype") else bool)
        if not right:
            raise ValueError(f"{value!r} is not a valid {name}")
    return cls(**values)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_NUMBER
