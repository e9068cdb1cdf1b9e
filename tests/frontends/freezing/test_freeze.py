"""Frozen modules: equal to eager bit by bit, called as the model is, and the model untouched."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from tests.frontends.freezing.models import Cache, Classifier, Counter, Nested, Tied
from tests.rounding import in_float64
from tests.torch_release import MATMUL_FIXES_SIZES


def _eager(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def test_equals_eager_for_other_numbers() -> None:
    model = Classifier().eval()
    frozen = dovetail.freeze(model, (torch.rand(4, 3, 8, 8),))
    for rows in (4, 7, 2, 1):
        x = torch.randn(rows, 3, 8, 8)
        found = frozen(x)
        assert torch.equal(found, _eager(model, x))
        assert found.stride() == _eager(model, x).stride()
        assert not found.requires_grad


def test_training_mode_is_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    twin = copy.deepcopy(model)
    frozen = dovetail.freeze(model, (torch.rand(6, 4),))
    for _ in range(3):
        x = torch.rand(6, 4)
        torch.manual_seed(3)
        found = frozen(x)
        torch.manual_seed(3)
        assert torch.equal(found, _eager(twin, x))
    state = {name: t for name, t in frozen.state_dict().items() if "running" in name}
    assert torch.equal(
        state["n_1_running_mean" if "n_1_running_mean" in state else "_1_running_mean"], twin[1].running_mean
    )
    assert model[1].num_batches_tracked == 0


def test_written_buffers_are_the_programs_own() -> None:
    model, twin = Counter(), Counter()
    twin.load_state_dict(model.state_dict())
    frozen = dovetail.freeze(model, (torch.rand(2, 3),))
    for _ in range(3):
        x = torch.rand(2, 3)
        for found, wanted in zip(frozen(x), _eager(twin, x), strict=True):
            assert torch.equal(found, wanted)
    assert model.calls == 0
    assert not model.seen.any()
    assert frozen.check_stale() == ()


def test_a_cache_is_written_in_place() -> None:
    model, twin = Cache(), Cache()
    twin.load_state_dict(model.state_dict())
    frozen = dovetail.freeze(model, (torch.rand(1, 4), torch.tensor([0])), dynamic_shapes="static")
    place = frozen.state_dict()["keys"].data_ptr()
    for step in range(5):
        x, position = torch.rand(1, 4), torch.tensor([step])
        assert torch.equal(frozen(x, position), _eager(twin, x, position))
    assert frozen.state_dict()["keys"].data_ptr() == place
    assert torch.equal(frozen.state_dict()["keys"], twin.keys)
    assert not model.keys.any()


def test_methods() -> None:
    model = Classifier().eval()
    x = torch.rand(2, 3, 8, 8)
    frozen = dovetail.freeze(model, {"forward": ((x,), {}), "embed": ((), {"x": x})})
    assert torch.equal(frozen.embed(x), _eager(model.embed, x))  # type: ignore[arg-type]
    assert torch.equal(frozen(x=x), _eager(model, x))
    only = dovetail.freeze(model, {"embed": ((x,), {})})
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-009"):
        only(x)


def test_containers_defaults_and_views() -> None:
    model = Nested()
    batch = {"x": torch.rand(3, 4), "mask": torch.ones(3, dtype=torch.bool)}
    frozen = dovetail.freeze(model, (batch,))
    for call in (((batch,), {}), ((), {"batch": batch}), ((batch, None), {"factor": 2.0, "wide": False})):
        found, wanted = frozen(*call[0], **call[1]), _eager(model, *call[0], **call[1])  # type: ignore[misc]
        assert torch.equal(found["x"], wanted["x"])
        assert found["factor"] == 2.0
        assert found["pair"][0] is batch["mask"]
        assert found["pair"][1].data_ptr() == batch["x"].data_ptr()
    for args, kwargs, reason in (
        ((batch, torch.rand(4)), {}, "bias is a tensor"),
        ((batch,), {"factor": 3.0}, "factor is 3.0, and was 2.0"),
        ((batch,), {"wide": True}, "wide is True, and was False"),
        (({"x": batch["x"]},), {}, "nested differently"),
        (({"x": batch["x"].double(), "mask": batch["mask"]},), {}, "float64"),
    ):
        with pytest.raises(dovetail.DovetailError, match=f"(?s)DT-FREEZE-003.*{reason}"):
            frozen(*args, **kwargs)
    with pytest.raises(TypeError, match="batch"):
        frozen()


def test_an_input_that_is_written() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x.add_(y)
            return x * 2

    frozen = dovetail.freeze(Adds(), (torch.zeros(4), torch.zeros(4)))
    x, y = torch.rand(4), torch.rand(4)
    wanted = x + y
    found = frozen(x, y)
    assert torch.equal(x, wanted)
    assert torch.equal(found, wanted * 2)
    whole = torch.rand(6)
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*share memory"):
        frozen(whole[:4], whole[2:])
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*strides"):
        frozen(torch.rand(8)[::2], y)


def test_inputs_that_lie_otherwise() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Flatten(0))
    frozen = dovetail.freeze(model, (torch.rand(5, 4),))
    for x in (torch.rand(4, 5).t(), torch.rand(10, 4)[::2], torch.rand(1, 4).expand(5, 4), torch.rand(5, 8)[:, ::2]):
        assert torch.equal(
            frozen(x), _eager(model, x.contiguous())
        )  # it is copied; as it is, kernels may add otherwise
        in_float64(model, x).assert_holds((frozen(x),))


def test_a_parameter_that_is_handed_out_is_state() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + self.weight.t(), self.weight[:2]

    model = Gives()
    frozen = dovetail.freeze(model, (torch.rand(3),), dynamic_shapes="static")
    before = model.weight.detach().clone()
    _, part = frozen(torch.zeros(3))
    part.fill_(7)
    found, _ = frozen(torch.zeros(3))
    assert found[:2].tolist() == [7, 7]
    assert torch.equal(model.weight.detach(), before)


def test_tied_weights_are_held_once() -> None:
    model = Tied()
    frozen = dovetail.freeze(model, (torch.tensor([[1, 2, 3]]),))
    ids = torch.randint(11, (1 if MATMUL_FIXES_SIZES else 4, 3))
    assert torch.equal(frozen(ids), _eager(model, ids))
    assert frozen.constant_bytes() == model.embedding.weight.untyped_storage().nbytes()


def test_constants_share_memory_with_the_model() -> None:
    model = Tied()
    frozen = dovetail.freeze(model, (torch.tensor([[1, 2, 3]]),))
    places = {t.untyped_storage().data_ptr() for t in frozen.state_dict().values()}
    assert places == {model.embedding.weight.untyped_storage().data_ptr()}


def test_the_model_stays_as_it_is() -> None:
    model = Classifier()
    before = {name: (t, t.clone(), t.requires_grad) for name, t in model.state_dict(keep_vars=True).items()}
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    dovetail.freeze(model, (torch.rand(2, 3, 8, 8),))
    assert model.training
    for name, tensor in model.state_dict(keep_vars=True).items():
        held, values, requires_grad = before[name]
        assert tensor is held
        assert torch.equal(tensor, values)
        assert tensor.requires_grad is requires_grad
        assert tensor.grad is None
    assert all(attributes[name].keys() == module.__dict__.keys() for name, module in model.named_modules())


def test_gradients_are_refused_or_come_from_the_original() -> None:
    model = nn.Linear(3, 2)
    x = torch.rand(4, 3, requires_grad=True)
    frozen = dovetail.freeze(model, (torch.rand(4, 3),))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-004.*input requires one"):
        frozen(x)
    with torch.no_grad():
        assert torch.equal(frozen(x), model(x))
    assert not frozen(x.detach()).requires_grad
    other = dovetail.freeze(model, (torch.rand(4, 3),), on_grad="original")
    other(x).sum().backward()
    assert x.grad is not None
    with pytest.raises(dovetail.DovetailError, match="transform"):
        torch.func.vmap(frozen)(torch.rand(2, 4, 3))


def test_autocast_is_as_it_was_when_frozen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x = torch.rand(3, 4)
    frozen = dovetail.freeze(model, (x,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = frozen(x)
        inside = dovetail.freeze(model, (x,))
        wanted = _eager(model, x)
    assert torch.equal(found, _eager(model, x))
    assert torch.equal(inside(x), wanted)


def test_what_a_frozen_module_cannot_do() -> None:
    frozen = dovetail.freeze(nn.Linear(3, 2), (torch.rand(4, 3),))
    for attempt in (
        lambda: frozen.to(torch.float64),
        frozen.double,
        frozen.train,
        frozen.requires_grad_,
        lambda: frozen.load_state_dict({}),
        lambda: pickle.dumps(frozen),
    ):
        with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-009"):
            attempt()
    assert frozen.eval() is frozen
    assert list(frozen.parameters()) == []


def test_a_copy_has_state_of_its_own() -> None:
    frozen = dovetail.freeze(Counter(), (torch.rand(2, 3),))
    other = copy.deepcopy(frozen)
    x = torch.rand(2, 3)
    first = frozen(x)[0]
    frozen(x)
    assert torch.equal(other(x)[0], first)


def test_an_exported_program() -> None:
    model = Classifier().eval()
    exported = torch.export.export(model, (torch.rand(2, 3, 8, 8),))
    frozen = dovetail.freeze(exported, (torch.rand(2, 3, 8, 8),), dynamic_shapes="static")
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(frozen(x), _eager(model, x))


@pytest.mark.parametrize(
    ("example", "error"),
    [
        (torch.rand(2, 3), "DT-OPTION"),
        ((), "DT-OPTION"),
        ({"forward": torch.rand(2, 3)}, "DT-OPTION"),
        ({"missing": ((torch.rand(2, 3),), {})}, "DT-FREEZE-001"),
        ({"state_dict": ((), {})}, "DT-FREEZE-001"),
    ],
)
def test_examples_that_are_no_calls(example: Any, error: str) -> None:
    with pytest.raises(dovetail.DovetailError, match=error):
        dovetail.freeze(nn.Linear(3, 2), example)


def test_options_are_checked_first() -> None:
    model, x = nn.Linear(3, 2), (torch.rand(2, 3),)
    for options in (
        {"on_stale": "never"},
        {"on_grad": "maybe"},
        {"keep_sources": "disk"},
        {"passes": "fastest"},
        {"passes": ["no_such_pass"]},
        {"executor": "x"},
        {"discard_originals": True, "on_grad": "original"},
    ):
        with pytest.raises(dovetail.DovetailError, match="DT-OPTION"):
            dovetail.freeze(model, x, **options)  # type: ignore[arg-type]
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-001"):
        dovetail.freeze(torch.relu, x)  # type: ignore[arg-type]


def test_memory_that_is_shared_and_written_is_refused() -> None:
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", torch.zeros(6))
            self.register_buffer("part", self.whole[2:])

        def forward(self, x: Tensor) -> Tensor:
            self.whole.add_(1)
            return self.part + x

    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-001.*share"):
        dovetail.freeze(Shares(), (torch.rand(4),))


def test_the_example_is_called_as_it_was_given() -> None:
    """Decorators of a model may put in arguments that were not given."""

    class Fills(nn.Module):
        def forward(self, x: Tensor, *args: Tensor, flag: bool | None = None, **more: Tensor) -> Tensor:
            if "y" in more and flag is None:
                return x + more["y"] + sum(args)
            return x

    def filled(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{"flag": None, **kwargs}) if len(args) < 4 else None

    model = Fills()
    forward = model.forward
    filled.__wrapped__ = forward  # type: ignore[attr-defined]
    model.forward = filled  # type: ignore[method-assign]
    given = (torch.rand(3), torch.rand(3), torch.rand(3)), {"y": torch.rand(3)}
    frozen = dovetail.freeze(model, {"forward": given})
    assert torch.equal(frozen(*given[0], **given[1]), _eager(model, *given[0], **given[1]))
    assert torch.equal(frozen(*given[0], **given[1], flag=None), _eager(model, *given[0], **given[1]))
