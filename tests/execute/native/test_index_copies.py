"""Parts that are copied to places of an index as rows: what is written is eager mode's, and so are errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail.execute.native.index_copies import IndexCopyClaim
from dovetail.execute.native.kinds import claim_on
from tests.execute.native.programs import aten
from tests.execute.native.segments import Segment

Copies = Callable[[Tensor, Tensor, Tensor], Tensor]


def _whole(into: Tensor, index: Tensor, source: Tensor) -> Tensor:
    into.index_copy_(0, index, source * 2)
    return into + 1


def _blocks(into: Tensor, index: Tensor, source: Tensor) -> Tensor:
    into.index_copy_(-2, index, (source * 2).movedim(0, -2))
    return into + 1


def _column(into: Tensor, index: Tensor, source: Tensor) -> Tensor:
    into[:, 1:].index_copy_(1, index, (source * 2).t())
    return into + 1


def _twice(into: Tensor, index: Tensor, source: Tensor) -> Tensor:
    into.index_copy_(0, index, source * 2).index_copy_(0, index + 1, source * 3)
    return into * source[0]


_CASES: dict[str, tuple[Copies, tuple[int, ...], tuple[int, ...]]] = {
    "rows": (_whole, (6, 5), (3, 5)),
    "numbers": (_whole, (6,), (3,)),
    "blocks": (_blocks, (2, 4, 6, 5), (3, 2, 4, 5)),
    "columns of a view": (_column, (4, 6), (3, 4)),
    "twice": (_twice, (6, 5), (3, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("places", [[4, 0, 2], [1, 1, 1]])
def test_what_is_written(case: str, dtype: torch.dtype, places: list[int]) -> None:
    function, shape, part = _CASES[case]
    generator = torch.Generator().manual_seed(3)
    into, source = (torch.randint(-9, 9, sizes, generator=generator).to(dtype) for sizes in (shape, part))
    index, compiled = torch.tensor(places), dovetail.compile(function)
    for _ in range(2):
        wanted, given = into.clone(), into.clone()
        result, version = function(wanted, index, source), given._version
        assert torch.equal(compiled(given, index, source), result)
        assert torch.equal(given, wanted)
        assert given._version - version == wanted._version
    with pytest.raises(IndexError, match="out of"):
        compiled(given, index + 6, source)
    assert torch.equal(given, wanted) or case == "twice"


@pytest.mark.parametrize(
    ("shape", "stride", "is_claimed"),
    [((6, 5), (5, 1), True), ((6, 5), (7, 1), True), ((6, 5), (1, 6), False), ((2, 6, 5), (30, 5, 1), True)],
)
def test_which_are_claimed(shape: tuple[int, ...], stride: tuple[int, ...], is_claimed: bool) -> None:
    draft = Segment()
    into, index = draft.input(torch.zeros(60).as_strided(shape, stride)), draft.input(torch.tensor([0, 1, 2]))
    draft.call(aten.index_copy_.default, into, -2, index, draft.input(torch.zeros(*shape[:-2], 3, shape[-1])))
    assert isinstance(claim_on(draft.nodes[-1]), IndexCopyClaim) == is_claimed
