"""Optimizers and clipping take operators on lists of tensors where they do in eager mode: on GPUs by default.

A CPU is told to be a device of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_foreach_" in str(func):
            self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_a_step_takes_what_eager_takes(
    monkeypatch: pytest.MonkeyPatch, optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    for module in (torch_optimizer, _foreach_utils):
        monkeypatch.setattr(module, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    chosen = optimizer(model.parameters(), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        chosen.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        return loss.detach()

    with _Noting() as eager:
        step(torch.ones(2, 4))
    compiled = dovetail.compile_step(step, memory_limit="1GiB")
    compiled(torch.ones(2, 4))
    recorded = compiled.compile_trace.lowerings[-1].steps[0].program
    found = {str(node.target) for node in recorded.nodes if "_foreach_" in str(node.target)}
    assert len(eager.seen) > 2
    assert found == eager.seen
