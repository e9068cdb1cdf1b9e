"""Memory that machine code takes is let go when a call ends, whatever of its results is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.execute.native import clusters
from dovetail.execute.native.arrange import OpenRow
from dovetail.execute.native.call_memory import CallMemory, call_memory
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import TensorMeta, Value
from tests.execute.native.programs import aten, calls_counted, compiled, drawn_program, outcome
from tests.execute.native.segments import Segment, drawn_segment
from tests.rotation import rotated

pytest.importorskip("llvmlite")


def test_what_only_unread_rows_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, draft = calls_counted(monkeypatch), Segment()
    x = draft.input(torch.randn(8, 16))
    kept = draft.call(aten.mul.Tensor, x, 2.0)
    summed = draft.call(aten.sum.dim_IntList, x, [0], True)
    draft.call(aten.mul.Tensor, kept, draft.call(aten.expand.default, summed, [8, -1]))
    code = compiled(draft.program([kept]))
    arguments = draft.arguments()
    report = measure_peak(lambda: code(list(arguments)))
    assert answers == [0]
    assert report.end_bytes == 8 * 16 * 4


@pytest.mark.parametrize("seed", rotated(range(200), of=20))
def test_nothing_is_left_behind(seed: int) -> None:
    draft, program = drawn_program(seed) if seed % 2 else drawn_segment(seed)
    arguments, code = draft.arguments(), compiled(program)
    assert measure_peak(lambda: len(code(list(arguments)))).end_bytes == 0


def _as_little_as_can_be(
    rows: Sequence[OpenRow],
    inner: Collection[int],
    results: Collection[Value],
    sizes: Mapping[int, int],
    scratch: Sequence[int],
    most: float,
    rooms: Mapping[int, int] = MappingProxyType({}),
) -> CallMemory | None:
    """The memory of a call that may take no more than what is needed at once; checked by itself."""
    touched = [set(row.touched) for row in rows]
    spans = {x: [at for at, found in enumerate(touched) if x in found] for x in inner}
    held = list(scratch)
    for at in range(len(rows)):
        held[at] += sum(sizes[x] for x, found in spans.items() if found and found[0] <= at <= found[-1])
        held[at] += sum(
            sizes[value.tensor.storage]
            for value in results
            if any(value.tensor.storage in found for found in touched[: at + 1])
        )
    needed = max(held, default=0)
    assert (call_memory(rows, inner, results, sizes, scratch, most, rooms) is None) == (needed > most)
    assert call_memory(rows, inner, results, sizes, scratch, needed - 1, rooms) is None
    if needed > most:
        return None
    memory = call_memory(rows, inner, results, sizes, scratch, needed, rooms)
    assert memory is not None
    pieces = {piece.value: piece for piece in memory.pieces}
    used = [(memory.addresses[x], sizes[x], found) for x, found in spans.items() if found]
    used += [(address, rooms[at], [at]) for at, address in memory.rooms.items()]
    for number, (address, size, found) in enumerate(used):
        piece = pieces[address.value]
        assert piece.last is not None
        assert piece.first <= found[0] <= found[-1] <= piece.last
        assert address.behind + size <= piece.size
        for other, other_size, others in used[:number]:
            shares = other.value is address.value
            shares &= other.behind < address.behind + size and address.behind < other.behind + other_size
            assert not shares or others[-1] < found[0] or found[-1] < others[0]
    for at in range(len(rows)):
        there = [
            piece.size for piece in pieces.values() if piece.first <= at and (piece.last is None or at <= piece.last)
        ]
        assert sum(there) + scratch[at] - (rooms[at] if at in memory.rooms else 0) <= needed
    return memory


@pytest.mark.parametrize("seed", rotated(range(400), of=20))
def test_memory_for_storages_in_turns(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, program = drawn_program(seed) if seed % 2 else drawn_segment(seed)
    expected = outcome(compiled(program, native=False), draft.arguments())
    monkeypatch.setattr(clusters, "call_memory", _as_little_as_can_be)
    code = compiled(program)
    assert outcome(code, draft.arguments()) == expected
    assert outcome(code, draft.arguments()) == expected, "the second time"


def test_storages_of_one_size_take_turns() -> None:
    """A block would be there while a row takes much for itself, and two storages are needed at once elsewhere."""
    touched = [{at, at + 1} for at in range(40)]
    touched[20] = {20}
    touched[21] = {21, 22}
    rows: list[Any] = [SimpleNamespace(touched=dict.fromkeys(each)) for each in touched]
    sizes, scratch = dict.fromkeys(range(41), 64), [0] * 40
    scratch[20] = 640
    memory = call_memory(rows, range(41), (), sizes, scratch, 640 + 64)
    assert memory is not None
    assert len(memory.pieces) == 3
    assert call_memory(rows, range(41), (), sizes, scratch, 640 + 63) is None


def test_a_block_has_what_rows_take_for_themselves_and_not_what_is_too_large_for_it() -> None:
    """The first row needs most, and a result is there at the end: no block that stays so long has all of that."""
    touched = [{0}, {0, 1}, {1, 2}, {2, 3}, {3, 4}]
    rows: list[Any] = [SimpleNamespace(touched=dict.fromkeys(each)) for each in touched]
    result = Value("result", TensorMeta((16,), (1,), 0, torch.float32, torch.device("cpu"), 4))
    sizes, scratch = {0: 6400, 1: 640, 2: 640, 3: 64, 4: 64}, [3200, 0, 640, 0, 7]
    memory = _as_little_as_can_be(rows, range(4), [result], sizes, scratch, 9600, {0: 3200, 2: 640})
    assert memory is not None
    assert len(memory.pieces) == 3, "one for the largest, a block, and the result"
    assert memory.rooms.keys() == {0, 2}


def test_images_that_are_copied_lie_in_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CallMemory | None] = []
    plan = clusters.call_memory
    monkeypatch.setattr(clusters, "call_memory", lambda *given: found.append(plan(*given)) or found[-1])
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        frozen = dovetail.freeze(model, (x,), passes="fast", executors=("native", "aten"))
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(frozen(2 * x), model(2 * x), rtol=1e-5, atol=1e-5)
    assert any(memory is not None and memory.rooms for memory in found)
