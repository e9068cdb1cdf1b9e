"""Updates run as soon as they can, one after the other, and mean what they meant at the end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dovetail.analysis import updates as updates_analysis
from dovetail.analysis.updates import find_updates
from dovetail.errors import DovetailError
from dovetail.ir.program import Node, Program, ScalarMeta, Value
from dovetail.ops import prims
from dovetail.passes.early_updates import EarlyUpdatesReport, early_updates, scheduled
from dovetail.passes.inplace import PlanMemory
from dovetail.pipeline.differential import same_bits
from dovetail.torch_compat.dispatch import overloads
from tests import early_updates_sweep
from tests.harness.effect_operators import OPERATORS as checks
from tests.harness.inplace_agreement import Disagreement
from tests.passes.programs import Builder, body
from tests.passes.training_steps import Step, recorded
from tests.random_steps import check_early, random_step
from tests.rotation import rotated

aten = torch.ops.aten
MB = 10**6


@pytest.fixture(autouse=True)
def _seeded(alone: None) -> Iterator[None]:
    torch.manual_seed(0)
    return


# --- small programs ---------------------------------------------------------------------------------------------------


def _order(program: Program) -> list[str]:
    return [line.split(" = ")[0] for line in body(program)]


def _early(program: Program) -> list[str]:
    return _order(scheduled(program, find_updates(program)))


def _copy(b: Builder, target: Value, new: Value) -> None:
    b.nodes.append(Node(aten.copy_.default, (target, new)))


def _two_updates(b: Builder) -> None:
    """`p` and `q` get gradients `g` and `h`; `h` needs `p`."""
    p, q, x, y = b.inputs
    g = b.call("g", aten.mm.default, x, y)
    f = b.call("f", aten.mm.default, x, p)
    h = b.call("h", aten.mm.default, f, y)
    for name, parameter, gradient in (("p", p, g), ("q", q, h)):
        step = b.call(f"step_{name}", aten.mul.Tensor, gradient, 0.1)
        _copy(b, parameter, b.call(f"new_{name}", aten.sub.Tensor, parameter, step))


def test_an_update_follows_its_gradient_and_the_last_read_of_the_old_contents() -> None:
    b = Builder("p", "q", "x", "y")
    _two_updates(b)
    assert _early(b.program()) == [
        "g",
        "f",
        "step_p",
        "new_p",
        "copy_.default(p, new_p)",
        "h",
        "step_q",
        "new_q",
        "copy_.default(q, new_q)",
        "return ()",
    ]


def test_old_contents_are_read_through_views_before_they_are_replaced() -> None:
    b = Builder("p", "g", "x")
    p, g, x = b.inputs
    flipped = b.call("flipped", aten.t.default, p, view_of=p)
    b.call("other", aten.sin.default, x)
    read = b.call("read", aten.mm.default, x, flipped)
    _copy(b, p, b.call("new", aten.sub.Tensor, p, g))
    assert _early(b.program(read))[:5] == ["flipped", "other", "read", "new", "copy_.default(p, new)"]


def test_draws_and_effects_keep_their_order_and_what_may_fail_comes_first() -> None:
    b = Builder("p", "g", "x")
    p, g, x = b.inputs
    drawn = b.call("drawn", aten.bernoulli.p, x, 0.5)
    b.nodes.append(Node(checks.note.default, (x,)))
    b.nodes.append(Node(checks.demand.default, (drawn,)))
    late = b.call("late", aten.rand.default, [4])
    _copy(b, p, b.call("new", aten.sub.Tensor, p, g))
    assert _early(b.program(late)) == [
        "drawn",
        "torch.ops.dovetail_testing.note.default(x)",
        "torch.ops.dovetail_testing.demand.default(drawn)",
        "new",
        "copy_.default(p, new)",
        "late",
        "return (late,)",
    ]


def test_checks_move_up_to_what_they_look_at() -> None:
    b = Builder("p", "g", "x", "count")
    p, g, x, _count = b.inputs
    loss = b.call("loss", aten.sum.default, x, shape=())
    f = b.call("f", aten.mm.default, x, p)
    finite = b.call("finite", aten.isfinite.default, loss, shape=(), dtype=torch.bool)
    number = Value("number", ScalarMeta(True))
    b.nodes.append(Node(aten._local_scalar_dense.default, (finite,), outputs=(number,)))
    b.nodes.append(Node(prims.GUARD, (number, True, 0)))
    _copy(b, p, b.call("new", aten.sub.Tensor, p, g))
    later = b.call("later", aten.mm.default, x, f)
    program = b.program(later)
    assert _early(program)[:7] == [
        "loss",
        "finite",
        "number",
        "prims.GUARD(number, True, 0)",
        "f",
        "new",
        "copy_.default(p, new)",
    ]
    assert find_updates(program).groups[0].ready == 1


def test_a_sum_of_gradients_is_made_at_once_and_a_step_of_the_optimizer_waits() -> None:
    b = Builder("p", "q", "x")
    p, q, x = b.inputs
    first = b.call("first", aten.mm.default, x, x)
    second = b.call("second", aten.mm.default, x, q)
    total = b.call("total", aten.add.Tensor, first, second)
    decay = b.call("decay", aten.mul.Tensor, p, 0.9)
    read = b.call("read", aten.mm.default, x, p)
    _copy(b, p, b.call("new", aten.sub.Tensor, decay, total))
    assert _early(b.program(read))[:7] == ["first", "second", "total", "read", "decay", "new", "copy_.default(p, new)"]


def test_what_is_read_after_a_copy_into_another_part_keeps_its_place() -> None:
    b = Builder("p", "g")
    p, g = b.inputs
    left = b.call("left", aten.slice.Tensor, p, 0, 0, 2, view_of=p, shape=(2,))
    right = b.call("right", aten.slice.Tensor, p, 0, 2, 4, view_of=p, shape=(2,), offset=2)
    new = b.call("new", aten.slice.Tensor, g, 0, 0, 2, view_of=g, shape=(2,))
    _copy(b, left, new)
    kept = b.call("kept", aten.sin.default, right, shape=(2,))
    program = b.program(kept)
    assert find_updates(program).copies == frozenset()
    assert early_updates(program) == (program, EarlyUpdatesReport())


def test_programs_without_writes_are_kept() -> None:
    b = Builder("x")
    program = b.program(b.call("a", aten.sin.default, b.inputs[0]))
    assert early_updates(program) == (program, EarlyUpdatesReport())
    assert str(EarlyUpdatesReport()) == "no update runs earlier"


# --- whole steps ------------------------------------------------------------------------------------------------------


def _mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def _mlp(layers: int = 6) -> nn.Module:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))))


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, weight_decay=0.1, amsgrad=True, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, foreach=False),
}


def _saved(step: Step) -> tuple[int, int, int, EarlyUpdatesReport]:
    """The peaks before and after, the bytes that are still copied, and the report; results are compared."""
    after, report = early_updates(step.program)
    inplace = step.assert_same(after)
    left = [node.args[0] for node in inplace.nodes if node.target is aten.copy_.default]
    copied = sum(int(v.tensor.size_bytes()) for v in left if isinstance(v, Value))  # type: ignore[arg-type]
    peaks = [PlanMemory().peak_bytes(program) for program in (step.program, after)]
    assert report.saved_bytes == peaks[0] - peaks[1]
    return peaks[0], peaks[1], copied, report


@pytest.mark.parametrize("name", rotated([*_OPTIMIZERS], 3))
def test_gradients_of_a_perceptron_die_one_by_one(name: str) -> None:
    model = _mlp()
    step = recorded(model, _OPTIMIZERS[name](model.parameters()), _mse, torch.randn(64, 256), torch.randn(64, 256))
    before, after, copied, report = _saved(step)
    assert before > 6.4 * MB  # all gradients
    assert after < 3.5 * MB
    assert copied <= 4 * 24  # the counters that guards look at
    assert report.groups >= 24


def test_clipping_needs_all_gradients_and_no_more() -> None:
    model = _mlp()
    for name in ("AdamW foreach", "AdamW fused"):
        optimizer = _OPTIMIZERS[name](model.parameters())
        step = recorded(model, optimizer, _mse, torch.randn(64, 256), torch.randn(64, 256), clip=0.1)
        before, after, copied, _ = _saved(step)
        assert after <= min(before, 6.5 * MB)
        assert copied <= 4 * 24


class _Block(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm, self.mixed = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        parts = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.mixed(self.norm(h)).chunk(3, -1)]
        seen = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        h = h + self.drop(seen.transpose(1, 2).flatten(2))
        h = h + self.drop(self.outer(nn.functional.gelu(self.inner(h))))
        return nn.functional.linear(h, self.words.weight)


@pytest.mark.parametrize("name", rotated(["SGD", "momentum", "Adam", "AdamW foreach"], 2))
def test_a_transformer_block_with_a_tied_embedding(name: str) -> None:
    model = _Block(50, 128)
    words = torch.randint(0, 50, (2, 9))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    before, after, _, report = _saved(recorded(model, _OPTIMIZERS[name](model.parameters()), loss, words))
    assert after <= 0.75 * before
    assert report.groups >= 9


def test_convolutions_batch_norm_and_an_average_of_weights() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten())
    average = [parameter.detach().clone() for parameter in model.parameters()]

    def follow() -> None:
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.01)

    optimizer = _OPTIMIZERS["Adam"](model.parameters())
    batch = torch.randn(2, 3, 6, 6), torch.randn(2, 256)
    before, after, copied, _ = _saved(recorded(model, optimizer, _mse, *batch, after=follow, state=average))
    assert after < before
    assert copied <= 4 * 8


class _Chooser(nn.Module):
    """Most is alive when the gradient of the wide layer at the end arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
        self.wide = nn.Linear(64, 4000)

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = h + layer(h)
        return self.wide(h[:8])


