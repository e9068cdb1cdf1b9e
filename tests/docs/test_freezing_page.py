"""The page about freezing: it names every pass, option and error, and its facts about torch's own freezing hold."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import dovetail
from dovetail.pipeline.freezing import chosen_passes
from dovetail.pipeline.passes import PASSES

_PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "freezing.md"


def test_the_page_has_every_pass_option_and_error() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    fast = chosen_passes("fast")
    for spec in PASSES["frozen"].specs:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{spec.name}` |")]
        assert spec.tier in row
        assert ("by name only" in row) == (spec.name not in fast)
    for function in (dovetail.freeze, dovetail.load):
        for option, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                assert f"{option}=" in text or f"`{option}`" in text, option


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # it is what the page compares with
def test_what_the_page_says_of_torchscript() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    nn.init.uniform_(model[1].running_var, 0.5, 2.0)
    x = torch.rand(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(model)
        frozen = torch.jit.freeze(script)
        with pytest.raises(RuntimeError, match="eval mode"):
            torch.jit.freeze(torch.jit.script(nn.BatchNorm2d(4)))
    with torch.no_grad():
        before = frozen(x)
        model[0].weight.mul_(2)
        assert torch.equal(frozen(x), before)
        assert not torch.allclose(model(x), before)
    assert frozen(x.requires_grad_()).requires_grad
