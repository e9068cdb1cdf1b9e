"""What goes wrong while freezing, swapping and calling: errors by name, and everything as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import dovetail
from dovetail.passes.fold_evaluate import Evaluation
from tests.frontends.freezing.models import Classifier

X = torch.rand(2, 3)


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).eval()


# --- changes of the model ---------------------------------------------------------------------------------------------


class Closes(nn.Module):
    """Holds a tensor as a plain attribute, and one in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.scale = torch.rand(3)
        self.listed = [torch.rand(3)]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.exp() + self.listed[0].sin() + self.weight


def _replace_module(model: Any) -> None:
    model[0] = nn.Linear(3, 3)


def _replace_activation(model: Any) -> None:
    model[1] = nn.GELU()


def _add_module(model: Any) -> None:
    model.append(nn.ReLU())


def _delete_module(model: Any) -> None:
    del model[2]


def _transpose_in_place(model: Any) -> None:
    model[0].weight.data = model[0].weight.data.t()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_replace_module, "0"),
        (_replace_activation, "1"),
        (_add_module, "3"),
        (_delete_module, "2"),
        (_transpose_in_place, "0.weight"),
    ],
)
def test_other_modules_and_layouts_are_noticed(change: Callable[[Any], None], name: str) -> None:
    model = _layers()
    frozen = dovetail.freeze(model, (X,))
    refreshing = dovetail.freeze(model, (X,), on_stale="refresh")
    kept = list(model)  # alive or not makes no difference
    change(model)
    assert frozen.check_stale() == (name,)
    with pytest.raises(dovetail.DovetailError, match=f"(?s)DT-FREEZE-005.*{name}"):
        frozen(X)
    if name != "0.weight":
        with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-007.*another module"):
            refreshing(X)
    else:
        torch.testing.assert_close(refreshing(X), model(X).detach())  # its layout stays: sums may run in another order
    assert len(kept) == 3


def test_tensors_that_are_no_buffers_are_watched() -> None:
    model = Closes()
    frozen = dovetail.freeze(model, (X,))
    refreshing = dovetail.freeze(model, (X,), on_stale="refresh")
    assert frozen.check_stale() == ()
    model.scale.add_(1)
    assert len(frozen.check_stale()) == 1
    assert torch.equal(refreshing(X), model(X).detach())
    model.listed[0].add_(1)
    assert len(frozen.check_stale()) == 2
    model.scale = torch.rand(3)
    model.listed[0].sub_(2)
    assert torch.equal(refreshing(X), model(X).detach())


# --- failures leave everything as it was ------------------------------------------------------------------------------


def _held(model: nn.Module) -> list[tuple[str, int, int, str]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(name, id(t), t._version, str(t.tolist())) for name, t in tensors]


@pytest.mark.parametrize("discards", [False, True])
def test_an_error_in_the_model(discards: bool) -> None:
    class Fails(Classifier):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyError("not today")

    model = Fails()
    before = _held(model)
    with pytest.raises(dovetail.DovetailError, match="not today"):
        dovetail.freeze(model, (torch.rand(2, 3, 8, 8),), discard_originals=discards)
    assert _held(model) == before


