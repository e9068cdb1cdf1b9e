"""The run over torch's databases finds planted faults, and goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import dovetail
from dovetail.errors import UnsupportedOutput
from tests.opdb import __main__ as run
from tests.opdb import verdict
from tests.opdb.calls import Entry, module_entries, operator_entries
from tests.opdb.state import State
from tests.opdb.table import table
from tests.opdb.verdict import CRASH, FAIL, PASS, REFUSED, ROUNDING, SKIPPED, judge, references
from tests.rotation import rotated

Function = Callable[..., Any]


def _entry(name: str, dtype: torch.dtype = torch.float32) -> Entry:
    return next(e for e in (*operator_entries([dtype]), *module_entries([dtype])) if e.name == name)


def _on_outputs(change: Callable[[Tensor], Tensor]) -> Callable[[Function], Function]:
    def compile_wrongly(target: Function) -> Function:
        return lambda *args, **kwargs: pytree.tree_map_only(Tensor, change, target(*args, **kwargs))

    return compile_wrongly


def _on_inputs(change: Callable[[Tensor], Tensor]) -> Callable[[Function], Function]:
    def compile_wrongly(target: Function) -> Function:
        return lambda *args, **kwargs: target(*pytree.tree_map_only(Tensor, change, args), **kwargs)

    return compile_wrongly


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 1.5


class _RestridedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _restrided(grads[0])


def _nudged(x: Tensor) -> Tensor:
    x.data.mul_(1 + 1e-6)
    return x


def _restrided(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, [2 * step for step in x.stride()]).copy_(x)


def _drawing(x: Tensor) -> Tensor:
    torch.rand(1)
    return x


FAULTS = {
    "a wrong value": (_on_outputs(lambda x: x * 1.5), FAIL, "output 0 values"),
    "a rounded value": (_on_outputs(_nudged), ROUNDING, "output 0 values"),
    "wrong strides": (_on_outputs(_restrided), FAIL, "output 0 strides"),
    "a wrong dtype": (_on_outputs(Tensor.double), FAIL, "output 0 dtype"),
    "a cut gradient": (_on_outputs(Tensor.detach), FAIL, "output 0 requires_grad"),
    "a wrong gradient": (_on_outputs(_WrongGradient.apply), FAIL, "gradient of input 0 values"),
    "wrong strides of a gradient": (_on_inputs(_RestridedGradient.apply), FAIL, "gradient of input 0 strides"),
    "a lost write": (_on_inputs(Tensor.clone), FAIL, "input 0 values"),
    "a draw of its own": (_on_outputs(_drawing), FAIL, "generator after the call"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    compile_wrongly, status, label = FAULTS[fault]
    found = judge(references(_entry("exp"), 4), compile_wrongly)
    assert found.status == status
    assert found.reason.startswith(label), found.reason


def test_a_lost_write_to_a_buffer_is_found() -> None:
    def compile_wrongly(module: Function) -> Function:
        def forward(*args: Any) -> Any:
            assert isinstance(module, torch.nn.Module)
            before = {name: buffer.clone() for name, buffer in module.named_buffers()}
            result = module(*args)
            for name, buffer in module.named_buffers():
                buffer.data.copy_(before[name])
            return result

        return forward

    found = judge(references(_entry("nn.BatchNorm1d.train"), 1), compile_wrongly)
    assert found.status == FAIL
    assert found.reason.startswith("running_mean values")


def test_refusals_and_errors_are_told_apart() -> None:
    def refuse(target: Function) -> Function:
        raise UnsupportedOutput(what="a planted object")

    def fail(target: Function) -> Function:
        raise ValueError("planted")

    found = references(_entry("exp"), 2)
    assert judge(found, refuse).reason.startswith("DT-CAPTURE-005")
    assert judge(found, refuse).status == REFUSED
    assert judge(found, fail).reason == "raises ValueError: planted"
    assert judge(found, fail).status == FAIL
    assert judge([], fail).status == SKIPPED


@pytest.mark.parametrize("name", rotated(["empty_like", "new_empty_strided", "exp", "nn.Linear.train"], 4))
@pytest.mark.parametrize("arm", verdict.ARMS)
def test_every_way_passes_and_uninitialized_memory_is_not_compared(name: str, arm: str) -> None:
    found = judge(references(_entry(name), 2), verdict.ARMS[arm])
    assert (found.status, found.reason) == (PASS, "")


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run over three entries that pass; the names of those that it ran."""
    ran: list[str] = []
    monkeypatch.setattr(run, "references", lambda entry, count: ran.append(entry.name) or [])
    monkeypatch.setattr(run, "judge", lambda found, arm: verdict.Verdict(PASS, {PASS: 1}))
    return ran


def test_a_run_goes_on_where_it_stopped(few: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.jsonl"
    arguments = ["--only", "exp,abs,sin", "--kinds", "operator", "--dtypes", "float32", "--state", str(state)]
    assert run.main([*arguments, "--shard", "1/2"]) == 0
    assert len(few) == 1
    assert run.main(arguments) == 0
    assert sorted(few) == ["abs", "exp", "sin"]
    assert run.main(arguments) == 0
    assert len(few) == 3
    assert "| operators, float32 | dovetail | 3 | 0 |" in capsys.readouterr().out


def test_an_entry_that_ended_the_process_is_a_crash(few: list[str], tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    state = State(path)
    state.begin(_entry("exp"), "eager")
    state.begin(_entry("exp"), "dovetail")
    out = tmp_path / "table.md"
    arguments = ["--only", "operator/exp/float32,operator/abs/float32", "--state", str(path), "--table", str(out)]
    assert run.main(arguments) == 1
    assert few == ["abs"]
    assert "| operators, float32 | dovetail | 1 | 0 | 0 | 0 | 0 | 1 |" in out.read_text()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[2]["arms"]["dovetail"]["status"] == CRASH


@pytest.mark.parametrize(
    ("own", "aot", "short"),
    [(FAIL, FAIL, True), (REFUSED, PASS, True), (REFUSED, REFUSED, False), (ROUNDING, PASS, True), (PASS, FAIL, False)],
)
def test_a_refusal_counts_where_aot_eager_passes(own: str, aot: str, short: bool) -> None:
    arms = {"dovetail": {"status": own, "reason": "why|not"}, "aot": {"status": aot}}
    text = table([{"key": "k", "kind": "operator", "dtype": "float32", "arms": arms}])
    assert ("passes (1)" in text) == short
    assert "why\\|not" in text or own == PASS


def test_the_default_way_is_dovetail() -> None:
    assert verdict.ARMS["dovetail"] is dovetail.compile
