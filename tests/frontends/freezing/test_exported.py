"""Frozen methods as exported programs of torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from tests.frontends.freezing.models import Classifier, Counter, Nested


def _eager(model: nn.Module, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


def test_free_sizes_stay_free() -> None:
    model = Classifier().eval()
    frozen = dovetail.freeze(
        model, {"forward": ((torch.rand(2, 3, 8, 8),), {}), "embed": ((torch.rand(2, 3, 8, 8),), {})}
    )
    exported = frozen.export()
    assert isinstance(exported, torch.export.ExportedProgram)
    for rows in (2, 7):
        x = torch.rand(rows, 3, 8, 8)
        assert torch.equal(exported.module()(x), _eager(model, x))
        assert torch.equal(frozen.export("embed").module()(x), _eager(model.embed, x))  # type: ignore[arg-type]
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-009"):
        frozen.export("missing")


def test_state_becomes_buffers() -> None:
    model, twin = Counter(), Counter()
    twin.load_state_dict(model.state_dict())
    frozen = dovetail.freeze(model, (torch.rand(2, 3),), dynamic_shapes="static")
    exported = frozen.export().module()
    for _ in range(3):
        x = torch.rand(2, 3)
        for found, wanted in zip(exported(x), _eager(twin, x), strict=True):
            assert torch.equal(found, wanted)
    assert frozen.state_dict()["calls"] == 0


def test_containers() -> None:
    model = Nested()
    batch = {"x": torch.rand(3, 4), "mask": torch.ones(3, dtype=torch.bool)}
    frozen = dovetail.freeze(model, (batch,))
    exported = frozen.export().module()
    assert torch.equal(exported(batch, None, factor=2.0, wide=False)["x"], _eager(model, batch)["x"])
