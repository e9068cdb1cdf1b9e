"""Models of the zoo, compiled and in eager, side by side in one process: same bits in inference and in training.

A training run is five steps of AdamW, with dropout where the model has it; both arms start from one seed. Compared per
step are loss and gradients (values and strides), and at the end parameters, buffers and the generator's state. Every
model is one graph: nothing of it runs outside, and no step compiles again. Each run (`tests.rotation`) trains some of
the models, and calls some.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.frontends.backend import dovetail_backend
from tests.models.zoo import MORE, ZOO, Batch, Entry, loss_of
from tests.rotation import rotated

STEPS = 5
SEED = 11
BITWISE = tuple(entry for entry in ZOO + MORE if not entry.tolerance)
TOLERANT = tuple(entry for entry in ZOO + MORE if entry.tolerance)
SMALLEST = tuple(entry for entry in ZOO if entry.name in ("mlp", "resnet"))
MODES = (torch.no_grad, torch.inference_mode)
FIRST = ("gpt2", "llama", "bert", "vit", "resnet", "mlp", "lstm", "recommender")


pytestmark = [
    pytest.mark.usefixtures("alone", "recurrent_modules"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
]


@pytest.fixture
def recurrent_modules() -> Iterator[None]:
    """Without this, Dynamo runs recurrent modules, and what calls them, in eager mode."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@dataclass(frozen=True, slots=True)
class Run:
    """What a training run leaves behind. state: parameters and buffers by name."""

    losses: list[Tensor]
    gradients: list[dict[str, Tensor]]
    state: dict[str, Tensor]
    generator: Tensor


def compiled(model: nn.Module, backend: str = "dovetail", **options: Any) -> Callable[..., Any]:
    """The model under torch.compile, as one graph."""
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=False, options=options or None)


def graph_count() -> int:
    """How many graphs Dynamo has handed to a backend since the last reset of its counters."""
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert not breaks
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def train(model: nn.Module, call: Callable[..., Any], batches: list[Batch]) -> Run:
    """Train `model` by calling `call`, which runs it. The gradients of a step are kept as they are, not copied."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(SEED)
    losses, gradients = [], []
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(call(**batch))
        loss.backward()
        losses.append(loss.detach())
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return Run(losses, gradients, dict(model.state_dict()), torch.get_rng_state())


def evaluate(model: nn.Module, call: Callable[..., Any], batch: Batch, mode: Any = torch.no_grad) -> dict[str, Tensor]:
    """The outputs of `model` in inference."""
    model.eval()
    torch.manual_seed(SEED)  # some draw in inference as well
    with mode():
        return {name: value for name, value in call(**batch).items() if isinstance(value, Tensor)}


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Same names; per name the same dtype, strides and bits."""
    assert actual.keys() == expected.keys()
    assert actual
    for name, tensor in expected.items():
        mine = actual[name]
        assert mine.dtype == tensor.dtype, name
        assert mine.stride() == tensor.stride(), f"{name}: strides {mine.stride()}, eager has {tensor.stride()}"
        assert torch.equal(mine, tensor), f"{name}: differs by up to {(mine.double() - tensor.double()).abs().max()}"


def assert_same_runs(actual: Run, expected: Run) -> None:
    """Every bit of two training runs agrees."""
    assert [loss.item() for loss in actual.losses] == [loss.item() for loss in expected.losses]
    for mine, eager in zip(actual.gradients, expected.gradients, strict=True):
        assert_same_tensors(mine, eager)
    assert_same_tensors(actual.state, expected.state)
    assert torch.equal(actual.generator, expected.generator)


# --- inference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "mode"),
    rotated([(e, mode) for e in BITWISE for mode in MODES if e.name in FIRST or mode is torch.no_grad], 5),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_inference_equals_eager(entry: Entry, mode: Any) -> None:
    model = entry.model()
    call = compiled(model, verify=1)
    for batch in entry.batches(2):
        expected = evaluate(model, model, batch, mode)
        actual = evaluate(model, call, batch, mode)
        assert_same_tensors(actual, expected)
        assert not any(tensor.requires_grad for tensor in actual.values())
        assert all(tensor.is_inference() == (mode is torch.inference_mode) for tensor in actual.values())


@pytest.mark.parametrize("entry", TOLERANT, ids=str)
def test_inference_equals_the_eager_backend(entry: Entry) -> None:
    model = entry.model()
    (batch,) = entry.batches(1)
    expected = evaluate(model, compiled(model, "eager"), batch)
    torch.compiler.reset()
    actual = evaluate(model, compiled(model, verify=1), batch)
    assert_same_tensors(actual, expected)
    _assert_within_eagers_error(actual, evaluate(model, model, batch), evaluate(model.double(), model, batch))


# --- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", rotated(BITWISE, 5), ids=str)
def test_training_equals_eager(entry: Entry) -> None:
    batches = entry.batches(STEPS)
    eager, mine = entry.model(), entry.model()
    expected = train(eager, eager, batches)
    _assert_trains(entry, expected)
    torch._dynamo.utils.counters.clear()
    assert_same_runs(train(mine, compiled(mine, verify=1), batches), expected)
    assert graph_count() == 1


