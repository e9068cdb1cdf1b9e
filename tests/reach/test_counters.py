"""Counters that packages keep for themselves: what is only in reach of code that is given to Dynamo is not refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = """
import itertools

_NUMBERS = itertools.count()

def named():
    return next(_NUMBERS)
"""

SCRIPT = """
import counting_package as package, dovetail, torch

NAMED = package.named

def branch(x):
    assert callable(NAMED)
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

def numbered(x):
    return x + NAMED()

compiled = dovetail.compile(branch)
for sign in (1.0, -1.0):
    assert compiled(torch.full((3,), sign)).tolist() == [2 * sign] * 3
try:
    dovetail.compile(numbered)(torch.ones(3))
except dovetail.errors.IteratorRead as error:
    print(error)
"""


def test_a_counter_in_reach_of_a_branch_and_one_that_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "counting_package.py").write_text(PACKAGE)
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, timeout=120, env=environment, capture_output=True, text=True
    )
    assert "itertools.count" in done.stdout
