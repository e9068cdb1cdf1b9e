"""Activation checkpointing under torch.compile: same bits as eager with the same checkpoint, and no more memory.

Random masks must agree between forward and recomputation, or gradients would be wrong without a sign of it; so would
running statistics that are updated once where eager updates them twice.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import dovetail
from dovetail.execute.graph import CompiledGraph
from dovetail.inspect.memory import measure_peak
from dovetail.torch_compat.fakes import is_fake
from tests.rotation import rotated

WIDTH = 32
ROWS = 64
Region = Callable[[nn.Module, Tensor], Tensor]


pytestmark = pytest.mark.usefixtures("alone")


# --- ways to run a block -----------------------------------------------------------------------------------------


def keep_everything(block: nn.Module, x: Tensor) -> Tensor:
    """No checkpoint."""
    return block(x)


def by_saved_tensors(block: nn.Module, x: Tensor) -> Tensor:
    """The checkpoint that torch recommends."""
    return checkpoint(block, x, use_reentrant=False)


def by_reentry(block: nn.Module, x: Tensor) -> Tensor:
    """The older checkpoint, which runs a backward inside a backward."""
    return checkpoint(block, x, use_reentrant=True)


def _keep_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def selectively(block: nn.Module, x: Tensor) -> Tensor:
    """Keep matrix products, recompute the rest."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def without_random_state(block: nn.Module, x: Tensor) -> Tensor:
    """The recomputation draws again, as the user asked."""
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)


CHECKPOINTS = (by_saved_tensors, by_reentry, selectively)
NETS = [(region, norm) for norm in (False, True) for region in CHECKPOINTS]


class Block(nn.Module):
    """A feed-forward block with dropout in two places and, if wanted, batch norm at both ends."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.last = nn.BatchNorm1d(WIDTH, momentum=0.3) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """f32[rows, WIDTH] to the same."""
        y = F.dropout(F.gelu(self.up(self.first(x))), 0.3)
        return x + self.last(F.dropout(self.down(y), 0.2))


class Net(nn.Module):
    """Four blocks, run by `region`, and a sum of squares."""

    def __init__(self, region: Region, norm: bool = False) -> None:
        super().__init__()
        self.region = region
        self.blocks = nn.ModuleList(Block(norm) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """A loss of f32[rows, WIDTH]."""
        for block in self.blocks:
            x = self.region(block, x)
        return x.square().mean()


def make_net(region: Region, norm: bool = False) -> Net:
    """A net with weights that are always the same."""
    torch.manual_seed(0)
    return Net(region, norm)


def make_input() -> Tensor:
    """A batch that is always the same and wants a gradient, without which the reentrant checkpoint gives none."""
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


def compiled(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The net under torch.compile, as one graph, its passes checked."""
    return torch.compile(net, backend="dovetail", fullgraph=True, options={"verify": 1})


def compiled_without_dynamo(net: nn.Module) -> dovetail.CompiledFunction:
    """The net under dovetail.compile, its passes checked."""
    return dovetail.compile(net, verify=1)


