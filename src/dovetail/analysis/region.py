"""Strided regions: which bytes of which memory a tensor occupies.

Region("s", 8, (2, 3), (16, 4), 4)      elements at bytes 8, 12, 16 and 24, 28, 32 of "s", four bytes each
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from dovetail.errors import UnsupportedTensor
from dovetail.ir.convert import size_of
from dovetail.ir.program import TensorMeta
from dovetail.ir.sizes import Size, product
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.fakes import is_fake


@dataclass(frozen=True, slots=True)
class Region:
    """A strided region of one memory.

    storage: what identifies the memory; regions of different storages share nothing. start_bytes: place of the first
    element. sizes: elements in each dimension. strides_bytes: distance of neighbours in each dimension, as many as
    sizes. itemsize: bytes of one element. Every number but itemsize may be a size expression.
    """

    storage: Hashable
    start_bytes: Size
    sizes: tuple[Size, ...]
    strides_bytes: tuple[Size, ...]
    itemsize: int

    @staticmethod
    def of_tensor(tensor: torch.Tensor) -> Region:
        """The region of a strided tensor.

        Real tensors are told apart by address, so that two storages over one piece of memory (two tensors made from one
        NumPy array) are seen to share it. Fake and meta tensors, and subclasses without memory of their own, are told
        apart by storage; keep them alive as long as the region is used.

        Raises: UnsupportedTensor when the tensor is not strided, or is a stand-in of vmap or grad.
        """
        if tensor.layout is not torch.strided:
            kind = f"a {tensor.layout} tensor"
            raise UnsupportedTensor(name="the tensor", kind=kind, hint="convert it with .to_dense()")
        itemsize = tensor.element_size()
        if not (tensor.is_meta or is_fake(tensor)):
            address = _address(tensor)
            if address or tensor.numel() == 0:
                strides = tuple([step * itemsize for step in tensor.stride()])
                return Region(("memory", tensor.device), address, tuple(tensor.shape), strides, itemsize)
        try:
            key = storage_key(tensor)
        except NotImplementedError as error:  # a batched tensor has neither an address nor a storage
            hint = "call it outside torch.func transforms"
            raise UnsupportedTensor(name="the tensor", kind="inside a transform", hint=hint) from error
        return Region(
            storage=("storage", key),
            start_bytes=_in_bytes(size_of(tensor.storage_offset()), itemsize),
            sizes=tuple(map(size_of, tensor.shape)),
            strides_bytes=tuple(_in_bytes(size_of(step), itemsize) for step in tensor.stride()),
            itemsize=itemsize,
        )

    @staticmethod
    def of_meta(meta: TensorMeta) -> Region:
        """The region that the description of a tensor names; its storage is known within its program."""
        itemsize = meta.dtype.itemsize
        return Region(
            storage=("program", meta.storage),
            start_bytes=_in_bytes(meta.offset, itemsize),
            sizes=meta.shape,
            strides_bytes=tuple(_in_bytes(step, itemsize) for step in meta.stride),
            itemsize=itemsize,
        )


RegionLike: TypeAlias = "Region | torch.Tensor | TensorMeta"


def region_of(place: RegionLike) -> Region:
    """The region of a tensor or of a description; a region is its own.

    Raises: TypeError for anything else; UnsupportedTensor when the tensor is not strided.
    """
    if isinstance(place, Region):
        return place
    if isinstance(place, torch.Tensor):
        return Region.of_tensor(place)
    if isinstance(place, TensorMeta):
        return Region.of_meta(place)
    raise TypeError(f"not a tensor, a TensorMeta or a Region: {place!r}")


def _address(tensor: torch.Tensor) -> int:
    """Where the first element lies; 0 for a wrapper around other tensors."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a tensor of functionalization, say
        return 0


def _in_bytes(size: Size, itemsize: int) -> Size:
    return size * itemsize if isinstance(size, int) else product((size, itemsize))


def extent_bytes(meta: TensorMeta) -> tuple[int, int] | None:
    """First byte and one past the last byte of a region in its storage; None when a size is symbolic."""
    return _extent(Region.of_meta(meta))


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte address that a real tensor occupies.

    Raises: ValueError when the tensor is symbolic, hence not a real one.
    """
    extent = _extent(Region.of_tensor(tensor))
    if extent is None:
        raise ValueError("a tensor of symbolic size has no addresses")
    return extent


def _extent(region: Region) -> tuple[int, int] | None:
    first = end = region.start_bytes
    if not isinstance(first, int) or not isinstance(end, int):
        return None
    is_empty = False
    for size, step in zip(region.sizes, region.strides_bytes, strict=True):
        if not isinstance(size, int) or not isinstance(step, int):
            return None
        is_empty = is_empty or size <= 0
        reach = (size - 1) * step
        first, end = (first, end + reach) if reach >= 0 else (first + reach, end)
    start = region.start_bytes
    assert isinstance(start, int), "checked above"
    return (start, start) if is_empty else (first, end + region.itemsize)
