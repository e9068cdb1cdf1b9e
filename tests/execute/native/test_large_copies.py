"""Parts of many elements that are put side by side: rows that threads share, with the bits of torch's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.execute.native.copies import copy_claim
from dovetail.execute.native.copy_text import shared_copy_function
from dovetail.execute.native.machine import unavailable
from tests.execute.native.programs import compiled, outcome
from tests.execute.native.segments import Segment
from tests.rotation import rotated

pytestmark = pytest.mark.skipif(bool(unavailable()), reason="no machine code can be made here")

aten: Any = torch.ops.aten
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def _part(generator: random.Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    """A tensor of a shape, whose elements lie in one order or another."""
    form = generator.choice(["plain", "wide", "turned", "repeated", "behind"])
    if form == "wide":
        return _made([*shape[:-1], shape[-1] + 3], dtype)[..., : shape[-1]]
    if form == "turned" and len(shape) > 2:
        return _made([shape[1], shape[0], *shape[2:]], dtype).transpose(0, 1)
    if form == "repeated":
        return _made([1, *shape[1:]], dtype).expand(shape)
    if form == "behind":
        return _made([shape[0] + 1, *shape[1:]], dtype)[1:]
    return _made(shape, dtype)


def _made(shape: list[int], dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape) * 50).to(dtype)


def _drawn(seed: int) -> tuple[Segment, Any]:
    generator = random.Random(seed)
    torch.manual_seed(seed)
    dtype, dims = generator.choice(_DTYPES), generator.choice([2, 3, 4])
    shape = [generator.choice([1, 2, 5, 16, 33]) for _ in range(dims - 1)] + [generator.choice([7, 40, 128])]
    shape[0] *= -(-70_000 // torch.Size(shape).numel())
    draft, dim = Segment(), generator.randrange(dims)
    if generator.random() < 0.3:
        made = draft.call(aten.stack.default, [draft.input(_part(generator, shape, dtype)) for _ in range(3)], dim)
    else:
        parts = [list(shape) for _ in range(generator.choice([1, 2, 4]))]
        for part in parts:
            part[dim] = generator.choice([0, 1, shape[dim], 2 * shape[dim]])
        parts.append(list(shape))
        made = draft.call(aten.cat.default, [draft.input(_part(generator, part, dtype)) for part in parts], dim)
    return draft, draft.program([made, *_small(draft), *draft.inputs])  # who returns them holds them


def _small(draft: Segment) -> list[Any]:
    """Some small nodes, so that a call of native code pays."""
    made = draft.input(torch.randn(500))
    for _ in range(8):
        made = draft.call(aten.neg.default, draft.call(aten.abs.default, made))
    return [made]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("seed", rotated(range(400), of=40))
def test_drawn_copies(seed: int, threads: int) -> None:
    draft, program = _drawn(seed)
    former = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert outcome(compiled(program), draft.arguments()) == outcome(
            compiled(program, native=False), draft.arguments()
        )
    finally:
        torch.set_num_threads(former)


def test_they_are_rows_that_threads_share() -> None:
    claims = [claim for seed in range(60) for node in _drawn(seed)[1].nodes if (claim := copy_claim(node)) is not None]
    assert sum(claim.is_shared for claim in claims) > 10
    draft = Segment()
    parts = [draft.input(torch.randn(1, 1, 384).expand(1, 1, 384)), draft.input(torch.randn(1, 196, 384))]
    program = draft.program([draft.call(aten.cat.default, parts, 1), *_small(draft), *parts])
    assert shared_copy_function() is not None
    assert "copy_rows" in _listing(program)
    listings = [_listing(_drawn(seed)[1]) for seed in range(60)]
    assert sum("copy_rows" in each for each in listings) > 10


def _listing(program: Any) -> str:
    return "".join(group.listing() for group in compiled(program).executors.groups.values())


def test_short_rows_are_left_to_torch() -> None:
    draft = Segment()
    parts = [draft.input(torch.randn(40_000, 3)) for _ in range(2)]
    node = draft.program([draft.call(aten.cat.default, parts, 1)]).nodes[0]
    assert copy_claim(node) is None
