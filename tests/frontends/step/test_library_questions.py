"""Libraries that ask whether they see a fake, or a traced number, hear what they would hear in eager mode."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import dovetail

_LIBRARY = """
import torch

def scale(x):
    if isinstance(x, getattr(torch, "_subclasses").FakeTensor):
        return 3.0
    return 2.0 if (x > -100).all() else 1.0

def kind(x):
    return 1.0 if isinstance(x.sum().item(), float) else 5.0
"""


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("question", ["scale", "kind"])
def test_a_library_that_asks(question: str) -> None:
    library = ModuleType("some_library")
    exec(_LIBRARY, vars(library))
    ask = getattr(library, question)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = ask(x) * model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled, x = dovetail.compile_step(step), torch.randn(4, 3)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wanted = [step(x).item() for _ in range(4)]
    model.load_state_dict(weights)
    assert [compiled(x).item() for _ in range(4)] == wanted
    assert compiled.stats.eager_calls == 0
