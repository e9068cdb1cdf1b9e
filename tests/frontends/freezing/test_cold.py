"""What a fresh process imports for frozen programs: at first, to load them, and for the first calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dovetail
from tests.frontends.freezing.models import Classifier, Counter
from tests.torch_release import IS_TESTED

# Each costs a fraction of a second, and is for recording, searching, verifying or drawing.
_HEAVY = (
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.fx.experimental.symbolic_shapes",
    "llvmlite",
    "transformers",
)
_NOT_TO_LOAD = (
    "capture.recorder",
    "passes.fx_api",
    "execute.native",
    "partition.whole",
    "frontends.step",
    "inspect",
    "reach",
)
_MOST_MODULES = 200
_SCRIPT = """
import json, sys, torch
before = set(sys.modules)
import dovetail
names, seen = dir(dovetail), [sorted(set(sys.modules) - before)]
for path, arguments, result in zip(*[iter(sys.argv[1:])] * 3):
    torch.save(dovetail.load(path)(*torch.load(arguments)), result)
    seen.append(sorted(set(sys.modules) - before))
print(json.dumps([names, *seen]))

from dovetail.torch_compat.plain_numbers import importing_functions, kernels_for_plain_numbers
codes = [f.__code__ for f in importing_functions()]
one, other = kernels_for_plain_numbers(), kernels_for_plain_numbers()
one.__enter__(), other.__enter__()
assert [f.__code__ for f in importing_functions()] != codes
one.__exit__(None, None, None), other.__exit__(None, None, None)
assert [f.__code__ for f in importing_functions()] == codes  # two threads that load leave nothing behind

from dovetail import *
assert compile is dovetail.compile and dovetail.memory.__name__ == "dovetail.memory"
assert freeze.__module__ == "dovetail.frontends.freezing.freeze"
assert not hasattr(dovetail, "freese") and not hasattr(dovetail, "__wrapped__")

import dovetail.passes as passes  # a function goes before the file of its name
import dovetail.passes.prepack
from dovetail.passes import PrepackReport, prepack
assert passes.prepack is prepack and callable(prepack.plan) and callable(passes.channels_last)
"""


class _Tagger(nn.Module):
    """Embedding, attention with a mask, norm, convolution: kernels in Python on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.mix = nn.Conv1d(16, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.layer(self.words(tokens), src_key_padding_mask=mask)
        return self.norm(self.mix(hidden.mT)).softmax(1)[:, torch.tensor([0, 2])]


def flat(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result.flatten() if isinstance(result, Tensor) else torch.cat([part.flatten() for part in result])


@pytest.mark.skipif(not IS_TESTED, reason="a torch that is not the tested one is checked first, which loads Dynamo")
def test_a_fresh_process_imports_what_running_needs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(50, (3, 7)), torch.zeros(3, 7, dtype=torch.bool)
    cases: list[tuple[nn.Module, tuple[Tensor, ...], str]] = [
        (_Tagger(), tokens, "bitwise"),
        (_Tagger(), tokens, "fast"),
        (Classifier(), (torch.rand(2, 3, 8, 8),), "bitwise"),
        (nn.GRU(4, 3, batch_first=True), (torch.rand(2, 5, 4),), "bitwise"),
        (Counter(), (torch.rand(2, 3),), "bitwise"),
    ]
    wanted, paths = [], []
    for number, (model, arguments, passes) in enumerate(cases):
        frozen = dovetail.freeze(model.eval(), arguments, passes=passes)
        assert frozen.specialized == ()
        paths += [str(tmp_path / f"{number}.{kind}") for kind in ("dovetail", "arguments", "result")]
        frozen.save(paths[-3])
        torch.save(arguments, paths[-2])
        wanted.append(frozen(*arguments))
    call = [sys.executable, "-c", _SCRIPT, *paths]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    for path, result in zip(paths[2::3], wanted, strict=True):
        assert torch.equal(flat(torch.load(path)), flat(result))
    names, at_first, bitwise, *_, last = json.loads(done.stdout)
    assert set(dovetail.__all__) <= set(names)
    assert [name for name in last if name.startswith(_HEAVY)] == []
    assert [name for name in last if name.startswith(tuple(f"dovetail.{part}" for part in _NOT_TO_LOAD))] == []
    ours = [[name for name in seen if name.startswith("dovetail")] for seen in (at_first, bitwise)]
    assert len(ours[0]) < 25
    assert len(ours[1]) <= _MOST_MODULES, sorted(ours[1])
