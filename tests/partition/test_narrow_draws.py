"""Draws of zeros and ones are kept for backward as a byte each: which ones, what runs for it, and that bits stay."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.errors import MemoryLimitTooLow
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Program, Value
from dovetail.ir.stages import verify_program
from dovetail.ops.facts import writes_of
from dovetail.ops.whole_draws import holding_type
from dovetail.partition.narrow_draws import NO_DRAWS, narrow_draws, without_round_trips
from tests.passes.programs import Builder, body

aten = torch.ops.aten


def _dropout(**options: object) -> tuple[Builder, Value, Value]:
    """A dropout, forward and backward: what is made, what it is made with, and the gradient."""
    make = Builder("x", "g")
    x, g = make.inputs
    drawn = make.call("drawn", aten.bernoulli.p, x, 0.9, **options)
    noise = make.call("noise", aten.div.Scalar, drawn, 0.9, **options)
    make.call("y", aten.mul.Tensor, x, noise)
    return make, noise, make.late("d", aten.mul.Tensor, g, noise)


def _narrowed(program: Program, most_work: float = math.inf) -> tuple[list[str], int]:
    changed, report = narrow_draws(program, {}, most_work)
    return [line for line in body(changed) if not line.startswith("del ")], len(report.kept)


def test_backward_makes_again_what_it_reads_of_a_draw() -> None:
    make, _, d = _dropout()
    lines, kept = _narrowed(make.program(d))
    assert kept == 1
    assert lines == [
        "drawn = bernoulli.p(x, 0.9)",
        "drawn_kept = _to_copy.default(drawn, dtype=torch.bool)",
        "drawn_wide = _to_copy.default(drawn_kept, dtype=torch.float32)",
        "noise = div.Scalar(drawn_wide, 0.9)",
        "y = mul.Tensor(x, noise)",
        "drawn_again = _to_copy.default(drawn_kept, dtype=torch.float32)",
        "noise_again = div.Scalar(drawn_again, 0.9)",
        "d = mul.Tensor(g, noise_again)",
        "return (d,)",
    ]


def test_in_the_end_forward_reads_what_was_drawn() -> None:
    make, _, d = _dropout()
    changed = narrow_draws(make.program(d), {}, math.inf)[0]
    lines = [line for line in body(without_round_trips(changed)) if not line.startswith("del ")]
    assert lines[1:3] == [
        "drawn_kept = _to_copy.default(drawn, dtype=torch.bool)",
        "noise = div.Scalar(drawn, 0.9)",
    ]
    assert lines[4] == "drawn_again = _to_copy.default(drawn_kept, dtype=torch.float32)"
    verify_program(without_round_trips(changed), writes_of)


def test_what_was_widened_later_stays() -> None:
    make, _, d = _dropout()
    changed = narrow_draws(make.program(d), {}, math.inf)[0]
    make.call("between", aten.neg.default, make.inputs[0])
    moved = changed.replace_nodes((*changed.nodes[:2], make.nodes[-1], *changed.nodes[2:]))
    assert without_round_trips(moved) is moved


def test_what_runs_for_it_is_made_again_for_backward() -> None:
    make, _, d = _dropout()
    changed, report = narrow_draws(make.program(d), {}, math.inf)
    assert sum(node.recomputed for node in changed.nodes) == 2
    assert report.work > 0


def test_what_backward_does_not_read_is_left_alone() -> None:
    make, noise, _ = _dropout()
    make.nodes.pop()
    program = make.program(make.call("z", aten.neg.default, noise))
    assert narrow_draws(program, {}, math.inf) == (program, NO_DRAWS)


def test_what_is_returned_is_there_anyway() -> None:
    make, noise, d = _dropout()
    program = make.program(d, noise)
    assert narrow_draws(program, {}, math.inf) == (program, NO_DRAWS)


def test_a_byte_is_not_kept_as_a_byte() -> None:
    make, _, d = _dropout(dtype=torch.bool)
    program = make.program(d)
    assert narrow_draws(program, {}, math.inf) == (program, NO_DRAWS)


def test_memory_with_gaps_is_left_alone() -> None:
    make, _, d = _dropout(shape=(2, 2), stride=(4, 1))
    program = make.program(d)
    assert narrow_draws(program, {}, math.inf) == (program, NO_DRAWS)


def test_those_that_are_kept_the_longest_come_first() -> None:
    make = Builder("x", "g")
    h, g = make.inputs
    drawn = []
    for number in range(3):
        drawn.append(make.call(f"drawn_{number}", aten.bernoulli.p, h, 0.5))
        h = make.call(f"y_{number}", aten.mul.Tensor, h, drawn[-1])
    for number in reversed(range(3)):
        g = make.late(f"g_{number}", aten.mul.Tensor, g, drawn[number])
    program = make.program(g)
    everything = narrow_draws(program, {}, math.inf)[1]
    assert set(everything.kept) == {"drawn_0", "drawn_1", "drawn_2"}
    assert narrow_draws(program, {}, everything.work / 2)[1].kept == ("drawn_0",)
    assert narrow_draws(program, {}, math.inf, only={"drawn_1"})[1].kept == ("drawn_1",)
    assert narrow_draws(program, {}, 0) == (program, NO_DRAWS)


def test_other_draws_are_no_zeros_and_ones() -> None:
    make = Builder("x")
    (x,) = make.inputs
    make.call("a", aten.rand_like.default, x)
    make.call("b", aten.bernoulli.default, x)
    make.call("c", aten.neg.default, x)
    assert [holding_type(node) for node in make.nodes] == [None, torch.bool, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_byte_gives_back_the_bits(dtype: torch.dtype) -> None:
    drawn = torch.empty(10_000, dtype=dtype).bernoulli_(0.3)
    again = drawn.to(torch.bool).to(dtype)
    assert torch.equal(again.view(torch.int8), drawn.view(torch.int8))
    strided = torch.empty(4, 6, 8, 5, dtype=dtype).to(memory_format=torch.channels_last).bernoulli_(0.5)
    assert strided.to(torch.bool).to(dtype).stride() == strided.stride()


# --- whole steps ------------------------------------------------------------------------------------------------------


def _expanded(h: Tensor) -> Tensor:
    return h * torch.bernoulli(torch.full((1, h.shape[1]), 0.7)).expand_as(h)


def _turned(h: Tensor) -> Tensor:
    return (h.t() * torch.empty(h.shape[1], h.shape[0]).bernoulli_(0.5).sub(0.5)).t()


def _twice(h: Tensor) -> Tensor:
    noise = torch.empty_like(h).bernoulli_(0.5)
    return h * noise + h.tanh() * (1 - noise)


_DROPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.1),
    "alpha": lambda h: F.alpha_dropout(h, 0.2, training=True),
    "feature": lambda h: F.dropout2d(h[None, :, :, None], 0.3)[0, :, :, 0],
    "written": lambda h: F.dropout(h * 0.7, 0.4, inplace=True),
    "chances": lambda h: h * torch.bernoulli(torch.sigmoid(h.detach())),
    "expanded": _expanded,
    "turned": _turned,
    "twice": _twice,
}


class _Training:
    def __init__(self, name: str, options: dict[str, object] | None, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        drop = _DROPPING[name]
        self.weights = [nn.Parameter(torch.randn(32, 32, dtype=dtype) / 6) for _ in range(8)]
        optimizer = torch.optim.SGD(self.weights, lr=0.1, momentum=0.9)
        x = torch.randn(96, 32, dtype=dtype)

        def step() -> Tensor:
            optimizer.zero_grad()
            h = x
            for weight in self.weights:
                h = drop(F.gelu(h @ weight))
            loss = h.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.called = step if options is None else dovetail.compile_step(step, **options)  # type: ignore[call-overload]

    def left(self, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        losses = [self.called() for _ in range(3)]
        return [x.detach().clone() for x in (*losses, *self.weights, torch.get_rng_state())]


@pytest.mark.parametrize("name", _DROPPING)
def test_steps_keep_eagers_bits_with_less_memory(name: str) -> None:
    dtype = torch.bfloat16 if name == "twice" else torch.float32
    eager = _Training(name, None, dtype).left(3)
    with pytest.raises(MemoryLimitTooLow) as caught:
        _Training(name, {"memory_limit": "transient:1B"}, dtype).called()
    floor = int(caught.value.facts["floor_bytes"])
    training = _Training(name, {"memory_limit": f"transient:{floor}B", "verify": 2}, dtype)
    assert all(map(torch.equal, training.left(3), eager))
    assert measure_peak(training.called).peak_bytes <= floor
    program = training.called.program  # type: ignore[union-attr]
    again = [node for node in program.nodes if node.recomputed and "_to_copy" in str(node.target)]
    assert name in ("feature", "expanded") or len(again) >= 3  # which draw a number for a whole column


# --- graphs -----------------------------------------------------------------------------------------------------------


def _layers() -> nn.Module:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(6):
        made += [nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*made, nn.Linear(32, 4))


def _trained(called: Callable[[Tensor], Tensor], net: nn.Module) -> list[Tensor]:
    """What calls and their backwards leave: that of the loss, and one of a part of the result."""
    torch.manual_seed(5)
    x, left = torch.randn(64, 32), list[Tensor]()
    for number in range(3):
        net.zero_grad()
        result = called(x)
        (result.square().mean() if number != 1 else result[:, :2].sum()).backward()
        left += [result.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
    return [*left, torch.get_rng_state()]


@pytest.mark.parametrize("door", ["compile", "torch.compile"])
def test_graphs_keep_lower_limits_with_eagers_bits(door: str) -> None:
    net = _layers()
    eager = _trained(net, net)
    kept = dovetail.compile(_layers(), partition="default")
    free = dovetail.explain(kept, torch.randn(64, 32)).call.peak_bytes
    net = _layers()
    with pytest.raises(MemoryLimitTooLow) as caught:
        dovetail.compile(net, memory_limit="transient:1B")(torch.randn(64, 32))
    floor = int(caught.value.facts["floor_bytes"])
    assert floor < 0.6 * free
    limit = f"transient:{floor}B"
    if door == "compile":
        called = dovetail.compile(net, memory_limit=limit, verify=2)
        assert dovetail.explain(called, torch.randn(64, 32)).call.peak_bytes <= floor
    else:
        called = torch.compile(net, backend="dovetail", dynamic=False, options={"memory_limit": limit})
    assert all(map(torch.equal, _trained(called, net), eager))


def test_graphs_keep_factors_where_the_limit_is_kept_anyway() -> None:
    net, other = _layers(), _layers()
    called = dovetail.compile(net, memory_limit="6GiB")
    assert all(map(torch.equal, _trained(called, net), _trained(other, other)))
    (graph,) = called.graphs
    assert not any("_to_copy" in str(node.target) for node in graph.forward.program.nodes)
