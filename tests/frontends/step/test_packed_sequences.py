"""Recurrent layers over packed sequences: one program for all lengths, bit by bit what eager mode does."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import dovetail
from dovetail.errors import DataDependentControlFlow, NoFakeKernel, UnsupportedTensor

LENGTHS = ([6, 4, 2], [3, 6, 5], [4, 4, 4], [2, 2, 6], [6, 4, 2])


class Tagger(nn.Module):
    """A tagger over sentences of other lengths."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True, **options)
        width = options.get("proj_size", 5)
        self.head = nn.Linear(2 * width if options.get("bidirectional") else width, 3)

    def encoded(self, x: Tensor, lengths: Any) -> Tensor:
        packed, last = self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        out, counts = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0)
        last = last[0] if isinstance(last, tuple) else last
        return self.head(out).mean(1) + last.sum() * counts[0]

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        return self.encoded(x, lengths)


class Twice(Tagger):
    """The layer runs twice, and its weights and inputs are used elsewhere: sums of gradients have an order."""

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        x = x * self.head.bias.sum()
        again = self.encoded(x.flip(0), torch.as_tensor(lengths).flip(0))
        penalty = sum(weight.square().sum() for weight in self.layer.parameters())
        return self.encoded(x, lengths) * again + x.mean() + penalty


def trained(net: nn.Module, door: str, arguments: Any) -> tuple[list[Tensor], int]:
    """What five steps leave behind, and how many programs were made. door: "eager", "step" or "compile"."""
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(net.parameters())
    called = dovetail.compile(net) if door == "compile" else net

    def step(*arguments: Any) -> Tensor:
        optimizer.zero_grad()
        loss = called(*arguments).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = dovetail.compile_step(step) if door == "step" else step
    found: list[Tensor] = []
    for lengths in LENGTHS:
        found += [run(*arguments(lengths)), torch.get_rng_state()]
        found += [x.detach().clone() for p in net.parameters() for x in (p, p.grad)]
    compiled: Any = {"step": run, "compile": called}.get(door)
    return found, 0 if compiled is None else compiled.stats.captures


def check(net: nn.Module, door: str, arguments: Any, captures: int = 1) -> None:
    wanted, _ = trained(copy.deepcopy(net), "eager", arguments)
    found, made = trained(net, door, arguments)
    assert all(map(torch.equal, wanted, found))
    assert made <= captures


def padded(lengths: list[int]) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 6, 4), torch.tensor(lengths)


CASES = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "dropout": 0.3, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 3, "num_layers": 2}),
    (nn.GRU, {"num_layers": 2, "dropout": 0.3}),
    (nn.GRU, {"bias": False, "bidirectional": True}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
]


