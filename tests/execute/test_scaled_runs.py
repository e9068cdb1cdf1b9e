"""What operators take that are too large to be run, against what they take when they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.execute import needs as needs_module
from dovetail.execute.needs import Needs
from tests.execute.test_needs import _node

aten = torch.ops.aten
_SMALL = 1 << 19


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs_module, "_FOUND", {})
    monkeypatch.setattr(needs_module, "_EXTRAPOLATED", {})


_CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a product of matrices": (aten.mm.default, (torch.ones(256, 512), torch.ones(512, 768))),
    "a loss whose memory is larger than it is": (aten.mse_loss.default, (torch.ones(512, 640), torch.ones(512, 640))),
    "a reduction": (aten.sum.dim_IntList, (torch.ones(640, 768), [0])),
    "sorting": (aten.sort.default, (torch.ones(800, 320), -1)),
    "a scan": (aten.logcumsumexp.default, (torch.ones(64), 0)),
    "a softmax": (aten._softmax.default, (torch.ones(640, 800), -1, False)),
    "normalization": (aten.native_layer_norm.default, (torch.ones(640, 512), [512], torch.ones(512), None, 1e-5)),
    "attention": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (torch.ones(1, 32, 128, 64), torch.ones(1, 32, 128, 64), torch.ones(1, 32, 128, 64)),
    ),
    "groups": (
        aten.native_group_norm.default,
        (torch.ones(48, 16, 32, 32), torch.ones(16), torch.ones(16), 48, 16, 1024, 4, 1e-5),
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_runs_at_smaller_sizes_show_the_same(name: str) -> None:
    target, operands = _CASES[name]
    node = _node(target, *operands)
    exact = Needs({}).need_of(node)
    needs_module._FOUND.clear()
    needs = Needs({}, largest_bytes=_SMALL)
    assert needs.need_of(node) == exact
    assert not needs.unknown
    assert needs.extrapolated == ([] if name == "a scan" else [node])


def test_what_is_not_known_to_be_safe_at_other_sizes_is_named() -> None:
    node = _node(aten.logcumsumexp.default, torch.ones(512, 1024), 1)
    needs = Needs({}, largest_bytes=_SMALL)
    assert needs.need_of(node).scratch_bytes == 0
    assert needs.unknown == [node]
    assert Needs({}).unknown == []


def test_operators_of_others_are_named() -> None:
    @torch.library.custom_op("dovetail_tests::twice_as_large", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x])

    node = _node(torch.ops.dovetail_tests.twice_as_large.default, torch.ones(4))
    needs = Needs({})
    needs.need_of(node)
    assert needs.unknown == [node]
