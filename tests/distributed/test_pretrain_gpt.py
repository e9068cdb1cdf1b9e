"""The example that trains a GPT on several ranks: compiled as in eager mode, and resumed as if it had not stopped."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch.distributed as dist

from examples.pretrain_gpt import main
from tests.distributed.ranks import Ranks
from tests.rotation import rotated

_SIZES = ["--layers", "1", "--width", "32", "--length", "16", "--batch", "2", "--megabytes", "0.1", "--save-every", "3"]


def _trains(rank: int, folder: str, parallel: str) -> tuple[list[list[float]], str]:
    """Losses in eager mode, compiled, and compiled from the checkpoint in the middle; what was printed."""
    warnings.simplefilter("ignore")
    out, resumed = f"{folder}/whole", f"{folder}/resumed"
    given, printed = [*_SIZES, "--parallel", parallel, "--memory-limit", "1GiB"], io.StringIO()
    with contextlib.redirect_stdout(printed):
        found = [main([*given, "--steps", "6", "--eager", "--out", f"{folder}/eager"])]
        found.append(main([*given, "--steps", "6", "--out", out]))
        if rank == 0:
            shutil.copytree(f"{out}/step-000003", f"{resumed}/step-000003")
        dist.barrier()
        found.append(main([*given, "--steps", "6", "--resume", "--out", resumed]))
    return found, printed.getvalue()


@pytest.mark.parametrize("parallel", rotated(["ddp", "fsdp"], 2))
def test_it_trains_and_goes_on(two_ranks: Ranks, tmp_path: Path, parallel: str) -> None:
    (eager, compiled, resumed), printed = two_ranks(_trains, str(tmp_path), parallel)[0]
    assert compiled == eager
    assert resumed == eager[3:]
    assert f"2 ranks, {parallel}; loss" in printed
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == eager
    assert "<polyline" in (tmp_path / "resumed" / "loss.svg").read_text()
