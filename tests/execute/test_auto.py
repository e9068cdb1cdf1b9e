"""Machine code where a program's time goes into calls: which programs those are, and that others pay nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.analysis.call_bound import is_call_bound
from dovetail.execute.executors.auto import AutoExecutor
from dovetail.execute.installed import executor_by_name
from dovetail.execute.native import kernel_forms, machine
from dovetail.execute.native.kinds import claim_on
from dovetail.ops import call_costs
from tests.passes.recorded_models import record


class Encoder(nn.Module):
    """A transformer's layers, of any size."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for number, (into, out) in enumerate(zip(self.into, self.out, strict=True)):
            q, k, v = into(self.norms[2 * number](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = F.gelu(self.norms[2 * number + 1](x))
        return x


class Chain(nn.Module):
    """Many elementwise operators."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(12):
            x = torch.tanh(x * 1.5 + 0.25)
        return x


CASES: dict[str, tuple[nn.Module, tuple[int, ...], bool]] = {
    "small encoder": (Encoder(32, 3), (1, 8, 32), True),
    "chain": (Chain(), (16, 16), True),
    "wide encoder": (Encoder(768, 3), (4, 128, 768), False),
    "chain of much": (Chain(), (2000, 2000), False),
    "linear": (nn.Linear(8, 8), (1, 8), False),
    "small network": (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (2, 8), False),
    "images": (nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(8))), (2, 16, 64, 64), False),
}


@pytest.mark.parametrize("case", CASES)
def test_which_programs_are_call_bound(case: str) -> None:
    model, shape, expected = CASES[case]
    assert is_call_bound(record(model.eval(), torch.zeros(shape)).program) is expected


def test_what_machine_code_calls_directly_is_what_it_claims() -> None:
    """The names that costs are told by are those of kernels that there are."""
    assert kernel_forms.FORMS.keys() >= call_costs.DIRECT
    pytest.importorskip("llvmlite")
    program = record(Encoder(32, 1).eval(), torch.zeros(1, 8, 32)).program
    saving = [node for node in program.nodes if call_costs.call_cost(node).saved_us > 1]
    assert len(saving) > 4
    assert all(claim_on(node) is not None for node in saving)


needs_code = pytest.mark.skipif(bool(machine.unavailable()), reason="no machine code can be made here")


def _executors(frozen: Any, *args: Tensor) -> set[str]:
    frozen(*args)
    names = set()
    for method in frozen._running.methods.values():
        for variant in method.variants:
            code = variant.runner.graph.forward
            names |= {code.executors.owner(node).name for node in code.program.nodes}
    return names


@needs_code
def test_frozen_and_loaded_programs_choose_by_themselves(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for case, expected in (("small encoder", True), ("linear", False)):
        model, shape, _ = CASES[case]
        x = torch.randn(shape)
        frozen = dovetail.freeze(model.eval(), (x,), dynamic_shapes="static")
        plain = dovetail.freeze(model.eval(), (x,), dynamic_shapes="static", executors="aten")
        frozen.save(tmp_path / "model.dovetail")
        loaded = dovetail.load(tmp_path / "model.dovetail")
        for program in (frozen, loaded):
            assert ("native" in _executors(program, x)) is expected
            assert torch.equal(program(x), plain(x))
        assert _executors(plain, x) == {"aten"}


@needs_code
def test_small_programs_that_are_made_for_speed(tmp_path: Path) -> None:
    """Machine code takes them, too: by default a quarter of a second until it is there counts."""
    torch.manual_seed(0)
    model, shape, _ = CASES["small network"]
    x = torch.randn(1, shape[-1])
    frozen = dovetail.freeze(model.eval(), (x,), passes="fast", dynamic_shapes="static")
    frozen.save(tmp_path / "model.dovetail")
    for program in (frozen, dovetail.load(tmp_path / "model.dovetail")):
        assert "native" in _executors(program, x)
        torch.testing.assert_close(program(x), model(x))
    assert "native" not in _executors(dovetail.freeze(model, (x,), dynamic_shapes="static"), x)
    assert _executors(dovetail.freeze(model, (x,), passes="fast", executors="aten"), x) == {"aten"}


@needs_code
def test_each_program_of_a_method_is_asked() -> None:
    """A symbolic size leaves little to machine code: programs for one row and for more decide for themselves."""
    model, shape, _ = CASES["small encoder"]
    frozen: Any = dovetail.freeze(model.eval(), (torch.randn(3, *shape[1:]),))
    by_rows = {}
    for rows in (1, 3):
        x = torch.randn(rows, *shape[1:])
        assert torch.equal(frozen(x), dovetail.freeze(model, (x,), executors="aten")(x))
    for variant in frozen._running.methods["forward"].variants:
        code = variant.runner.graph.forward
        is_symbolic = any(True for node in code.program.nodes for _ in node.symbols())
        by_rows[is_symbolic] = "native" in {code.executors.owner(node).name for node in code.program.nodes}
    assert by_rows[False]


def test_without_machine_code_it_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "unavailable", lambda: "llvmlite is not installed")
    model, shape, _ = CASES["small encoder"]
    frozen = dovetail.freeze(model.eval(), (torch.randn(shape),))
    assert _executors(frozen, torch.randn(shape)) == {"aten"}
    assert isinstance(executor_by_name("auto"), AutoExecutor)


_SCRIPT = """
import sys, torch, dovetail
frozen = dovetail.load(sys.argv[1])
frozen(torch.zeros(1, 8))
print(sorted(name for name in sys.modules if name.startswith(("llvmlite", "dovetail.execute.native"))))
"""


def test_a_program_that_gains_nothing_imports_nothing_for_it(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    dovetail.freeze(CASES["linear"][0].eval(), (torch.zeros(1, 8),)).save(path)
    call = [sys.executable, "-c", _SCRIPT, str(path)]
    environment = {name: text for name, text in os.environ.items() if name != "DOVETAIL_EXECUTORS"}
    done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert done.stdout.strip() == "[]"