@pytest.mark.parametrize("door", ["step", "compile"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_one_program_serves_all_lengths(case: int, door: str) -> None:
    kind, options = CASES[case]
    torch.manual_seed(0)
    check(Tagger(kind, **options), door, padded)


@pytest.mark.parametrize("door", ["step", "compile"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gradients_add_up_in_the_order_of_eager_mode(kind: Any, door: str) -> None:
    torch.manual_seed(0)
    check(Twice(kind, num_layers=2, bidirectional=True), door, padded)


@pytest.mark.parametrize("door", ["step", "compile"])
def test_lengths_may_be_a_list(door: str) -> None:
    torch.manual_seed(0)
    check(Tagger(nn.LSTM), door, lambda lengths: (torch.randn(3, 6, 4), lengths), captures=2)


class Summing(nn.Module):
    """A layer over a packed sequence that it makes, or is given, from a state that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 5)
        self.first = nn.Parameter(torch.randn(1, 1, 5))

    def forward(self, given: Any) -> Tensor:
        packed = given if isinstance(given, PackedSequence) else pack_sequence(given, enforce_sorted=False)
        out, last = self.layer(packed, self.first.expand(-1, 3, -1).contiguous())
        return out.data.relu_().mean() + last.sum()


@pytest.mark.parametrize(("door", "is_packed"), [("step", False), ("step", True), ("compile", False)])
def test_sequences_may_be_arguments(door: str, is_packed: bool) -> None:
    torch.manual_seed(0)

    def arguments(lengths: list[int]) -> Any:
        rows = [torch.randn(length, 4) for length in lengths]
        return (pack_sequence(rows, enforce_sorted=False) if is_packed else rows,)

    check(Summing(), door, arguments, captures=5)


def test_compile_refuses_a_packed_argument_by_name() -> None:
    packed = pack_sequence([torch.randn(length, 4) for length in (4, 3, 2)])
    with pytest.raises(DataDependentControlFlow):
        dovetail.compile(Summing())(packed)


def test_frozen_layers_take_all_lengths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Tagger(nn.LSTM, num_layers=2).eval()
    frozen = dovetail.freeze(net, padded([6, 4, 2]))
    frozen.save(tmp_path / "tagger.dovetail")
    allowed = ("dovetail::pack", "dovetail::packed_layer", "dovetail::padded")
    loaded = dovetail.load(tmp_path / "tagger.dovetail", allow=allowed)
    for lengths in LENGTHS:
        given = padded(lengths)
        with torch.no_grad():
            wanted = net(*given)
        assert torch.equal(frozen(*given), wanted)
        assert torch.equal(loaded(*given), wanted)


@pytest.mark.parametrize("lengths", [[6, 0, 2], [9, 2, 1]])
def test_wrong_lengths_fail_as_in_eager_mode_before_anything_is_written(lengths: list[int]) -> None:
    torch.manual_seed(0)
    net = Tagger(nn.LSTM)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def plain(x: Tensor, lengths: Tensor) -> None:
        net(x, lengths).sum().backward()
        optimizer.step()

    step = dovetail.compile_step(plain)
    for _ in range(2):
        step(*padded([6, 4, 2]))
    before = [p.detach().clone() for p in net.parameters()]
    x, wrong = padded(lengths)
    with pytest.raises(RuntimeError) as wanted:
        plain(x, wrong)
    with pytest.raises(RuntimeError) as found:
        step(x, wrong)
    assert str(found.value) == str(wanted.value)
    assert all(map(torch.equal, before, net.parameters()))


def _under_autocast(net: nn.Module) -> Any:
    def step(x: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x, lengths)

    return step


def test_autocast_is_refused_by_name() -> None:
    step = dovetail.compile_step(_under_autocast(Tagger(nn.LSTM)))
    step(*padded([6, 4, 2]))
    with pytest.raises(UnsupportedTensor, match=r"a packed sequence under autocast(.|\n)*on_unsupported='eager'"):
        step(*padded([6, 4, 2]))


def test_a_weight_that_stands_twice_is_refused_by_name() -> None:
    net = Tagger(nn.GRU, num_layers=2)
    net.layer = nn.GRU(4, 4, batch_first=True, bias=False)
    net.layer.weight_hh_l0 = net.layer.weight_ih_l0
    net.head = nn.Linear(4, 3)
    step = dovetail.compile_step(lambda *given: net(*given).sum())
    step(*padded([6, 4, 2]))
    with pytest.raises(UnsupportedTensor, match="for a layer that has one weight twice"):
        step(*padded([6, 4, 2]))


def test_second_derivatives_are_refused_by_name() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(4, 5)

    def plain(x: Tensor, lengths: Tensor) -> None:
        packed = pack_padded_sequence(x.sin().transpose(0, 1), lengths, enforce_sorted=False)
        (gradient,) = torch.autograd.grad(layer(packed)[0].data.sum(), x, create_graph=True)
        (gradient.square().sum() + x.square().sum()).backward()

    step = dovetail.compile_step(plain)
    x, lengths = padded([6, 4, 2])
    x.requires_grad_()
    for _ in range(2):  # the first makes `.grad`
        with contextlib.suppress(UnsupportedTensor):
            step(x, lengths)
    with pytest.raises(UnsupportedTensor, match=r"under backward\(create_graph=True\)"):
        step(x, lengths)


def test_a_layer_that_draws_in_cudnn_is_refused_before_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch notes such a call, on fakes as well, and draws other numbers afterwards."""
    monkeypatch.setattr("dovetail.capture.packed_sequences.draws_for_itself", lambda args: bool(args[6] and args[5]))
    layer = nn.LSTM(4, 5, 2, dropout=0.5)
    compiled = dovetail.compile(lambda x: layer(x)[0])
    with pytest.raises(NoFakeKernel, match="_cudnn_rnn"):
        compiled(torch.ones(3, 2, 4))
    layer.eval()
    assert torch.equal(compiled(torch.ones(3, 2, 4)), layer(torch.ones(3, 2, 4))[0])
