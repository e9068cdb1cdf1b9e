"""Forms in which functorch's users call it: partitions with arguments, fakes of symbolic sizes, its minifier."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import default_partition as their_default
from functorch.compile import min_cut_rematerialization_partition as their_min_cut
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.compat import functorch as compat
from dovetail.errors import DoesNotFail, NotYetSupported
from dovetail.torch_compat.fakes import new_fake_mode, symbolic_fake_of
from dovetail.torch_compat.symbols import new_shape_env

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    "chosen",
    [
        their_default,
        their_min_cut,
        partial(their_min_cut, compiler="inductor"),
        partial(partial(compat.min_cut_rematerialization_partition, compiler=None), recomputable_ops=None),
    ],
)
def test_partitions_of_functorch(chosen: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin().cos().sum()

    gradients = []
    for called in (program, compat.aot_function(program, compat.nop, partition_fn=chosen)):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        called(x).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_a_partition_function_of_your_own_is_refused() -> None:
    with pytest.raises(NotYetSupported):
        compat.aot_function(torch.sin, compat.nop, partition_fn=partial(lambda joint, inputs: None))


@pytest.mark.parametrize("traced", [False, True])
def test_fakes_of_symbolic_sizes(traced: bool) -> None:
    linear = nn.Linear(4, 2)
    module = fx.symbolic_trace(linear) if traced else linear
    example = symbolic_fake_of(new_fake_mode(new_shape_env()), torch.ones(3, 4), "x", [0])
    compiled = dovetail.aot_module_simplified(module, (example,), fw_compiler=compat.nop)
    for rows in (3, 6, 2):
        x = torch.linspace(-1, 1, rows * 4).view(rows, 4)
        assert torch.equal(compiled(x), linear(x))


def _chain() -> tuple[fx.GraphModule, list[Tensor]]:
    inputs = [torch.ones(3), torch.ones(3)]
    return make_fx(lambda x, y: (x.sin() + y).cos().tan())(*inputs), inputs


def _has_cos(module: fx.GraphModule, inputs: Any) -> bool:
    module(*inputs)
    return any("cos" in str(node.target) for node in module.graph.nodes)


def test_minifier() -> None:
    dumped: list[Any] = []
    module, inputs = compat.minifier(*_chain(), _has_cos, lambda *found: dumped.append(found))
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert len(calls) == 1
    assert _has_cos(module, inputs)
    assert dumped == [(module, inputs)]


def test_minifier_of_what_does_not_fail() -> None:
    with pytest.raises(DoesNotFail):
        compat.minifier(*_chain(), lambda module, inputs: False)
