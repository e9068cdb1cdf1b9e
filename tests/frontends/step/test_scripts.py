"""A script's objects are the user's, also where something else runs the script and stands in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rotation import rotated

_SCRIPT = """
import torch, dovetail
from torch import nn

class Config:
    weight, seen = 1.0, 0

config, model = Config(), nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x):
    optimizer.zero_grad()
    loss = config.weight * model(x).sum()
    loss.backward()
    config.seen += 1
    return loss.detach()

compiled, scaled, x = dovetail.compile_step(step), dovetail.compile(lambda x: x * config.weight), torch.ones(1, 2)
for config.weight in (1.0, 1.0, 2.0, 4.0, 4.0):
    assert compiled(x).item() == config.weight * model(x).sum().item(), "the old weight was read"
    assert scaled(x)[0, 0].item() == config.weight, "the old weight was read"
print("seen", config.seen)
"""


@pytest.mark.parametrize("runner", rotated([[], ["-m", "cProfile"]], 2))
def test_a_script_under_a_runner(runner: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, *runner, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "seen 5" in done.stdout
