"""The example that trains in less address space than eager mode needs."""

from __future__ import annotations

import sys

import pytest

from examples.train_in_less import main


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no limit on address space")
def test_eager_mode_runs_out_of_memory_and_dovetail_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "2"])
    free, limited, _, verdict = capsys.readouterr().out.splitlines()
    assert "can't allocate memory" in limited
    assert free.count(", ") == 2
    assert verdict.endswith("yes")
