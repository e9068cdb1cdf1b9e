"""The first way out that an error names works, and gives what eager mode does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DataDependentControlFlow, NoFakeKernel, UnsupportedTensor

DOORS: tuple[Callable[..., Any], ...] = (dovetail.compile, dovetail.compile_step)


@torch.library.custom_op("dovetail_tests::without_fake", mutates_args=())
def _without_fake(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _refused(door: Callable[..., Any], function: Callable[..., Any], *inputs: Tensor) -> dovetail.DovetailError:
    compiled = door(function)
    if door is dovetail.compile_step:
        compiled(*inputs)  # in eager mode
    with pytest.raises(dovetail.DovetailError) as caught:
        compiled(*inputs)
    assert __file__.rpartition("/")[2] in str(caught.value)  # the line
    return caught.value


def _agree(door: Callable[..., Any], function: Callable[..., Any], *inputs: Tensor) -> None:
    compiled = door(function)
    for _ in range(3):
        assert torch.equal(compiled(*inputs), function(*inputs))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_leaves_padding_out(door: Callable[..., Any]) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    rows, mask = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False] * 3])

    def encode(rows: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = encoder(rows, src_key_padding_mask=mask)
        return found

    error = _refused(door, encode, rows, mask)
    assert isinstance(error, UnsupportedTensor)
    assert "enable_nested_tensor=False" in str(error)
    encoder.use_nested_tensor = False
    _agree(door, encode, rows, mask)


@pytest.mark.parametrize("door", DOORS)
def test_an_operator_of_ones_own_without_a_fake_kernel(door: Callable[..., Any]) -> None:
    own = torch.library.custom_op("dovetail_tests::made_for_" + door.__name__, _without_fake._init_fn, mutates_args=())
    error = _refused(door, lambda x: own(x) + 1, torch.ones(3))
    assert isinstance(error, NoFakeKernel)
    assert "register_fake" in str(error)
    own.register_fake(torch.empty_like)
    _agree(door, lambda x: own(x) + 1, torch.ones(3))


@pytest.mark.usefixtures("alone")
def test_a_branch_on_data() -> None:
    def branch(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    def select(x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x + 1, x - 1)

    def cond(x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return found

    assert isinstance(_refused(dovetail.compile, branch, torch.ones(3)), DataDependentControlFlow)
    for x in (torch.ones(3), -torch.ones(3)):
        _agree(dovetail.compile, select, x)
        _agree(dovetail.compile, cond, x)
        _agree(lambda function: torch.compile(function, backend="dovetail"), branch, x)


@pytest.mark.parametrize("kind", ["a format that is computed", "an array"])
def test_what_needs_real_numbers_is_called_after_the_program(kind: str) -> None:
    told: list[Any] = []

    def tell(x: Tensor) -> None:
        told.append(("%.3f " * 2) % (x.item(), x.item()) if kind == "a format that is computed" else x.numpy().copy())

    after = dovetail.host_call(tell)

    def inside(x: Tensor) -> Tensor:
        tell(x.sum())
        return x + 1

    def outside(x: Tensor) -> Tensor:
        after(x.sum())
        return x + 1

    error = _refused(dovetail.compile_step, inside, torch.ones(3))
    assert "dovetail.host_call" in str(error)
    told.clear()
    step = dovetail.compile_step(outside)
    for number in range(4):
        step(torch.full((3,), float(number)))
    found = [*told]
    told.clear()
    for number in range(4):
        tell(torch.full((3,), float(number)).sum())
    assert found == told
