"""The benchmark of native code: every way is timed, and memory is no more than without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.native import WAYS, measure
from benchmarks.small_call_parts import PARTS, measure_parts
from benchmarks.small_peers import INDUCTOR, JAX, PeerSteps, missing_peers

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("workload", ["mlp 4x64, batch 32", "AdamW, 10 tensors"])
def test_each_way_is_measured(workload: str) -> None:
    former = torch.get_num_threads()
    try:
        cost = measure(workload, 2)
    finally:
        torch.set_num_threads(former)
    for found in (cost.call_us, cost.first_s, cost.peak_bytes):
        assert list(found) == list(WAYS)
    assert all(us > 0 for us in cost.call_us.values())
    assert len(cost.ratios) == 4
    assert cost.peak_bytes["native"] <= cost.peak_bytes["aten"] <= cost.peak_bytes["eager"]


def test_compilers_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PYTHON", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = missing_peers((INDUCTOR, JAX))
    assert "JAX_PYTHON" in found[JAX]
    assert found[INDUCTOR]
    monkeypatch.setenv("JAX_PYTHON", sys.executable)
    monkeypatch.setenv("CXX", "sh")
    assert missing_peers((INDUCTOR, JAX)) == {}


def test_steps_of_another_process_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker that only answers, in place of JAX."""
    worker = tmp_path / "worker"
    worker.write_text("""#!/bin/sh
echo '{"version": "1", "compile_s": 0.5}'
while read count; do echo "0.00$count"; done
""")
    worker.chmod(0o755)
    monkeypatch.setenv("JAX_PYTHON", str(worker))
    with PeerSteps(JAX, "digits CNN") as steps:
        assert steps.first_s == 0.5
        assert [steps.turn(5), steps.turn(7)] == [0.005, 0.007]
    worker.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ChildProcessError, match="status 3"):
        PeerSteps(JAX, "digits CNN")


def test_the_parts_of_a_call_are_less_than_the_call() -> None:
    parts = measure_parts("SGD, 200 tensors", rounds=5)
    assert all(parts[part] > 0 for part in ("eager", *PARTS, "machine code"))
    assert parts["machine code"] < parts["program"] < parts["run"] < parts["call"]
    assert parts["its Python state"] < parts["guard"] < parts["call"]
