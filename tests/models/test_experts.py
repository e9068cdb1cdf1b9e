"""A mixture of experts in float32 on the CPU: one product over the groups of rows that were routed to each expert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import dovetail

pytestmark = pytest.mark.usefixtures("alone")


def _mixtral() -> Any:
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            use_cache=False,
        )
    )


def _ids() -> Tensor:
    return torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(1))


def test_frozen(tmp_path: Path) -> None:
    model = _mixtral().eval()
    frozen = dovetail.freeze(model, (_ids(),))
    frozen.save(tmp_path / "experts.dovetail")
    with torch.no_grad():
        expected = model(_ids()).logits
        assert torch.equal(frozen(_ids()).logits, expected)
        assert torch.equal(dovetail.load(tmp_path / "experts.dovetail")(_ids()).logits, expected)


def test_steps() -> None:
    def run(compile_step: Callable[..., Any]) -> list[Tensor]:
        model = _mixtral().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(ids: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        called = compile_step(step)
        return [*(called(_ids()).clone() for _ in range(2)), *model.parameters()]

    assert all(map(torch.equal, run(dovetail.compile_step), run(lambda step: step)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_grouped_products(dtype: torch.dtype) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return torch._grouped_mm(x, weight.mT, torch.tensor([3, 8], dtype=torch.int32)).tanh()

    results = []
    for called in (program, dovetail.compile(program)):
        torch.manual_seed(0)
        x, weight = torch.randn(8, 16, dtype=dtype), torch.randn(2, 8, 16, dtype=dtype)
        x.requires_grad_(), weight.requires_grad_()
        made = called(x, weight)
        made.sum().backward()
        results.append((made.detach(), x.grad, weight.grad))
    for actual, expected in zip(*results, strict=True):
        assert actual is not None
        assert expected is not None
        assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(actual, expected)
