"""What stands between Python's tensors and a table: addresses that are put in, and version counters that move."""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from dovetail.torch_compat import native_tensors
from tests.execute.native.programs import aten, compiled
from tests.execute.native.segments import Segment

pytest.importorskip("llvmlite")

from dovetail.execute.native import table_text
from dovetail.execute.native.table_text import counter, filler, places_of


class Named(torch.Tensor):
    """A class of a user's."""


def _tensors() -> dict[str, torch.Tensor]:
    whole = torch.arange(12.0)
    return {
        "plain": whole,
        "a view": whole[3:].view(3, 3).t(),
        "a parameter": torch.nn.Parameter(torch.ones(3)),
        "of a user's class": torch.ones(4).as_subclass(Named),
        "whole numbers": torch.arange(3),
        "empty": torch.empty(0),
    }


def _filled(tensors: tuple[torch.Tensor, ...], written: int = 0, behind: int = 0) -> list[int]:
    places = places_of([[(at, behind)] for at in range(len(tensors))], written, [])
    table = filler()(bytes(8 * len(tensors)), places, tensors, b"")
    return list(struct.unpack(f"{len(tensors)}q", table))


def test_addresses_are_those_of_python() -> None:
    tensors = tuple(_tensors().values())
    assert _filled(tensors) == [tensor.data_ptr() for tensor in tensors]
    assert _filled(tensors, written=len(tensors)) == [tensor.data_ptr() for tensor in tensors]
    assert _filled(tensors[:5], behind=8) == [tensor.data_ptr() + 8 for tensor in tensors[:5]]
    assert _filled((torch.empty(0), torch.empty(3, device="meta")), behind=8) == [0, 0], "none without memory"


def test_slots_get_what_is_said() -> None:
    one, other = torch.ones(2), torch.ones(2)
    given = struct.pack("6q", *range(1, 7))
    table = filler()(
        given, places_of([[(4, 0), (1, 16)], [(2, 4)]], 1, [5, 3]), (one, other), struct.pack("qd", 7, 0.5)
    )
    start = one.data_ptr()
    expected = (1, start + 16, other.data_ptr() + 4, 0.5, start, 7)
    assert struct.unpack("3qd2q", table) == expected
    assert given == struct.pack("6q", *range(1, 7)), "it is a copy"


def test_what_is_refused() -> None:
    negative = torch.ones(2, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    with torch.inference_mode():
        inference = torch.ones(2)
    for tensors, written in (((negative,), 0), ((torch.ones(1), negative), 0), ((inference,), 1)):
        with pytest.raises(TypeError):
            _filled(tensors, written)
    assert _filled((inference,)) == [inference.data_ptr()], "it is only read"
    with torch.inference_mode():
        assert _filled((inference,), 1) == [inference.data_ptr()]


def test_what_python_raises_comes_through() -> None:
    class Failing(torch.Tensor):
        def data_ptr(self) -> int:
            raise RuntimeError("none here")

    made = torch.ones(2).as_subclass(Failing)
    before = sys.getrefcount(made)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="none here"):
            _filled((torch.ones(2), made, torch.ones(2)))
    gc.collect()
    assert sys.getrefcount(made) == before


def test_version_counters_move_as_often_as_a_tensor_is_there() -> None:
    tensors = _tensors()
    named = [tensors[name] for name in ("plain", "a parameter", "of a user's class", "plain")]
    before = [tensor._version for tensor in named]
    counter()(*named)
    assert [now._version - was for now, was in zip(named, before, strict=True)] == [2, 1, 1, 2]
    assert tensors["a view"]._version == tensors["plain"]._version, "views share theirs"


def test_nothing_leaks() -> None:
    tensors = tuple(_tensors().values())
    places = places_of([[(0, 0)] for _ in tensors], 0, [])
    before = [sys.getrefcount(tensor) for tensor in tensors]
    for _ in range(100):
        filler()(bytes(8), places, tensors, b"")
        counter()(*tensors[:3])
    assert [sys.getrefcount(tensor) for tensor in tensors] == before


def test_all_goes_by_way_of_python_where_handles_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    address = table_text.address

    def counted(tensor: torch.Tensor) -> int:
        asked.append(tensor)
        return address(tensor)

    monkeypatch.setattr(table_text, "handle_offset", lambda: None)
    monkeypatch.setattr(table_text, "address", counted)
    tensors = (torch.ones(2), torch.nn.Parameter(torch.ones(2)))
    assert _filled(tensors) == [tensor.data_ptr() for tensor in tensors]
    assert len(asked) == 2


def test_handles_are_found_here() -> None:
    assert native_tensors.handle_offset() is not None


def test_calls_of_clusters_leak_nothing() -> None:
    """Neither where all rows run, nor where they are refused."""
    draft = Segment()
    x = draft.input(torch.randn(5, 7))
    made = [draft.call(aten.mul.Tensor, x, 2.0), draft.call(aten.exp.default, x)]
    code = compiled(draft.program(made))
    assert code.source.count("native_call(") == 1
    (given,) = draft.arguments()
    results = code([given])
    assert [sys.getrefcount(result) for result in results] == [3, 3], "the tuple, the loop, and the call"
    for mode in (nullcontext(), _tiny_as_zero()):
        with mode:
            code([given])
            before, blocks = sys.getrefcount(given), sys.getallocatedblocks()
            for _ in range(500):
                code([given])
            assert sys.getrefcount(given) == before
            assert sys.getallocatedblocks() - blocks < 100


@contextmanager
def _tiny_as_zero() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