def step(net: nn.Module, call: Callable[[Tensor], Tensor], seed: int) -> dict[str, Tensor]:
    """Everything that one step can change, by name."""
    for parameter in net.parameters():
        parameter.grad = None
    x = make_input()
    torch.manual_seed(seed)
    loss = call(x)
    loss.backward()
    gradients = {f"gradient of {name}": p.grad for name, p in net.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    generator = torch.get_rng_state()
    return {"loss": loss.detach(), "gradient of x": x.grad, **gradients, **buffers, "generator": generator}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Same names, strides and bits."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].stride() == tensor.stride(), name
        assert torch.equal(actual[name], tensor), f"{name} differs by up to {(actual[name] - tensor).abs().max()}"


# --- same results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compile", [compiled, compiled_without_dynamo], ids=lambda way: way.__name__)
@pytest.mark.parametrize(("region", "norm"), rotated(NETS, 3), ids=lambda part: getattr(part, "__name__", part))
def test_a_step_equals_eager_for_several_seeds(region: Region, norm: bool, compile: Any) -> None:
    eager = make_net(region, norm)
    mine = copy.deepcopy(eager)
    call = compile(mine)
    seen = []
    for seed in range(2):
        expected = step(eager, eager, seed)
        assert_same(step(mine, call, seed), expected)
        seen.append(expected["gradient of x"])
    assert not torch.equal(seen[0], seen[1]), "seeds matter"


@pytest.mark.parametrize("region", CHECKPOINTS, ids=lambda region: region.__name__)
def test_masks_agree_with_the_ones_of_a_step_that_keeps_them(region: Region) -> None:
    """Independent of eager's checkpoint: what is recomputed is what forward had."""
    kept = make_net(keep_everything)
    mine = make_net(region)
    call = compiled(mine)
    for seed in range(3):
        expected = step(kept, kept, seed)
        assert_same(step(mine, call, seed), expected)


def test_running_statistics_move_twice_in_a_region_as_in_eager() -> None:
    kept, mine = make_net(keep_everything, norm=True), make_net(by_saved_tensors, norm=True)
    step(kept, kept, 0)
    step(mine, compiled(mine), 0)
    assert [block.first.num_batches_tracked.item() for block in kept.blocks] == [1] * 4
    assert [block.first.num_batches_tracked.item() for block in mine.blocks] == [2] * 4


def test_no_random_state_is_kept_where_none_is_wanted() -> None:
    eager = make_net(without_random_state)
    mine = copy.deepcopy(eager)
    expected = step(eager, eager, 0)
    kept = make_net(keep_everything)
    assert not torch.equal(expected["gradient of x"], step(kept, kept, 0)["gradient of x"]), "masks differ in eager"
    assert_same(step(mine, compiled(mine), 0), expected)


def test_a_checkpoint_in_a_checkpoint() -> None:
    def twice(block: nn.Module, x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return checkpoint(block, F.dropout(y, 0.1), use_reentrant=False)

        return checkpoint(inner, x, use_reentrant=False)

    eager = make_net(twice)
    mine = copy.deepcopy(eager)
    assert_same(step(mine, compiled(mine), 5), step(eager, eager, 5))


@pytest.mark.parametrize("region", CHECKPOINTS, ids=lambda region: region.__name__)
def test_compiling_leaves_the_generator_alone(region: Region) -> None:
    """Regions save and restore its state, and draw: all of that belongs to the program, not to its compilation."""
    net = make_net(region, norm=True)
    call = compiled_without_dynamo(net)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    call.prepare(make_input())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(block.first.num_batches_tracked == 0 for block in net.blocks)


def test_inference_ignores_the_checkpoint() -> None:
    net = make_net(by_saved_tensors, norm=True).eval()
    call = compiled(net)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = net(make_input())
        torch.manual_seed(0)
        assert torch.equal(call(make_input()), expected)


# --- less memory -------------------------------------------------------------------------------------------------


def peak_bytes(net: nn.Module, call: Callable[[Tensor], Tensor]) -> int:
    """The measured peak of one step, after two to warm up."""
    for seed in range(2):
        step(net, call, seed)
    for parameter in net.parameters():
        parameter.grad = None
    x = make_input()
    return measure_peak(lambda: call(x).backward()).peak_bytes


def residual_bytes(net: nn.Module) -> int:
    """What forward keeps for backward besides parameters, buffers and the input."""
    call, x = compiled(net), make_input()
    own = {t.untyped_storage().data_ptr() for t in (x, *net.parameters(), *net.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = call(x)
    assert loss.requires_grad
    return sum(saved.values())


@pytest.mark.parametrize("region", [by_saved_tensors, by_reentry], ids=lambda region: region.__name__)
def test_a_checkpoint_keeps_one_activation_per_block(region: Region) -> None:
    activation = ROWS * WIDTH * 4
    state = torch.get_rng_state().numel()
    few = residual_bytes(make_net(region))
    torch.compiler.reset()
    many = residual_bytes(make_net(keep_everything))
    # Inputs of the last three blocks (the first one's is the net's own), and what the square at the end needs.
    assert few <= 4 * (activation + state)
    assert few < many / 4


def test_a_selective_checkpoint_keeps_products_and_nothing_else() -> None:
    activation = ROWS * WIDTH * 4
    state = torch.get_rng_state().numel()
    some = residual_bytes(make_net(selectively))
    inputs, wide_products, narrow_products = 4 * (activation + state), 4 * 4 * activation, 4 * activation
    assert wide_products < some <= inputs + wide_products + narrow_products


@pytest.mark.parametrize(("region", "norm"), rotated(NETS, 3), ids=lambda part: getattr(part, "__name__", part))
def test_the_peak_is_lower_than_without_and_not_above_eagers(region: Region, norm: bool) -> None:
    eager = make_net(region, norm)
    mine = copy.deepcopy(eager)
    kept = make_net(keep_everything, norm)
    peak = peak_bytes(mine, compiled(mine))
    torch.compiler.reset()
    assert peak < 0.75 * peak_bytes(kept, compiled(kept))
    assert peak <= peak_bytes(eager, eager)


# --- refused as in eager -------------------------------------------------------------------------------------------


def _write_the_argument_later(x: Tensor, scale: Tensor) -> Tensor:
    y = checkpoint(lambda a, b: (a * b).sin(), x, scale, use_reentrant=False)
    scale.add_(1)
    return y.sum()


@pytest.mark.parametrize("backend", [None, "dovetail"])
def test_an_argument_written_before_recomputation_is_refused(backend: str | None) -> None:
    call = _write_the_argument_later
    if backend is not None:
        call = torch.compile(call, backend=backend, fullgraph=True)
    loss = call(make_input(), torch.ones(WIDTH))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_graphs_are_compiled_and_not_run_by_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = CompiledGraph.__call__

    def count(graph: CompiledGraph, *inputs: Any) -> Any:
        if not any(map(is_fake, inputs)):
            calls.append(len(inputs))
        return original(graph, *inputs)

    monkeypatch.setattr(CompiledGraph, "__call__", count)
    net = make_net(by_saved_tensors)
    step(net, compiled(net), 0)
    assert len(calls) == 1
