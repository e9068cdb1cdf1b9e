"""Modules of TorchScript hold tensors where no fake can stand in for them: refused by name, and left as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import UnsupportedTensor

pytestmark = pytest.mark.filterwarnings(r"ignore:.torch\.jit\.\w+. is deprecated:DeprecationWarning")


@pytest.fixture
def scripted() -> Iterator[torch.jit.ScriptModule]:
    torch.manual_seed(0)
    module: torch.jit.ScriptModule = torch.jit.script(nn.Linear(2, 2))
    before = module.weight.detach().clone()
    yield module
    assert type(module.weight.detach()) is Tensor
    assert torch.equal(module.weight.detach(), before)


def test_compiled(scripted: torch.jit.ScriptModule) -> None:
    for target in (scripted, lambda x: scripted(x) + 1):
        with pytest.raises(UnsupportedTensor, match="TorchScript"):
            dovetail.compile(target)(torch.ones(1, 2))


def test_frozen(scripted: torch.jit.ScriptModule) -> None:
    with pytest.raises(dovetail.DovetailError, match="TorchScript"):
        dovetail.freeze(scripted, (torch.ones(1, 2),))


def test_trained(scripted: torch.jit.ScriptModule) -> None:
    optimizer = torch.optim.SGD(scripted.parameters(), lr=0.0)

    @dovetail.compile_step
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = scripted(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(torch.ones(1, 2))
    for _ in range(2):
        with pytest.raises(UnsupportedTensor, match="TorchScript"):
            step(torch.ones(1, 2))
