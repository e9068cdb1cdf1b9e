"""Graphs whose backward computes values again: the same bits, and less memory."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.execute.graph import CompiledGraph
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Program
from dovetail.ir.signature import Residual
from dovetail.partition import choose
from dovetail.pipeline import splitting

WIDTH = 32


class Block(nn.Module):
    """A transformer block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """f32[rows, length, WIDTH] to the same."""
        rows, length, _ = x.shape
        q, k, v = (
            part.view(rows, length, 4, WIDTH // 4).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(mixed), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), 0.2)


class Loss(nn.Module):
    """The mean square of what the layers make."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        return self.layers(x).square().mean()


def _transformer() -> tuple[nn.Module, Tensor]:
    return Loss(Block(), Block()), torch.randn(2, 8, WIDTH)


def _perceptron() -> tuple[nn.Module, Tensor]:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Dropout(0.3), nn.Tanh()) for _ in range(3)]
    return Loss(*layers), torch.randn(64, WIDTH)


def _step(run: Callable[..., Tensor], net: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    """Loss and gradients of a step from this seed, and where the generator ends."""
    x = x.clone().requires_grad_()
    net.zero_grad()
    torch.manual_seed(seed)
    loss = run(x)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad.clone() for p in net.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("recompute", ["cheap", "all"])
@pytest.mark.parametrize("make", [_transformer, _perceptron])
def test_gradients_have_the_same_bits(make: Callable[[], tuple[nn.Module, Tensor]], recompute: str) -> None:
    torch.manual_seed(0)
    net, x = make()
    plain = dovetail.compile(net, verify=1)
    cut = dovetail.compile(net, partition="min_cut", recompute=recompute, verify=2)
    for seed in range(3):
        expected = _step(plain, net, x, seed)
        assert all(map(torch.equal, _step(cut, net, x, seed), expected))
        assert all(map(torch.equal, _step(net, net, x, seed), expected))
    assert _saved(cut) < _saved(plain)
    assert len(cut.graphs[0].sources) > 0


def _saved(compiled: Any) -> int:
    """Bytes of residuals that are not inputs."""
    graph: CompiledGraph = compiled.graphs[0]
    program: Program = graph.forward.program
    roles = zip(program.signature.outputs, program.outputs, strict=True)
    own = {v: v.tensor.size_bytes() for r, v in roles if isinstance(r, Residual) and v not in program.inputs}
    storages = {v.tensor.storage: size for v, size in own.items()}
    return sum(storages.values())


@pytest.mark.usefixtures("alone")
def test_measured_memory_falls() -> None:
    torch.manual_seed(0)
    net, x = Loss(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)]), torch.randn(512, 256)

    def peak(**options: Any) -> int:
        compiled = dovetail.compile(net, **options)
        _step(compiled, net, x, 0)
        return measure_peak(lambda: compiled(x).backward()).peak_bytes

    assert peak(partition="min_cut") < 0.8 * peak()


def test_small_networks_save_all_by_default() -> None:
    net, x = _perceptron()
    assert _saved(dovetail.compile(net, (x,))) == _saved(dovetail.compile(net, (x,), partition="default"))


def test_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = _perceptron()
    costly = dovetail.compile(net, (x,), partition="auto")
    assert costly.graphs[0].sources == frozenset()
    monkeypatch.setattr(choose, "MOST_WORK", 2.0)
    cheap = dovetail.compile(net, (x,), partition="auto")
    assert _saved(cheap) < _saved(costly)


def test_a_peak_that_would_rise_keeps_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = _perceptron()
    costs = iter([choose.StepCost(9, 1, 1), choose.StepCost(1, 2, 1)])
    monkeypatch.setattr(choose, "step_cost", lambda *_: next(costs))
    assert dovetail.compile(net, (x,), partition="min_cut").graphs[0].sources == frozenset()


# --- how backward is called ---------------------------------------------------------------------------------------


def _two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Eager keeps what sin and cos read apart; both follow from one value, which eager does not keep."""
    y = x + x.detach() @ w.detach()
    return (y + 1).sin(), (y + w.sum()).cos()


def _inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("order", [(0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("keep", [False, True])
def test_one_output_after_the_other(order: tuple[int, ...], keep: bool) -> None:
    gradients = []
    cut = dovetail.compile(_two, partition="min_cut", verify=2)
    for run in (_two, cut):
        x, w = _inputs()
        outputs = run(x, w)
        for place in order:
            outputs[place].sum().backward(retain_graph=keep)
        again = contextlib.nullcontext() if keep else pytest.raises(RuntimeError, match="second time")
        with again:
            outputs[order[-1]].sum().backward()
        gradients.append([x.grad, w.grad])
    assert cut.graphs[0].sources
    assert not cut.graphs[0].sources & cut.graphs[0].input_residuals
    assert all(a is b or torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_gradients_laid_out_otherwise() -> None:
    gradients = []
    for run in (_two, dovetail.compile(_two, partition="min_cut", verify=2)):
        x, w = _inputs()
        first, second = run(x, w)
        torch.autograd.backward([first, second], [torch.ones(4, 8).t(), torch.ones(8, 4)])
        gradients.append([x.grad, w.grad])
    assert all(map(torch.equal, *gradients))


def test_an_input_that_is_written_is_not_read_in_backward() -> None:
    def f(x: Tensor, state: Tensor) -> Tensor:
        scale = state + 1
        state.mul_(2)
        return (x * scale).sum()

    x = torch.randn(5, requires_grad=True)
    cut = dovetail.compile(f, partition="min_cut", verify=2)
    for run in (f, cut):
        assert torch.equal(torch.autograd.grad(run(x, torch.ones(5)), x)[0], torch.full((5,), 2.0))
    assert not cut.graphs[0].sources


def test_changing_sizes() -> None:
    def f(x: Tensor) -> Tensor:
        return ((x + 1).sin() * 2).exp().sum()

    cut = dovetail.compile(f, partition="min_cut", dynamic=True, verify=2)
    for size in (3, 7):
        x = torch.randn(size, 4, requires_grad=True)
        assert torch.equal(*(torch.autograd.grad(run(x), x)[0] for run in (f, cut)))
    assert cut.graphs[0].sources


def test_through_dynamo() -> None:
    net, x = _transformer()
    other = copy.deepcopy(net)
    compiled = torch.compile(other, backend="dovetail", options={"partition": "min_cut", "verify": 2})
    assert all(map(torch.equal, _step(compiled, other, x, 3), _step(net, net, x, 3)))


def test_inference_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "choose_split", None)
    f = dovetail.compile(lambda x: x.sin(), partition="min_cut")
    assert torch.equal(f(torch.ones(2)), torch.ones(2).sin())


# --- the default ----------------------------------------------------------------------------------------------------


def _wide(x: Tensor, bias: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Cheap nodes beside dear products. Eager keeps neither the bias nor the first result."""
    h = (x @ w).sin().cos().tanh()
    y = h + bias
    return y, ((y.sin() @ w) @ w).sum()


def _wide_inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((256, 1024), (1024,), (1024, 1024))
    x, bias, w = (torch.randn(shape, generator=generator).div_(32).requires_grad_() for shape in shapes)
    return x, bias, w


def test_by_default_cheap_nodes_run_again_and_gradients_are_eagers() -> None:
    compiled = dovetail.compile(_wide)
    ours, eagers = _wide_inputs(), _wide_inputs()
    compiled(*ours)[1].backward()
    _wide(*eagers)[1].backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, eagers, strict=True))  # type: ignore[arg-type]
    (graph,) = compiled.graphs
    assert graph.sources
    everything = dovetail.compile(_wide, _wide_inputs(), partition="default").graphs[0]
    assert len(graph.residuals) < len(everything.residuals)


def test_what_eager_does_not_keep_may_change_before_backward() -> None:
    """With `min_cut` it may not: backward reads it."""

    def step(function: Callable[..., Any]) -> list[Tensor]:
        x, bias, w = _wide_inputs()
        _, loss = function(x, bias, w)
        with torch.no_grad():
            bias.zero_()
        loss.backward()
        return [x.grad, bias.grad, w.grad]  # type: ignore[list-item]

    expected = step(_wide)
    assert all(map(torch.equal, step(dovetail.compile(_wide)), expected))


def test_what_eager_lets_go_dies_before_backward() -> None:
    def peak(function: Callable[..., Any]) -> int:
        _, bias, w = _wide_inputs()

        def step() -> None:
            x = torch.ones(256, 1024)  # nobody else holds it, and it needs no gradient; w's gradient reads it
            y, loss = function(x, bias, w)
            del x, y
            loss.backward()

        step()
        bias.grad = w.grad = None
        return measure_peak(step).peak_bytes

    assert peak(dovetail.compile(_wide)) <= peak(_wide)
