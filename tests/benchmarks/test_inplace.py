"""The benchmark of working in place runs both passes on the same graphs, and compares what they give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from benchmarks.decode import measure_decode
from benchmarks.inplace import capture_training, measure_graph
from benchmarks.models import Workload
from benchmarks.run import app

_SETTINGS = {
    "--models": "",
    "--optimizers": "SGD",
    "--parameters": "2x8",
    "--nodes": "48",
    "--torch-nodes": "24",
    "--caches": "",
    "--repeats": "1",
}


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # imported late by torch's own passes
def test_tables_of_graphs_steps_and_scaling(tmp_path: Path) -> None:
    arguments = [text for option in _SETTINGS.items() for text in option]
    result = CliRunner().invoke(app, ["inplace", *arguments, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "inplace.json").read_text())
    names = [row["name"] for row in record["graphs"]]
    assert names == ["SGD loop", "SGD foreach"]
    assert all(row["dovetail"]["equal"] for row in record["graphs"])
    assert [row["copies"] for row in record["graphs"]] == [4, 4]
    assert all(row["dovetail"]["copies"] == 0 for row in record["graphs"])
    assert all(row["missed_bytes"] == 0 for row in record["graphs"])
    assert len(record["steps"]) == 2 * 3
    assert all(row["equal"] for row in record["steps"] if row["backend"] != "eager")
    assert len(record["scales"]) == 5 * 2
    assert [row["torch_s"] is None for row in record["scales"][:2]] == [False, True]
    table = (tmp_path / "inplace.md").read_text()
    assert "| SGD foreach |" in table
    assert "| views of a buffer | 25 |" in table


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # imported late by torch's own passes
def test_both_halves_of_a_training_step() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.norm(x) + 1).exp().sum()

    found = capture_training("small", Workload(Model(), {"x": torch.randn(8, 4)}))
    assert [captured.name for captured in found] == ["small forward", "small backward"]
    rows = [measure_graph(captured, repeats=1) for captured in found]
    assert all(row.dovetail.error is None and row.dovetail.equal for row in rows)
    assert all(row.torch.error is not None or row.torch.equal is not None for row in rows)
    assert rows[0].copies == 3
    assert rows[0].dovetail.writes > 0
    assert rows[0].dovetail.allocated_bytes < rows[0].allocated_bytes
    assert all(row.missed_bytes == 0 for row in rows)


@pytest.mark.usefixtures("alone")
def test_decoding_allocates_nothing_as_large_as_the_cache() -> None:
    pytest.importorskip("transformers")
    settings = {"layers": 1, "width": 64, "heads": 2, "length": 512, "tokens": 3, "rounds": 1}
    answers = measure_decode(["eager", "dovetail", "frozen", "frozen fast"], settings)
    for backend in ("dovetail", "frozen", "frozen fast"):
        answer = answers[backend]
        assert "error" not in answer
        assert answer["equal"] or backend == "frozen fast"
        assert answer["cache_sized_per_token"] == 0
        assert answer["tokens_per_s"] > 0
