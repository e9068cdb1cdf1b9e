"""GRU, LSTM and RNN layers: one operator each, for any batch, over the model's own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from tests.rotation import rotated

KINDS: list[tuple[Any, dict[str, Any], str]] = [
    (nn.GRU, {}, "gru"),
    (nn.LSTM, {}, "lstm"),
    (nn.LSTM, {"proj_size": 2}, "lstm"),
    (nn.RNN, {}, "rnn_tanh"),
    (nn.RNN, {"nonlinearity": "relu", "bias": False}, "rnn_relu"),
]
FORMS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True},
    {"num_layers": 3, "dropout": 0.5},
    {"num_layers": 2, "bidirectional": True, "dtype": torch.float64},
]

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def _count(frozen: dovetail.FrozenModule, operator: str) -> set[int]:
    """How often an operator stands in each of the programs."""
    programs = [variant.guard.program.folded.program for variant in frozen._methods["forward"].variants]
    texts = [[getattr(node.target, "python", str(node.target)) for node in program.nodes] for program in programs]
    return {sum(operator in text for text in nodes) for nodes in texts}


def _flat(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [x for item in results for x in _flat(item)]


def _check_equal(found: Any, wanted: Any) -> None:
    for a, b in zip(_flat(found), _flat(wanted), strict=True):
        assert a.stride() == b.stride()
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("kind", "options", "name", "form"),
    [
        *((*kind, FORMS[-1 - number % len(FORMS)]) for number, kind in enumerate(KINDS)),
        *((*KINDS[0], form) for form in FORMS[:-1]),
    ],
    ids=str,
)
def test_layer_is_one_operator(kind: Any, options: dict[str, Any], name: str, form: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = kind(4, 3, **options, **form).eval()
    dtype = form.get("dtype", torch.float32)
    shape = (2, 5, 4)
    frozen = dovetail.freeze(
        model, (torch.randn(shape, dtype=dtype),), dynamic_shapes={"input": {0: "time", 1: "batch"}}
    )
    assert _count(frozen, f"aten.{name}.input") == {1}
    assert frozen.constant_bytes() == sum(parameter.nbytes for parameter in model.parameters())
    for shape in ((2, 5, 4), (7, 3, 4), (5, 64, 4)):
        x = torch.randn(shape, dtype=dtype)
        with torch.no_grad():
            _check_equal(frozen(x), model(x))


@pytest.mark.parametrize(
    ("kind", "options", "name", "form", "requires"),
    rotated(
        [
            *((*kind, FORMS[number % len(FORMS)], True) for number, kind in enumerate(KINDS)),
            *((*KINDS[0], FORMS[number], number == 3) for number in (0, 3)),
        ],
        3,
    ),
    ids=str,
)
def test_batch_first_has_the_bits_of_weights_as_they_are(
    kind: Any, options: dict[str, Any], name: str, form: dict[str, Any], requires: bool, tmp_path: Path
) -> None:
    """`at::matmul` asks weights whether they require gradients where the steps do not lie one after the other."""
    torch.manual_seed(0)
    model = kind(4, 3, batch_first=True, **options, **form).eval().requires_grad_(requires)
    x = torch.randn(4, 5, 4, dtype=form.get("dtype", torch.float32))
    frozen = dovetail.freeze(model, (x,), dynamic_shapes={"input": {0: "batch", 1: "time"}})
    assert _count(frozen, f"aten.{name}.input") == {1}
    assert frozen.constant_bytes() == sum(parameter.nbytes for parameter in model.parameters())
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    for shape in ((4, 5, 4), (2, 7, 4), (33, 64, 4), (1, 7, 4), (5, 1, 4)):
        x = torch.randn(shape, dtype=x.dtype)
        with torch.no_grad():
            wanted = model(x)
        for found in (frozen(x), loaded(x)):
            _check_equal(found, wanted)


def test_a_sequence_in_other_order_has_the_bits_of_weights_as_they_are() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3)

        def forward(self, x: Tensor) -> Any:
            return self.layer(x.transpose(0, 1))

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 7, 4)
    frozen = dovetail.freeze(model, (x,))
    with torch.no_grad():
        _check_equal(frozen(x), model(x))
        model.layer.weight_ih_l0.requires_grad_(False)  # some require gradients: by its parts
        frozen = dovetail.freeze(model, (x,), dynamic_shapes="static")
        assert _count(frozen, "aten.gru.input") == {0}
        _check_equal(frozen(x), model(x))


def test_given_states_and_unbatched_inputs() -> None:
    model, x = nn.LSTM(4, 3).eval(), torch.randn(5, 4)
    states = (torch.randn(1, 3), torch.randn(1, 3))
    with torch.no_grad():
        _check_equal(dovetail.freeze(model, (x, states), dynamic_shapes="static")(x, states), model(x, states))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_saved_and_loaded(kind: Any, tmp_path: Path) -> None:
    model, x = kind(4, 3, 2, bidirectional=True).eval(), torch.randn(2, 5, 4)
    dovetail.freeze(model, (x,)).save(tmp_path / "model.dovetail")
    with torch.no_grad():
        _check_equal(dovetail.load(tmp_path / "model.dovetail")(x), model(x))


def test_weights_that_change_are_taken() -> None:
    model, x = nn.GRU(4, 3).eval(), torch.randn(5, 2, 4)
    frozen = dovetail.freeze(model, (x,))
    other = nn.GRU(4, 3).eval()
    frozen.swap_weights(other.state_dict())
    with torch.no_grad():
        _check_equal(frozen(x), other(x))


def test_under_autocast_the_parts_are_recorded() -> None:
    """Under autocast the parts of a layer are converted one by one, so it is recorded by its parts."""
    layer, x = nn.GRU(4, 3).eval(), torch.randn(5, 2, 4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x)

    model = Model().eval()
    frozen = dovetail.freeze(model, (x,), dynamic_shapes="static")
    with torch.no_grad():
        _check_equal(frozen(x), model(x))
    assert torch.gru is torch._C._VariableFunctions.gru
    assert "gru" not in vars(torch._VF)


@pytest.mark.parametrize("requires", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"dtype": torch.float64}], ids=str)
@pytest.mark.parametrize(("kind", "name"), [(nn.GRUCell, "gru_cell"), (nn.LSTMCell, "lstm_cell")])
def test_a_cell_is_one_operator(kind: Any, name: str, options: dict[str, Any], requires: bool, tmp_path: Path) -> None:
    """Taken apart, what it writes in place would be put together again part by part."""
    torch.manual_seed(0)
    dtype = options.get("dtype", torch.float32)

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(4, 3, **options)

        def forward(self, x: Tensor, state: Tensor) -> Any:
            held: Any = (state, state * 2) if name == "lstm_cell" else state
            for _ in range(3):
                held = self.cell(x, held)
            return held, self.cell(x.t().contiguous().t())

    model = Steps().eval().requires_grad_(requires)
    x, state = torch.randn(5, 4, dtype=dtype), torch.randn(5, 3, dtype=dtype)
    frozen = dovetail.freeze(model, (x, state), dynamic_shapes={"x": {0: "n"}, "state": {0: "n"}})
    assert _count(frozen, f"aten.{name}.default") == {4}
    assert frozen.constant_bytes() == sum(parameter.nbytes for parameter in model.parameters())
    frozen.save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    for rows in (5, 2, 33):
        x, state = torch.randn(rows, 4, dtype=dtype), torch.randn(rows, 3, dtype=dtype)
        with torch.no_grad():
            wanted = model(x, state)
        _check_equal(frozen(x, state), wanted)
        _check_equal(loaded(x, state), wanted)


def test_a_cell_that_is_trained_is_taken_apart() -> None:
    model = nn.GRUCell(4, 3)
    x = torch.randn(2, 4)
    dovetail.compile(model)(x).sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_packed_sequences_are_saved_and_loaded(tmp_path: Path) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]

    torch.manual_seed(0)
    model = Tagger().eval()
    dovetail.freeze(model, (torch.randn(2, 5, 4), torch.tensor([5, 2]))).save(tmp_path / "model.dovetail")
    loaded = dovetail.load(tmp_path / "model.dovetail")
    for lengths in ([5, 2], [3, 4], [1, 1]):
        x = torch.randn(2, 5, 4)
        with torch.no_grad():
            _check_equal(loaded(x, torch.tensor(lengths)), model(x, torch.tensor(lengths)))


@pytest.mark.parametrize(("kind", "pads_to_all"), [(nn.LSTM, False), (nn.LSTM, True), (nn.GRU, False), (nn.RNN, True)])
def test_packed_sequences_of_any_batch_and_length(tmp_path: Path, kind: Any, pads_to_all: bool) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(4, 3, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            found, state = self.layer(packed)
            state = state if isinstance(state, Tensor) else state[0]
            length = x.shape[1] if pads_to_all else None
            return nn.utils.rnn.pad_packed_sequence(found, batch_first=True, total_length=length)[0], state

    model = Tagger().eval()
    shapes = {"x": {0: "batch", 1: "length"}, "lengths": {0: "batch"}}
    frozen = dovetail.freeze(model, (torch.randn(2, 5, 4), torch.tensor([5, 2])), dynamic_shapes=shapes)
    frozen.save(tmp_path / "model.dovetail")
    for program in (frozen, dovetail.load(tmp_path / "model.dovetail")):
        for lengths in ([5, 2], [3, 4, 1], [7], [1], [2, 2, 2, 6]):
            x = torch.randn(len(lengths), max(lengths) + 1, 4)
            with torch.no_grad():
                for found, wanted in zip(
                    program(x, torch.tensor(lengths)), model(x, torch.tensor(lengths)), strict=True
                ):
                    _check_equal(found, wanted)
