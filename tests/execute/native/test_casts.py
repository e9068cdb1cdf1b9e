"""Conversions in clusters: torch's bits, and none whose result depends on the processor."""

from __future__ import annotations

import random

import pytest
import torch

from dovetail.execute.native.casts import cast_claim
from tests.execute.native.programs import aten, calls_counted, compiled, drawn_elements, outcome
from tests.execute.native.segments import Segment

pytest.importorskip("llvmlite")

_FLOATS = (torch.float32, torch.float64)
_WHOLE = (torch.bool, torch.int32, torch.int64)


def _given(generator: random.Random, dtype: torch.dtype, count: int, start: int) -> torch.Tensor:
    if dtype in _FLOATS:
        return drawn_elements(generator, count + start, dtype)[start:]
    numbers = [
        generator.choice((0, 1, -1, 7, 2**24 + 1, -(2**31), 2**31 - 1, 2**53 + 1, -(2**63))) for _ in range(count)
    ]
    return torch.tensor([0] * start + numbers).to(dtype)[start:]


@pytest.mark.parametrize("of", [*_FLOATS, *_WHOLE], ids=str)
@pytest.mark.parametrize("to", [*_FLOATS, *_WHOLE], ids=str)
def test_elements_are_converted_as_torch_does(
    of: torch.dtype, to: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = calls_counted(monkeypatch)
    generator, draft = random.Random(str((of, to))), Segment()
    for count in (1, 7, 64, 301):
        x = draft.input(_given(generator, of, count, generator.randrange(3)))
        made = draft.call(aten._to_copy.default, x, dtype=to)
        into = draft.input(_given(generator, to, count, 1))
        draft.call(aten.copy_.default, into, x)
        draft.outputs = [*getattr(draft, "outputs", []), made]  # type: ignore[attr-defined]
    large = draft.input(_given(generator, of, 40_000, 0).view(200, 200).t())
    more = draft.call(aten._to_copy.default, large, dtype=to)
    program = draft.program([*draft.outputs, more, *draft.inputs])  # type: ignore[attr-defined]
    code = compiled(program)
    is_claimed = of is not to and not (of in _FLOATS and to in (torch.int32, torch.int64))
    claims = [cast_claim(node) for node in program.nodes]
    assert [claim is not None and claim.is_proven() for claim in claims] == [is_claimed] * len(claims)
    assert outcome(code, draft.arguments()) == outcome(compiled(program, native=False), draft.arguments())
    assert not is_claimed or set(answers) == {0}


def test_other_copies_are_not_claimed() -> None:
    draft = Segment()
    x, half = draft.input(torch.randn(4, 6)), draft.input(torch.randn(4, 6).half())
    rows = draft.input(torch.randn(4, 6, dtype=torch.float64).t())
    whole = draft.input(torch.zeros(6, 4, dtype=torch.int64))
    draft.call(aten._to_copy.default, x, dtype=torch.float16)
    draft.call(aten._to_copy.default, half, dtype=torch.float32)
    draft.call(aten._to_copy.default, rows, dtype=torch.float32, memory_format=torch.contiguous_format)
    draft.call(aten.copy_.default, whole, draft.input(torch.ones(1, 4, dtype=torch.int32)))
    draft.call(aten.copy_.default, x, draft.call(aten.t.default, rows))
    assert [cast_claim(node) is not None for node in draft.nodes if node.target is not aten.t.default] == [
        False
    ] * 4 + [True]
