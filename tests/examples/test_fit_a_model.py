"""The example that finds the largest batch for a limit keeps to the limit."""

from __future__ import annotations

import pytest

from examples.fit_a_model import main


def test_the_largest_batch_trains_within_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--limit", "6MiB", "--steps", "3"])
    printed = capsys.readouterr().out
    assert "within the limit: True" in printed
    losses = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("loss ")]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_a_limit_that_nothing_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--limit", "1MiB"])
    assert "largest batch for 1MiB: 0" in capsys.readouterr().out
