"""Graphs and frozen programs under a limit in bytes: eager's bits, the measured peak below the limit, or an error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.errors import BadOptionValue, DovetailError, MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Program, Value
from dovetail.ir.signature import Residual
from dovetail.partition.whole.choose import Ladder
from dovetail.pipeline.arena import code_of
from dovetail.pipeline.schedule_search import Search
from dovetail.pipeline.splitting import Splitting
from tests.frontends.step.test_memory_limit import MODELS
from tests.rotation import rotated


class Loss(nn.Module):
    """The loss of a classifier."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """A number."""
        return F.cross_entropy(self.net(x), y)


class Held(nn.Module):
    """Each layer's result is needed at the end: what is cheap to make is held for long."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """f32[rows, 64] to f32[rows, 64]."""
        h = self.first(x)
        held = []
        for number, layer in enumerate(self.layers):
            held.append((h * (number + 1)).tanh())
            h = layer(h) if number < 2 else h + 1
        total = held[0]
        for one in reversed(held[1:]):
            total = total @ layer.weight + one
        return total


class Training:
    """A classifier, and a step of it forward and backward."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        net, self.batch = MODELS[name]()
        self.model = Loss(net)
        self.begin = copy.deepcopy(self.model.state_dict())

    def run(self, make: Callable[[nn.Module], Callable[..., Tensor]]) -> tuple[list[Tensor], int]:
        """All that two steps leave behind, and the peak of a third."""
        self.model.load_state_dict(self.begin)
        call = make(self.model)
        torch.manual_seed(1)
        left: list[Tensor] = []
        for _ in range(2):
            self.model.zero_grad()
            loss = call(*self.batch)
            loss.backward()
            left += [loss.detach(), *(p.grad.clone() for p in self.model.parameters() if p.grad is not None)]
        left += [*(x.clone() for x in self.model.buffers()), torch.get_rng_state()]
        del loss
        self.model.zero_grad()
        return left, measure_peak(lambda: call(*self.batch).backward()).peak_bytes


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def _floor(run: Callable[[], object]) -> int:
    with pytest.raises(MemoryLimitTooLow) as caught:
        run()
    return int(caught.value.facts["floor_bytes"])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", MODELS)
def test_training_graphs_keep_to_a_limit_with_the_bits_of_eager(name: str) -> None:
    training = Training(name)
    expected, most = training.run(lambda model: model)

    def limited(limit: int) -> tuple[list[Tensor], int]:
        return training.run(lambda model: dovetail.compile(model, memory_limit=f"transient:{limit}B", verify=1))

    floor = _floor(lambda: limited(1))
    peaks = []
    for share in (0.0, 0.4, 1.0):
        limit = floor + int(share * (most - floor))
        found, peak = limited(limit)
        assert _same(found, expected)
        assert peak <= limit
        peaks.append(peak)
    assert peaks == sorted(peaks)
    assert _floor(lambda: limited(floor - 1)) == floor


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", rotated(["held", *MODELS], of=4))
def test_a_lower_limit_never_has_a_higher_peak(name: str) -> None:
    model: nn.Module = Held()
    batch: tuple[Tensor, ...] = (torch.randn(64, 64),)
    if name in MODELS:
        training = Training(name)
        model, batch = training.model, training.batch
    most = dovetail.explain(dovetail.compile(model, partition="default"), *batch).call
    assert most is not None

    def found(limit: int) -> int:
        call = dovetail.explain(dovetail.compile(model, memory_limit=f"transient:{limit}B"), *batch).call
        assert call is not None
        assert call.peak_bytes <= limit
        return call.peak_bytes

    floor = _floor(lambda: found(1))
    peaks = [found(floor + (most.peak_bytes - floor) * share // 5) for share in (0, 2, 4)]
    assert peaks == sorted(peaks)
    assert peaks[0] == floor


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_known_before(name: str) -> None:
    training = Training(name)
    compiled = dovetail.compile(training.model)
    _, peak = training.run(lambda model: compiled)
    found = dovetail.explain(compiled, *training.batch).call
    assert found is not None
    assert found.peak_bytes == peak
    held = [*training.model.parameters(), *training.model.buffers(), *training.batch]
    assert found.state_bytes <= sum(x.untyped_storage().nbytes() for x in held)


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    training = Training("mlp")
    compiled = dovetail.compile(training.model, memory_limit="60KiB")
    state = torch.get_rng_state()
    with pytest.raises(MemoryLimitTooLow, match=r"the graph does not fit in 60\.00 KiB") as caught:
        compiled(*training.batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert "weights and arguments" in str(caught.value)
    held = sum(x.untyped_storage().nbytes() for x in (*training.model.state_dict().values(), *training.batch))
    floor = _floor(lambda: dovetail.compile(training.model, memory_limit="transient:1B")(*training.batch))
    assert caught.value.facts["floor_bytes"] == floor + held


@pytest.mark.usefixtures("alone")
def test_a_minimum_cut_and_a_function_of_the_users_keep_to_a_limit_as_well() -> None:
    training = Training("transformer")
    expected, _ = training.run(lambda model: model)
    for partition in ("min_cut", "default", lambda problem: range(len(problem.sizes))):
        found, peak = training.run(
            lambda model, p=partition: dovetail.compile(model, partition=p, memory_limit="transient:900kB", verify=1)
        )
        assert _same(found, expected)
        assert peak <= 900_000
    with pytest.raises(MemoryLimitTooLow):
        training.run(
            lambda model: dovetail.compile(model, partition=lambda problem: (), memory_limit="transient:100kB")
        )


@pytest.mark.usefixtures("alone")
def test_through_dynamo() -> None:
    training = Training("transformer")
    expected, _ = training.run(lambda model: model)
    options = {"memory_limit": "transient:600kB", "verify": 1}
    found, peak = training.run(lambda model: torch.compile(model, backend="dovetail", options=options))
    assert _same(found, expected)
    assert peak <= 600_000


@pytest.mark.usefixtures("alone")
def test_inference() -> None:
    torch.manual_seed(0)
    net, x = Held(), torch.randn(256, 64)
    with torch.no_grad():
        expected, free = net(x), measure_peak(net, x).peak_bytes
        floor = _floor(lambda: dovetail.compile(net, memory_limit="transient:1B")(x))
        assert floor < 0.5 * free
        for limit in (floor, (floor + free) // 2, free):
            compiled = dovetail.compile(net, memory_limit=f"transient:{limit}B", verify=2)
            assert torch.equal(compiled(x), expected)
            assert measure_peak(compiled, x).peak_bytes <= limit


@pytest.mark.usefixtures("alone")
def test_frozen_programs_keep_their_plan_in_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Held(), torch.randn(256, 64)
    with torch.no_grad():
        expected = net(x)
    floor = _floor(lambda: dovetail.freeze(net, (x,), memory_limit="transient:1B"))
    frozen = dovetail.freeze(net, (x,), memory_limit=f"transient:{floor}B")
    frozen.save(tmp_path / "net.dovetail")
    for run in (frozen, dovetail.load(tmp_path / "net.dovetail")):
        assert torch.equal(run(x), expected)
        assert measure_peak(run, x).peak_bytes <= floor
    with pytest.raises(MemoryLimitTooLow, match="the frozen program does not fit"):
        dovetail.freeze(net, (x,), memory_limit=f"transient:{floor - 1}B", discard_originals=True)
    assert torch.equal(net(x), expected)  # nothing was taken


def test_other_patterns_of_gradients_keep_to_the_limit_or_are_refused() -> None:
    """A loss, and hidden values that may get a gradient, too."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x
        for _ in range(6):
            h = (h @ w).tanh().sin()
        return h, h.square().sum()

    def gradients(run: Callable[..., tuple[Tensor, Tensor]], wanted: tuple[int, ...]) -> list[Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(64, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)
        outputs = run(x, w)
        torch.autograd.backward([outputs[i] for i in wanted], [torch.ones_like(outputs[i]) for i in wanted])
        assert x.grad is not None
        assert w.grad is not None
        return [x.grad, w.grad]

    floor = _floor(lambda: gradients(dovetail.compile(f, memory_limit="transient:1B"), (1,)))
    for limit in (floor, 2 * floor):
        compiled = dovetail.compile(f, memory_limit=f"transient:{limit}B", verify=1)
        for wanted in ((1,), (0,), (0, 1)):
            try:
                assert _same(gradients(compiled, wanted), gradients(f, wanted))
            except MemoryLimitTooLow:
                assert wanted != (1,)  # the one that is likely
                assert limit == floor


def test_inputs_that_change_between_forward_and_backward() -> None:
    """Nothing is computed again from what eager does not keep, whatever the limit."""

    def f(x: Tensor, bias: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).sin().cos() + bias
        return y, (y.sin() @ w).exp().sum()

    def step(run: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor | None]:
        torch.manual_seed(0)
        x, bias, w = (torch.randn(n).requires_grad_() for n in ((64, 32), (32,), (32, 32)))
        _, loss = run(x, bias, w)
        with torch.no_grad():
            bias.zero_()
        loss.backward()
        return [x.grad, bias.grad, w.grad]

    expected = step(f)
    floor = _floor(lambda: step(dovetail.compile(f, memory_limit="transient:1B")))
    for limit in (floor, 2 * floor):
        found = step(dovetail.compile(f, memory_limit=f"transient:{limit}B", verify=1))
        assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("option", [{"dynamic": True}, {"double_backward": True}])
def test_what_goes_with_no_limit(option: dict[str, Any]) -> None:
    with pytest.raises(BadOptionValue, match="no memory_limit beside it"):
        dovetail.compile(nn.ReLU(), memory_limit="1GiB", **option)


def test_sizes_that_are_not_known_before() -> None:
    with pytest.raises(BadOptionValue, match="depends on data"):
        dovetail.compile(lambda x: x.nonzero() + 1, memory_limit="1GiB")(torch.ones(3))
    with pytest.raises(BadOptionValue, match="sizes of the inputs are symbols"):
        dovetail.freeze(nn.Linear(3, 3), (torch.ones(2, 3),), memory_limit="1GiB", dynamic_shapes={"input": {0: "n"}})
    net = torch.compile(nn.Linear(3, 3), backend="dovetail", dynamic=True, options={"memory_limit": "1GiB"})
    with pytest.raises(Exception, match=r"torch\.compile\(dynamic=False\) has none"):
        net(torch.ones(2, 3))


def test_compilers_of_the_users_have_no_limit() -> None:
    with pytest.raises(DovetailError, match="memory_limit"):
        dovetail.aot_function(lambda x: x, lambda gm, inputs: gm, memory_limit="1GiB")


@pytest.mark.usefixtures("alone")
def test_checkpoints_of_the_user_still_run_again() -> None:
    training = Training("transformer")
    layer = training.model.net.layers[1]  # type: ignore[union-attr, index]
    forward = layer.forward
    layer.forward = lambda h: torch.utils.checkpoint.checkpoint(forward, h, use_reentrant=False)
    expected, _ = training.run(lambda model: model)
    found, peak = training.run(lambda model: dovetail.compile(model, memory_limit="transient:700kB", verify=1))
    assert _same(found, expected)
    assert peak <= 700_000


def _half(a: Tensor, c: Tensor) -> Tensor:
    made = a.clone()
    made[: len(a) // 2].mul_(c[: len(a) // 2])
    return made


def _two_results(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A value that is written in part, and a loss, of which alone gradients are wanted."""
    moved = x + bias
    first, h = F.gelu(x), torch.softmax(moved, 1)
    s = h.sin()
    shown = _half(s, s.tanh())
    turned = s.t().contiguous()
    half, double = _half(first, h), shown * 2
    with torch.no_grad():
        double[0].fill_(0.5)
    losses = [(value * value).mean() for value in (turned, half, double)]
    return shown, losses[0] + losses[1] + losses[2]


def _backward(function: Callable[..., tuple[Tensor, Tensor]], x: Tensor, bias: Tensor) -> None:
    results = function(x, bias)
    results[1].backward()


@pytest.mark.usefixtures("alone")
def test_a_loss_among_other_results_fits_in_every_limit_from_the_lowest_named() -> None:
    def called(options: dict[str, Any] | None) -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        x, bias = torch.randn(48, 48, requires_grad=True), torch.randn(48, requires_grad=True)
        function = _two_results if options is None else dovetail.compile(_two_results, **options)
        _backward(function, x, bias)
        x.grad = bias.grad = None
        peak = measure_peak(partial(_backward, function, x, bias)).peak_bytes
        assert x.grad is not None
        assert bias.grad is not None
        if options is not None and "partition" not in options:
            assert dovetail.explain(function, x, bias).call.run_bytes == peak
        return [x.grad, bias.grad], peak

    expected, _ = called(None)
    _, free = called({"partition": "default"})
    floor = _floor(lambda: called({"memory_limit": "transient:1B"}))
    peaks = []
    for part in (0, 2, 3):
        limit = floor + (free - floor) * part // 4
        found, peak = called({"memory_limit": f"transient:{limit}B"})
        assert _same(found, expected)
        assert peak <= limit
        peaks.append(peak)
    assert peaks == sorted(peaks)


def _deep(results: int, layers: int) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """The loss of some layers, and what they gave."""

    def made(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        shown = []
        for _ in range(layers):
            x = F.gelu(x @ w).tanh() + x
            shown.append(x)
        return (F.log_softmax(x, 1).square().mean(), *shown[-results:])

    return made


@pytest.mark.parametrize(("results", "layers"), [(1, 4), (2, 6), (4, 4)])
def test_a_limit_that_is_far_too_low_plans_few_backwards_and_names_the_same_peak(
    results: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a loss there are results, so that backwards of the loss are planned by themselves."""
    tried: list[bool] = []
    ladder = Search.ladder.func

    def counted(self: Search) -> Ladder:
        tried.append(True)
        return ladder(self)

    monkeypatch.setattr(Search, "ladder", property(counted))
    first = _deep(results, layers)

    def floor() -> int:
        torch.manual_seed(0)
        x, w = torch.randn(64, 48, requires_grad=True), torch.randn(48, 48, requires_grad=True)

        def called() -> None:
            dovetail.compile(first, memory_limit="transient:1B")(x, w)[0].backward()

        return _floor(called)

    lowest, few = floor(), len(tried)
    tried.clear()
    monkeypatch.setattr(Search, "_cannot_be_lower", lambda *_: False)
    peaks_of = Splitting._peaks_of_run
    monkeypatch.setattr(Splitting, "_peaks_of_run", lambda *given: (peaks_of(*given)[0], 0))
    assert floor() == lowest
    assert few < len(tried)


def test_executors_are_told_of_all_inputs_of_backward_that_may_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again from, too: it is let go of after its last use, if forward was split for more gradients."""
    made: list[tuple[Program, Collection[int]]] = []

    def noted(program: Program, *args: Any, dying: Collection[int] = ()) -> Any:
        made.append((program, dying))
        return code_of(program, *args, dying=dying)

    monkeypatch.setattr("dovetail.pipeline.compile.code_of", noted)
    x, bias = torch.randn(48, 48, requires_grad=True), torch.randn(48, requires_grad=True)
    limit = _floor(lambda: dovetail.compile(_two_results, memory_limit="transient:1B")(x, bias))
    made.clear()
    _backward(dovetail.compile(_two_results, memory_limit=f"transient:{limit}B"), x, bias)
    (forward, _), (backward, dying) = made
    roles = zip(forward.signature.outputs, forward.outputs, strict=True)
    handed = {v.tensor.storage for r, v in roles if not isinstance(r, Residual) and isinstance(v, Value)}
    handed |= forward.input_storages()
    inputs = enumerate(zip(backward.signature.inputs, backward.inputs, strict=True))
    own = {at for at, (r, v) in inputs if isinstance(r, Residual) and v.tensor.storage not in handed}
    assert own
    assert own <= {*dying}