class Exponents(nn.Module):
    """Four weights, each of which is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.rand(3, 3) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ weight.exp()
        return x


def test_an_operator_that_cannot_be_computed_now_is_left_to_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Evaluation._result
    calls: list[object] = []

    def result(self: Evaluation, expression: Any) -> Any:
        calls.append(expression)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return plain(self, expression)

    model, twin = Exponents(), Exponents()
    twin.load_state_dict(model.state_dict())
    monkeypatch.setattr(Evaluation, "_result", result)
    frozen = dovetail.freeze(model, (X,), discard_originals=True)
    with torch.no_grad():
        assert torch.equal(frozen(X), twin(X))


@pytest.mark.parametrize("keep", [None, "memory", "file"])
def test_an_interruption_gives_parameters_back(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Evaluation._evaluate
    calls: list[int] = []

    def evaluate(self: Evaluation, number: int) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        plain(self, number)

    model, twin = Exponents(), Exponents()
    twin.load_state_dict(model.state_dict())
    monkeypatch.setattr(Evaluation, "_evaluate", evaluate)
    with pytest.raises(KeyboardInterrupt) as raised:
        dovetail.freeze(model, (X,), discard_originals=True, keep_sources=keep)
    if keep is None:
        assert raised.value.__notes__ == ["dovetail: discarded and lost before this happened: weights.0, weights.1"]
        assert all(torch.equal(model.weights[k], twin.weights[k]) for k in (2, 3))
    else:
        assert torch.equal(model(X), twin(X))


# --- arguments of every kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        None,
        [1, 2],
        {1: torch.rand(3, 3)},
        {"weight": torch.rand(3, 3, device="meta"), "bias": torch.rand(3)},
        {"weight": torch.rand(3, 3).to_sparse(), "bias": torch.rand(3)},
        {"weight": torch.rand(3, 3), "bias": [1.0, 2.0, 3.0]},
        {"weight": torch.rand(3, 3).double(), "bias": torch.rand(3)},
        {"weight": torch.rand(4, 3), "bias": torch.rand(3)},
        {"weight": torch.rand(3, 3), "bias": torch.rand(3), "wieght": torch.rand(3)},
    ],
    ids=lambda weights: None,
)
def test_weights_that_do_not_fit(weights: Any) -> None:
    frozen = dovetail.freeze(nn.Linear(3, 3), (X,))
    wanted = frozen(X)
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-007"):
        frozen.swap_weights(weights)
    assert torch.equal(frozen(X), wanted)


def test_tied_weights_that_are_no_numbers() -> None:
    model = nn.Linear(3, 3)
    twin = nn.Sequential(model, nn.Linear(3, 3, bias=False))
    twin[1].weight = model.weight
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    frozen = dovetail.freeze(twin, (X,))
    frozen.swap_weights({name: tensor.clone() for name, tensor in twin.state_dict().items()})
    assert frozen(X).isnan().all()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_refused_by_name() -> None:
    traced = torch.jit.trace(nn.Linear(3, 3), (X,))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-001.*TorchScript"):
        dovetail.freeze(traced, (X,))


class _Counts(torch.Tensor):
    """A class that has a say in what functions of torch do."""


_KINDS: dict[str, Callable[[], Tensor]] = {
    "a torch.sparse_coo tensor": X.to_sparse,
    "a torch.sparse_csr tensor": X.to_sparse_csr,
    "a torch._mkldnn tensor": X.to_mkldnn,
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]),
    "a TwoTensor, which wraps": lambda: TwoTensor(X, X),
    "a tensor of class _Counts": lambda: X.as_subclass(_Counts),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", _KINDS)
def test_tensors_of_other_kinds_are_refused(kind: str) -> None:
    model, tensor = _layers(), _KINDS[kind]()
    frozen = dovetail.freeze(model, (X,))
    for _ in range(2):  # the second time a plain call that looks like it is known
        with pytest.raises(dovetail.DovetailError, match=f"DT-FREEZE-003.*input is {kind}"):
            frozen(tensor)
        assert torch.equal(frozen(X), model(X))
    with pytest.raises(dovetail.DovetailError, match=r"DT-CAPTURE-004|DT-FREEZE-001"):
        dovetail.freeze(model, (tensor,))
    with pytest.raises(dovetail.DovetailError, match=r"DT-CAPTURE-004|DT-FREEZE-00[12]"):
        dovetail.freeze(model, (tensor,), dynamic_shapes={"input": {0: "batch"}})


def test_calls_from_four_threads_at_once() -> None:
    model = _layers()
    frozen = dovetail.freeze(model, (X,))
    inputs = [torch.rand(rows, 3) for rows in (2, 3, 1, 5)]
    wanted = [model(x).detach() for x in inputs]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(200):
            if not torch.equal(frozen(inputs[number]), wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_calls_that_look_alike_are_bound_once_and_others_are_not() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor, times: int = 2, bias: Tensor | None = None) -> Tensor:
            return x * times if bias is None else x * times + bias

    frozen = dovetail.freeze(Picks(), (X,))
    for _ in range(2):
        for x in (X, torch.rand(5, 3), torch.rand(3, 2).t(), torch.rand(1, 3)):
            assert torch.equal(frozen(x), x * 2)
            assert torch.equal(frozen(x, 2, None), x * 2)
            assert torch.equal(frozen(times=2, x=x), x * 2)
        for args, kwargs in (((X, 3), {}), ((X, True), {}), ((X, 2, X), {}), ((X.double(),), {}), ((X[0],), {})):
            with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-003"):
                frozen(*args, **kwargs)
        with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-004"):
            frozen(X.clone().requires_grad_())
        with pytest.raises(TypeError, match="multiple values"):
            frozen(X, 2, bias=None, x=X)