def test_an_update_waits_where_it_has_no_room() -> None:
    model = _Chooser()
    optimizer = torch.optim.Adadelta(model.parameters(), foreach=False)
    step = recorded(model, optimizer, _mse, torch.randn(512, 64), torch.randn(8, 4000))
    at_once = scheduled(step.program, find_updates(step.program))
    _, after, _, report = _saved(step)
    assert after < PlanMemory().peak_bytes(at_once)
    assert report.waiting > 0
    assert "later than they could" in str(report)


# --- lists of fused steps ---------------------------------------------------------------------------------------------


_FUSED = {
    "_fused_sgd_": {
        "weight_decay": 0.1,
        "momentum": 0.9,
        "lr": 0.1,
        "dampening": 0.1,
        "nesterov": False,
        "maximize": False,
    },
    "_fused_adam_": {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.1,
        "eps": 1e-8,
        "amsgrad": True,
        "maximize": False,
    },
    "_fused_adamw_": {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.1,
        "eps": 1e-8,
        "amsgrad": True,
        "maximize": True,
    },
    "_fused_adagrad_": {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False},
}
_SHAPES = ((7,), (513, 31), (1,), (64, 64), (3, 5, 17), ())


def _random_lists(count: int, dtype: torch.dtype) -> list[list[Tensor]]:
    lists = [[torch.rand(shape).to(dtype) for shape in _SHAPES] for _ in range(count)]
    for items in lists:
        items[1] = items[1].t().contiguous().t()
    return lists


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", _FUSED)
def test_fused_steps_of_one_parameter_each_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    (op,) = [op for op in overloads("aten", name) if "tensor_lr" not in str(op)]
    options: dict[str, Any] = dict(_FUSED[name])
    if name == "_fused_sgd_":
        options["is_first_step"] = False
    count = {"_fused_sgd_": 3, "_fused_adagrad_": 3}.get(name, 5)
    given = _random_lists(count, dtype)
    if name == "_fused_sgd_" and dtype is torch.bfloat16:  # torch leaves the momentum undefined there
        given[2], options["momentum"] = [], 0.0
    steps = [[torch.tensor(float(3 + i)) for i in range(len(_SHAPES))]] if name != "_fused_sgd_" else []
    scales = {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)}
    for more in ({}, scales):
        together = [[item.clone(memory_format=torch.preserve_format) for item in items] for items in given]
        apart = [[item.clone(memory_format=torch.preserve_format) for item in items] for items in given]
        op(*together, *steps, **options, **more)
        for i in range(len(_SHAPES)):
            op(*(items[i : i + 1] for items in apart), *([items[i]] for items in steps), **options, **more)
        for ones, others in zip(together, apart, strict=True):
            assert all(map(same_bits, ones, others))


# --- random programs --------------------------------------------------------------------------------------------------


def test_times_change_nothing_but_the_order() -> None:
    model = _mlp(1)
    step = recorded(model, _OPTIMIZERS["AdamW"](model.parameters()), _mse, torch.randn(4, 256), torch.randn(4, 256))
    updates = find_updates(step.program)
    choose = random.Random(0)
    for _ in range(3):
        times = {group: choose.randrange(-1, len(step.program.nodes)) for group in updates.groups}
        step.assert_same(scheduled(step.program, updates, times))


def test_random_programs_mean_the_same(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    assert early_updates_sweep.main(["--programs", "40", "--state", str(state)]) == 0
    assert json.loads(state.read_text())["tried"] == 40
    assert _check_steps(12) > 8


def test_a_rule_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates_analysis._Finder, "_earlier_readers", lambda self, copy: [])
    with pytest.raises((Disagreement, DovetailError)):
        _check_steps(40)


def _check_steps(count: int) -> int:
    return sum(check_early(random_step(seed)) for seed in range(count))
