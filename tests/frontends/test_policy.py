"""What a user asks to save or to compute again: obeyed by each door, with eager's bits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadOptionValue, MemoryLimitTooLow
from dovetail.pipeline.compile_trace import CompileTrace


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: Tensor) -> Tensor:
        """f32[rows, 32] to f32[rows, 32]."""
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


torch.manual_seed(0)
NET, X = Net(), torch.randn(64, 32)


def _compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    return dovetail.compile(model, **options)


def _backend(model: nn.Module, **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(model, backend="dovetail", options=options)


def _gradients(door: Callable[..., Any], **options: Any) -> tuple[list[Tensor], CompileTrace]:
    model, trace = copy.deepcopy(NET), CompileTrace()
    loss = door(model, compile_trace=trace, **options)(X)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)], trace


def _eager(model: nn.Module, **_: Any) -> Callable[..., Any]:
    return model


def _steps(**options: Any) -> tuple[list[Tensor], Any]:
    model = copy.deepcopy(NET)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = dovetail.compile_step(step, **options) if options else step
    losses = [compiled(X) for _ in range(3)]
    return [*losses, *(p.detach() for p in model.parameters())], compiled


def _same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _again(trace: CompileTrace) -> dict[str, int]:
    """How often each operator runs again in the last backward of a trace."""
    found: dict[str, int] = {}
    program = trace.lowerings[-1].half("backward")
    assert program is not None
    for node in program.nodes:
        if node.recomputed:
            found[str(node.target)] = found.get(str(node.target), 0) + 1
    return found


EVERYTHING = [
    {"layers.*.mlp": "MUST_RECOMPUTE"},
    {"aten.gelu": "MUST_RECOMPUTE", "*": "SAVE"},
    {"*": "MUST_SAVE"},
    {"*": "RECOMPUTE"},
    {"layers.*.norm": "SAVE", "aten.addmm": "RECOMPUTE"},
]


@pytest.mark.parametrize("policy", EVERYTHING, ids=str)
@pytest.mark.parametrize("partition", ["auto", "default", "min_cut"])
def test_graphs_have_eagers_bits(policy: dict[str, str], partition: str) -> None:
    expected, _ = _gradients(_eager)
    found, trace = _gradients(_compiled, policy=policy, partition=partition, verify=2)
    assert _same(found, expected)
    again = _again(trace)
    if "MUST_RECOMPUTE" in policy.values():
        assert again["aten.gelu.default"] == 3
    if policy == {"*": "MUST_SAVE"}:
        assert set(again) <= {"aten.t.default"}
    if policy == {"*": "RECOMPUTE"} and partition == "auto":
        assert again["aten.addmm.default"] > 0


@pytest.mark.parametrize("policy", EVERYTHING, ids=str)
@pytest.mark.parametrize("partition", ["auto", "default"])
def test_steps_have_eagers_bits(policy: dict[str, str], partition: str) -> None:
    assert _same(_steps(policy=policy, partition=partition, verify=2)[0], _steps()[0])


def test_the_backend_obeys() -> None:
    found, trace = _gradients(_backend, policy={"aten.gelu": "MUST_RECOMPUTE"}, partition="default")
    assert _same(found, _gradients(_eager)[0])
    assert _again(trace) == {"aten.gelu.default": 3}


def test_peaks_of_steps() -> None:
    def peak(**options: Any) -> int:
        found = _steps(**options)[1].explain().peak_bytes
        assert isinstance(found, int)
        return found

    free, kept = peak(partition="auto"), peak(partition="default")
    assert peak(partition="default", policy={"layers.*.mlp": "MUST_RECOMPUTE"}) < free < kept
    assert peak(policy={"*": "MUST_SAVE"}) == kept == peak(policy={"*": "SAVE"})
    assert peak(policy={"*": "RECOMPUTE"}) < free


def test_a_wish_to_save_gives_way_to_a_limit_and_a_must_does_not() -> None:
    limit = f"transient:{220 * 1024}B"
    found, step = _steps(policy={"*": "SAVE"}, memory_limit=limit)
    assert _same(found, _steps()[0])
    assert step.explain().peak_bytes <= 220 * 1024
    with pytest.raises(MemoryLimitTooLow):
        _steps(policy={"*": "MUST_SAVE"}, memory_limit=limit)
    found, _ = _gradients(_compiled, policy={"*": "SAVE"}, memory_limit=limit, verify=2)
    assert _same(found, _gradients(_eager)[0])
    with pytest.raises(MemoryLimitTooLow):
        _gradients(_compiled, policy={"*": "MUST_SAVE"}, memory_limit=limit)


def test_what_is_saved_where_a_limit_leaves_a_choice() -> None:
    """The wish is kept as long as other values can be dropped."""
    limit = f"transient:{250 * 1024}B"

    def runs_again(**options: Any) -> set[str]:
        trace = CompileTrace()
        _, step = _steps(memory_limit=limit, compile_trace=trace, **options)
        assert step.explain().peak_bytes <= 250 * 1024
        return {str(node.target) for node in trace.lowerings[-1].steps[-1].program.nodes if node.recomputed}

    freely = runs_again()
    assert freely
    for operator in freely - {"aten.t.default"}:
        assert operator not in runs_again(policy={operator: "SAVE"})


def test_of_two_wishes_the_later_one_counts_and_a_must_counts_more() -> None:
    policies = [
        ({"*": "MUST_SAVE", "aten.gelu": "RECOMPUTE"}, set()),
        ({"*": "SAVE", "aten.addmm": "RECOMPUTE"}, {"aten.addmm.default"}),
        ({"aten.addmm": "RECOMPUTE", "*": "SAVE"}, set()),
    ]
    for policy, expected in policies:
        _, trace = _gradients(_compiled, policy=policy, partition="min_cut")
        assert set(_again(trace)) - {"aten.t.default"} == expected, policy


class Drawing(nn.Module):
    """A layer, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        return self.first(x).sum()


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"aten.gleu": "SAVE"}, r"'aten.gleu' names neither an operator nor a module"),
        ({"first.2": "MUST_SAVE", "aten.relu": "MUST_RECOMPUTE"}, r"aten.relu.default at .* is MUST_SAVE by 'first.2'"),
        ({"first.3": "MUST_RECOMPUTE"}, r"aten.bernoulli_.float at .*test_policy.py:\d+ .* cannot run again: it draws"),
        ({"first.1": "MUST_RECOMPUTE"}, r"aten.native_batch_norm.default at .* what it reads may be written"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(policy: dict[str, str], reason: str) -> None:
    model, x, state = Drawing(), torch.randn(4, 8), torch.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BadOptionValue, match=reason):
        dovetail.compile(model, policy=policy)(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nearest_names_are_offered() -> None:
    with pytest.raises(BadOptionValue, match=r"aten\.gelu\.default"):
        _steps(policy={"aten.gleu": "SAVE"})
    with pytest.raises(BadOptionValue, match=r"layers\.0\.mlp"):
        dovetail.compile(NET, policy={"layers.9.mlp": "SAVE"})(X)


def test_what_draws_keeps_its_numbers_beside_what_runs_again() -> None:
    policy = {"first.2": "MUST_RECOMPUTE", "aten.addmm": "RECOMPUTE"}
    one = Drawing()
    other, x = copy.deepcopy(one), torch.randn(16, 8)
    compiled = dovetail.compile(other, policy=policy, verify=1)
    for seed in range(2):
        results = []
        for call in (one, compiled):
            torch.manual_seed(seed)
            loss = call(x)
            loss.backward()
            results.append([loss.detach(), torch.get_rng_state()])
        assert _same(*results)
    assert _same([p.grad for p in other.parameters()], [p.grad for p in one.parameters()])  # type: ignore[misc]


def test_a_changed_input_that_runs_again_reads_is_refused() -> None:
    weight, x = torch.randn(8, requires_grad=True), torch.randn(8)
    loss = dovetail.compile(lambda w, x: (x.sin() * w).sum(), policy={"aten.sin": "MUST_RECOMPUTE"})(weight, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_one_gradient_of_several() -> None:
    """Backwards for other outputs obey as well, and find what they read."""

    def several(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (layer(x) for layer in list(model.layers)[:2])  # type: ignore[arg-type]
        return first.exp().sum(), (first * second).tanh().sum()

    expected: dict[int, list[Tensor]] = {}
    for policy in ({}, {"layers.*.mlp": "MUST_RECOMPUTE"}, {"*": "RECOMPUTE"}):
        for number in (1, 0):
            model = copy.deepcopy(NET)
            call = dovetail.compile(several, policy=policy, verify=1) if policy else several
            call(model, X)[number].backward()
            found = [p.grad for p in model.parameters() if p.grad is not None]
            assert _same(found, expected.setdefault(number, found))


def test_frozen_modules() -> None:
    model = NET.eval()
    free = dovetail.freeze(model, (X,))
    options = {"memory_limit": "1GiB", "policy": {"aten.*": "MUST_SAVE"}}
    assert torch.equal(dovetail.freeze(model, (X,), **options)(X), free(X))
    for bad in ({"policy": {"*": "SAVE"}}, {"memory_limit": "1GiB", "policy": {"*": "MUST_RECOMPUTE"}}):
        with pytest.raises(BadOptionValue, match="frozen program"):
            dovetail.freeze(model, (X,), **bad)  # type: ignore[arg-type]
    with pytest.raises(BadOptionValue, match="neither an operator nor a module"):
        dovetail.freeze(model, (X,), memory_limit="1GiB", policy={"conv": "SAVE"})


def test_a_changed_bias_that_a_wish_reads_is_refused() -> None:
    model = copy.deepcopy(NET)
    loss = dovetail.compile(model, policy={"aten.addmm": "RECOMPUTE"})(X)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.0.bias"):
                parameter.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_graphs_for_your_own_compilers_obey() -> None:
    model, seen = copy.deepcopy(NET), list[list[str]]()

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        seen.append([str(node.target) for node in module.graph.nodes])
        return module

    compiled = dovetail.aot_function(model, keep, keep, partition="default", policy={"aten.gelu": "MUST_RECOMPUTE"})
    loss = compiled(X)
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    assert _same(found, _gradients(_eager)[0])
    assert [names.count("aten.gelu.default") for names in seen] == [3, 3]


def test_an_estimate_knows_what_is_asked_for() -> None:
    """Its lowest peak is the one that a limit can ask for, and its curve keeps to the same plans."""
    net = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU())], nn.Linear(64, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(256, 64)
    floors = []
    for policy in ({}, {"*": "MUST_SAVE"}, {"aten.gelu": "MUST_SAVE"}):
        compiled = dovetail.compile_step(step, keep_grads=False, memory_limit="transient:1B", policy=policy)
        with pytest.raises(MemoryLimitTooLow) as refused:
            compiled(x)
        found = dovetail.estimate(dovetail.compile_step(step, keep_grads=False, policy=policy), x)
        floors.append(found.floor_transient_bytes)
        assert found.floor_transient_bytes == refused.value.facts["floor_bytes"]
        assert min(plan.peak_bytes for plan in found.plans()) >= found.floor_transient_bytes
    assert floors[0] < floors[2] <= floors[1]
