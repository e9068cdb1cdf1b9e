"""Which bytes tensors hold in common, byte by byte, and which writes have no single meaning because of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.torch_compat.dispatch import DispatchMode, Overload, schema_of, storage_key, tags_of


class OrderMatters(Exception):
    """An operator writes bytes that it also reads elsewhere, so the result depends on the order of its loop."""


def bytes_of(tensor: torch.Tensor) -> frozenset[int]:
    """The addresses of the bytes of a small tensor."""
    steps = [range(0, n * s, s) if s else (0,) * n for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    start, width = tensor.data_ptr(), tensor.element_size()
    firsts = {start + width * sum(place) for place in itertools.product(*steps)}
    return frozenset(first + k for first in firsts for k in range(width))


def shared_bytes(a: torch.Tensor, b: torch.Tensor) -> frozenset[int]:
    """The addresses that both tensors show: a write there by one is seen in the other."""
    return bytes_of(a) & bytes_of(b) if storage_key(a) == storage_key(b) else frozenset()


class WritesHaveOneMeaning(DispatchMode):
    """While active, an operator raises OrderMatters when what it gives depends on the order of its loop.

    That is when it writes a tensor whose elements share bytes, or reads some of the bytes that it writes, except
    element by element. Eager refuses most of these writes by itself. Copying floating-point numbers into integers is
    refused, too: what becomes of a number out of range depends on the loop.

    written: the addresses of all bytes that operators wrote so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Overload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Check the writes of one call, then make it."""
        run: Callable[..., Any] = func
        named = dict(kwargs or {})
        if schema_of(func).is_mutable:
            self._check(func, args, named)
        return run(*args, **named)

    def _check(self, func: Overload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        arguments = schema_of(func).arguments
        given = [*zip(arguments, args, strict=False), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
        element_by_element = torch.Tag.pointwise in tags_of(func) or schema_of(func).name == "copy_"
        for argument, value in given:
            if not argument.is_write or not isinstance(value, torch.Tensor):
                continue
            own = bytes_of(value)
            if len(own) < value.numel() * value.element_size():
                raise OrderMatters(f"{func} writes a tensor whose elements share bytes")
            self.written |= own
            for other in _tensors(read for place, read in given if place is not argument):
                if other.dtype.is_floating_point and not value.dtype.is_floating_point:
                    raise OrderMatters(f"{func} writes floating-point numbers into integers")
                if not own.isdisjoint(bytes_of(other)) and not (element_by_element and _same_place(value, other)):
                    raise OrderMatters(f"{func} reads some of the bytes that it writes")


def _tensors(values: Iterator[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(iter(value))


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether each element of one tensor lies where the same element of the other lies."""
    alike = a.shape == b.shape and a.stride() == b.stride() and a.element_size() == b.element_size()
    return alike and a.data_ptr() == b.data_ptr()
