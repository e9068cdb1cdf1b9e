"""Where tensors lie: the same, by machine code and one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
import torch

from dovetail.execute.addresses import addresses_of, addresses_with
from dovetail.execute.installed import executor_by_name

_WHOLE = torch.arange(12.0)
_CASES: dict[str, Sequence[torch.Tensor]] = {
    "none": (),
    "one": (_WHOLE,),
    "views, and a parameter": (_WHOLE[3:], _WHOLE[::2], torch.nn.Parameter(torch.ones(2))),
    "one with bytes of the other sign": (_WHOLE, torch._neg_view(torch.ones(4))),
    "without memory": (torch.empty(0), torch.empty(3, device="meta")),
}


@pytest.mark.parametrize("case", _CASES)
def test_both_ways_are_one(case: str) -> None:
    pytest.importorskip("llvmlite")
    tensors = _CASES[case]
    expected = struct.pack(f"{len(tensors)}Q", *(tensor.data_ptr() for tensor in tensors))
    assert addresses_of(tensors) == expected
    for executors in (("native", "aten"), (executor_by_name("native"),), ("aten",)):
        asked = addresses_with(executors, len(tensors))
        assert asked(tensors) == asked(list(tensors)) == expected
        assert (asked is addresses_of) == (executors == ("aten",))
