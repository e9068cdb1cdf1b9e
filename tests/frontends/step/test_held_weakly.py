"""Where torch itself holds a weight weakly, a step cannot be recorded: it runs in eager mode, and is recorded later."""

from __future__ import annotations

import copy
import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import dovetail


@pytest.mark.usefixtures("alone")
def test_beside_a_profiler_that_records_shapes() -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Linear(6, 3))]
    nets.append(copy.deepcopy(nets[0]))
    x, steps = torch.randn(4, 6), []
    for net, wrap in zip(nets, (lambda step: step, dovetail.compile_step), strict=True):
        optimizer = torch.optim.AdamW(net.parameters())

        def step(net: nn.Module = net, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps.append(wrap(step))
    eager, compiled = steps
    for number in range(4):
        recording: Any = profile(activities=[ProfilerActivity.CPU], record_shapes=True) if number < 2 else nullcontext()
        gc.collect()  # the profiles of before
        told, found = pytest.warns(dovetail.DovetailWarning, match="runs in eager mode for now"), []
        for run in (eager, compiled):
            torch.manual_seed(number)
            with (
                recording if run is compiled else nullcontext(),
                told if not number and run is compiled else nullcontext(),
            ):
                found.append(run())
        assert torch.equal(*found)
    assert all(torch.equal(a, b) for a, b in zip(*(net.parameters() for net in nets), strict=True))
    assert compiled.stats.eager_calls == 2
    assert any("for a profile with shapes" in reason for reason in compiled.stats.eager_reasons)
    assert compiled.stats.captures == 1
