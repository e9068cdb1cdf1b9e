"""The first call after loading loads nothing: no compiler's front end, nothing that only recording needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from tests.frontends.freezing.models import Classifier, Counter
from tests.torch_release import IS_TESTED

_LOAD_AND_CALL = """
import json, sys, torch, dovetail

found = []
for path, shapes in json.loads(sys.argv[1]):
    before = set(sys.modules)
    frozen = dovetail.load(path)
    with torch.no_grad():
        for shape in shapes:
            frozen(torch.ones(shape))
    found += sorted(name for name in set(sys.modules) - before if not name.startswith("dovetail."))
heavy = [name for name in ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd") if name in sys.modules]
print(json.dumps([found, heavy]))
"""


def _attention() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


@pytest.mark.skipif(not IS_TESTED, reason="a torch that is not the tested one is checked first, which loads Dynamo")
def test_first_call_loads_no_module(tmp_path: Path) -> None:
    cases: list[tuple[nn.Module, list[Any]]] = [
        (nn.Linear(4, 3), [(2, 4), (3, 4)]),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)), [(2, 4)]),
        (Classifier(), [(2, 3, 8, 8), (1, 3, 8, 8)]),
        (_attention(), [(2, 5, 16), (3, 5, 16)]),
        (nn.GRU(4, 3, batch_first=True), [(2, 5, 4)]),
        (Counter(), [(2, 3)]),
    ]
    paths = []
    for number, (model, shapes) in enumerate(cases):
        path = tmp_path / f"{number}.dovetail"
        dovetail.freeze(model.eval(), (torch.rand(shapes[0]),)).save(path)
        paths.append((str(path), shapes))
    result = subprocess.run(
        [sys.executable, "-c", _LOAD_AND_CALL, json.dumps(paths)], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) == [[], []]