@pytest.mark.parametrize("entry", TOLERANT, ids=str)
def test_training_equals_the_eager_backend(entry: Entry) -> None:
    batches = entry.batches(STEPS)
    models = [entry.model() for _ in range(4)]
    expected = train(models[0], compiled(models[0], "eager"), batches)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    actual = train(models[1], compiled(models[1], verify=1), batches)
    assert graph_count() == 1
    assert_same_runs(actual, expected)
    eager = train(models[2], models[2], batches)
    _assert_trains(entry, eager)
    exact = train(models[3].double(), models[3], batches)
    for step in range(STEPS):
        _assert_within_eagers_error(actual.gradients[step], eager.gradients[step], exact.gradients[step])


@pytest.mark.parametrize("entry", SMALLEST, ids=str)
def test_training_with_every_pass_run_on_both_sides(entry: Entry) -> None:
    batches = entry.batches(STEPS)
    eager, mine = entry.model(), entry.model()
    assert_same_runs(train(mine, compiled(mine, verify=2), batches), train(eager, eager, batches))


def _assert_trains(entry: Entry, run: Run) -> None:
    """The comparison has content: numbers are finite and move, and dropout draws where there is some."""
    assert all(torch.isfinite(loss) for loss in run.losses)
    assert len({loss.item() for loss in run.losses}) == STEPS
    assert all(gradient.abs().max() > 0 for name, gradient in run.gradients[0].items() if _matters(name))
    torch.manual_seed(SEED)
    assert torch.equal(run.generator, torch.get_rng_state()) is not entry.drops


def _matters(name: str) -> bool:
    """A key's bias shifts every score of a query alike, and a bias before batch norm is subtracted again."""
    return not name.endswith("bias")


def _assert_within_eagers_error(actual: dict[str, Tensor], eager: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """All tensors together are at most twice as far from float64's as eager's are."""
    mine = sum((actual[name] - tensor).square().sum() for name, tensor in exact.items())
    allowed = sum((eager[name] - tensor).square().sum() for name, tensor in exact.items())
    assert mine.sqrt() <= 2 * allowed.sqrt(), f"{mine.sqrt()} > 2 * {allowed.sqrt()}"


# --- compiling leaves no trace ----------------------------------------------------------------------------------------


def _bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _compile_by_backend(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Compile and stop before anything runs. Returns the generator's states before and after, as the backend sees
    them: Dynamo puts the state back itself."""
    states = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        states.append(torch.get_rng_state())
        dovetail_backend(graph, inputs)
        states.append(torch.get_rng_state())
        return stop

    def stop(*args: Any) -> Any:
        raise _Stopped

    with pytest.raises(_Stopped):
        torch.compile(model, backend=backend, fullgraph=True)(**batch)
    return states


def _compile_by_function(model: nn.Module, batch: Batch) -> list[Tensor]:
    before = torch.get_rng_state()
    dovetail.compile(model).prepare(**batch)
    return [before, torch.get_rng_state()]


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("way_in", [_compile_by_backend, _compile_by_function], ids=["backend", "function"])
@pytest.mark.parametrize("entry", rotated([e for e in ZOO + MORE if e.name in FIRST], 4), ids=str)
def test_compiling_changes_nothing(entry: Entry, way_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture runs the model's code, on tensors without numbers: the real ones and the generator stay as they are."""
    model = entry.model()
    # Models ask whether they are compiled, and then do not look at numbers.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    (batch,) = entry.batches(1)
    state = dict(model.state_dict())
    before, batch_before = _bits(model), {name: tensor.clone() for name, tensor in batch.items()}
    objects = {name: id(p) for name, p in model.named_parameters()}
    versions = {name: tensor._version for name, tensor in state.items()}
    generator, generator_after = way_in(model, batch)
    assert torch.equal(generator, generator_after)
    assert_same_tensors(_bits(model), before)
    assert_same_tensors(batch, batch_before)
    assert {name: id(p) for name, p in model.named_parameters()} == objects
    assert {name: tensor._version for name, tensor in state.items()} == versions
    assert all(p.grad is None and p.requires_grad and p.is_leaf for p in model.parameters())
    assert all(tensor.data_ptr() == state[name].data_ptr() for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("entry", SMALLEST, ids=str)
def test_a_copy_of_a_compiled_model_is_independent(entry: Entry) -> None:
    """deepcopy before and after compilation gives equal models, and training one leaves the other alone."""
    model = entry.model()
    batches = entry.batches(STEPS)
    before = copy.deepcopy(model)
    call = compiled(model)
    call(**batches[0])
    model.load_state_dict(before.state_dict())  # the call moved running statistics
    after = copy.deepcopy(model)
    wrapper = copy.deepcopy(call)
    assert_same_tensors(_bits(after), _bits(before))
    expected = train(before, before, batches)
    assert_same_runs(train(model, call, batches), expected)
    assert_same_runs(train(after, after, batches), expected)
    assert_same_runs(train(wrapper, wrapper, batches), _renamed(expected))


def _renamed(run: Run) -> Run:
    """The run as the wrapper of torch.compile names its parameters."""

    def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}

    return Run(run.losses, [rename(g) for g in run.gradients], rename(run.state), run.generator)
