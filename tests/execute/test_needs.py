"""What operators take from the allocator besides operands and results, against what the allocator says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.analysis.liveness import NOTHING
from dovetail.errors import MemoryLimitTooLow
from dovetail.execute import operator_calls
from dovetail.execute.needs import Needs
from dovetail.inspect.memory import measure_peak
from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ops.max_pools import MAX_POOL
from dovetail.ops.panels import PACK_PANELS, panel_linear
from dovetail.ops.prims import functional_form
from dovetail.torch_compat.profiler import record_allocator_events_apart

aten = torch.ops.aten


def _value(name: str, tensor: Tensor, storage: int) -> Value:
    meta = TensorMeta(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, tensor.device, storage)
    return Value(name, meta)


def _node(target: Any, *operands: Any) -> Node:
    """A node that applies an operator to tensors like these, in new memory."""
    result = target(*operands)
    results = result if isinstance(result, tuple | list) else (result,)
    values = [_value(f"x{k}", x, k) if isinstance(x, Tensor) else x for k, x in enumerate(operands)]
    outputs = tuple(_value(f"y{k}", y, 100 + k) for k, y in enumerate(results))
    return Node(target, tuple(values), outputs=outputs, unpack=isinstance(result, tuple | list))


def test_a_loss_whose_memory_is_larger_than_it_is() -> None:
    x, y = torch.randn(64, 16), torch.randn(64, 16)
    need = Needs({}).need_of(_node(aten.mse_loss.default, x, y))
    kept = aten.mse_loss(x, y).untyped_storage().nbytes()
    assert need.kept_bytes == (kept - 4,)
    report = measure_peak(aten.mse_loss.default, x, y)
    assert need.scratch_bytes + kept == report.peak_bytes


@pytest.mark.parametrize(
    ("target", "operands"),
    [
        (
            aten.convolution.default,
            (torch.randn(2, 8, 12, 12), torch.randn(8, 8, 3, 3), None, *([1, 1], [1, 1], [1, 1]), False, [0, 0], 1),
        ),
        (aten.addmm.default, (torch.randn(8), torch.randn(4, 16), torch.randn(16, 8))),
        (aten._softmax.default, (torch.randn(8, 8), -1, False)),
        (aten.sort.default, (torch.randn(100),)),
        (aten.cumsum.default, (torch.randn(100, 4), 0)),
        (aten.index.Tensor, (torch.randn(10, 4), [torch.tensor([1, 2, 2])])),
    ],
    ids=lambda x: str(x) if not isinstance(x, tuple) else "",
)
def test_as_the_allocator_says(target: Any, operands: tuple[Any, ...]) -> None:
    node = _node(target, *operands) if target is not aten.index.Tensor else None
    if node is None:
        x, index = operands[0], operands[1][0]
        y = target(x, [index])
        node = Node(target, (_value("x", x, 0), [_value("i", index, 1)]), outputs=(_value("y", y, 2),))
    need = Needs({}).need_of(node)
    report = measure_peak(target, *operands)
    assert need.scratch_bytes == report.peak_bytes - report.end_bytes


_WHOLE = torch.arange(64).reshape(8, 8)


@pytest.mark.parametrize(
    ("target", "operands"),
    [
        (aten.median.dim, (_WHOLE, 0)),
        (aten.median.default, (_WHOLE,)),
        (aten.kthvalue.default, (_WHOLE, 2, 0)),
        (aten.cummax.default, (_WHOLE, 0)),
        (aten.count_nonzero.dim_IntList, (_WHOLE, [0])),
        (aten.floor_divide.Scalar, (_WHOLE, 2)),
        (aten.mm.default, (_WHOLE, _WHOLE)),
        (aten.mode.default, (_WHOLE, 0)),
        (aten.aminmax.default, (_WHOLE,)),
        (aten.put.default, (torch.randn(64), _WHOLE, torch.randn(8, 8))),
        (aten.index_reduce.default, (torch.randn(8, 8), 0, _WHOLE[0], torch.randn(8, 8), "mean")),
        (aten.max_unpool2d.default, (torch.randn(1, 8, 8), _WHOLE[None], [8, 8])),
        (aten.multi_margin_loss.default, (torch.randn(8, 8), _WHOLE[0])),
        (aten.multilabel_margin_loss_forward.default, (torch.randn(8, 8), _WHOLE % 8, 1)),
        (aten.searchsorted.Tensor, (_WHOLE[0], _WHOLE)),
        (aten.masked_scatter.default, (_WHOLE, _WHOLE > 2, _WHOLE)),
    ],
    ids=lambda x: str(x) if not isinstance(x, tuple) else "",
)
def test_operators_over_whole_numbers_are_run(target: Any, operands: tuple[Any, ...]) -> None:
    needs = Needs({})
    need = needs.need_of(_node(target, *operands))
    assert not needs.unknown
    report = measure_peak(target, *operands)
    assert need.scratch_bytes == report.peak_bytes - report.end_bytes


def test_an_operator_on_copies_of_what_it_writes_is_run() -> None:
    x, mean, deviation = torch.randn(32, 64), torch.zeros(64), torch.ones(64)
    form = functional_form(aten.native_batch_norm.default, (3, 4))
    operands = (x, None, None, mean, deviation, True, 0.1, 1e-5)
    needs = Needs({})
    report = measure_peak(form, *operands)
    assert needs.need_of(_node(form, *operands)).scratch_bytes == report.peak_bytes - report.end_bytes > 0


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("passes", ["bitwise", "fast"])
def test_what_recurrent_layers_of_a_frozen_module_take_is_known(make: Any, passes: str) -> None:
    layers, x = make(16, 32, 2, batch_first=True).eval(), torch.randn(8, 6, 16)
    with torch.no_grad():
        frozen = dovetail.freeze(layers, (x,), passes=passes, executors=("aten",))
        frozen(x)
        said = dovetail.explain(frozen, x).call
        assert said is not None
        assert measure_peak(frozen, x).peak_bytes == said.peak_bytes
        with pytest.raises(MemoryLimitTooLow):
            dovetail.freeze(layers, (x,), passes=passes, memory_limit=f"transient:{said.peak_bytes // 4}B")


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("executors", [("aten",), None])
def test_what_packed_convolutions_of_a_frozen_module_take_is_known(groups: int, executors: Any) -> None:
    net = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=groups), nn.SiLU(), nn.Conv2d(16, 8, 1)).eval()
    x = torch.randn(1, 16, 20, 20)
    with torch.no_grad():
        frozen = dovetail.freeze(net, (x,), passes="fast", **({} if executors is None else {"executors": executors}))
        frozen(x)
        said, measured = dovetail.explain(frozen, x).call, measure_peak(frozen, x).peak_bytes
    assert said is not None
    assert measured == said.peak_bytes if executors else measured <= said.run_bytes <= said.peak_bytes


def test_what_primitives_of_frozen_modules_take_is_known() -> None:
    x, panels = torch.randn(2, 3, 16, 16), PACK_PANELS(torch.randn(40, 16))
    for prim, operands in (
        (MAX_POOL, (x, [2, 2], [2, 2], [0, 0], False)),
        (panel_linear("relu"), (x, panels, 40)),
    ):
        needs = Needs({})
        report = measure_peak(prim, *operands)
        assert needs.need_of(_node(prim, *operands)).scratch_bytes == report.peak_bytes - report.end_bytes > 0


def test_an_operand_that_is_handed_back_is_not_taken() -> None:
    x = torch.ones(64, 16)
    named = _value("x", x, 0)
    node = Node(aten.relu_.default, (named,), outputs=(None,))
    assert Needs({}).need_of(node) == NOTHING


def test_views_and_numbers_need_nothing_and_are_not_run() -> None:
    x = _value("x", torch.randn(4, 2), 0)
    view = Node(aten.t.default, (x,), outputs=(_value("y", torch.randn(4, 2).t(), 0),))
    needs = Needs({})
    assert needs.need_of(view).scratch_bytes == 0
    assert not needs.unknown


def test_what_cannot_be_run_is_named() -> None:
    square = torch.eye(4)
    node = _node(aten.linalg_cholesky_ex.default, square)
    strict = Node(
        aten.linalg_inv_ex.default,
        node.args,
        (("check_errors", True),),
        _node(aten.linalg_inv_ex.default, square).outputs,
        True,
    )
    needs = Needs({})
    assert needs.need_of(strict).scratch_bytes == 0
    assert needs.unknown == [strict]  # a matrix of halves has no inverse


def test_generators_stay_where_they_are() -> None:
    mine = torch.Generator().manual_seed(3)
    x = _value("x", torch.ones(10), 0)
    drawn = [
        Node(aten.bernoulli.default, (x,), (("generator", generator),), (_value("y", torch.ones(10), 1),))
        for generator in (None, mine)
    ]
    torch.manual_seed(5)
    before = torch.get_rng_state(), mine.get_state()
    Needs({}).measure(drawn)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(mine.get_state(), before[1])


def test_what_cannot_be_made_does_not_hide_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operand that cannot be made, for want of memory say."""
    made = operator_calls.Described.tensor

    def tensor(described: Any, *blocks: Any) -> Tensor:
        if described.shape == (37, 3):
            raise RuntimeError("no memory")
        return made(described, *blocks)

    monkeypatch.setattr(operator_calls.Described, "tensor", tensor)
    bad, good = (
        _node(aten.logcumsumexp.default, torch.randn(37, 3), 1),
        _node(aten.mse_loss.default, *torch.randn(2, 29)),
    )
    needs = Needs({})
    needs.measure([bad, good])
    assert needs.unknown == [bad]
    assert needs.need_of(good).scratch_bytes > 0


@pytest.mark.parametrize("target", [aten.sort.default, aten.convolution.default, aten.mse_loss.default])
def test_what_is_found_beside_a_profile_of_the_user(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dovetail.execute.needs, "_FOUND", {})
    operands = {
        aten.sort.default: (torch.randn(101),),
        aten.mse_loss.default: (torch.randn(31, 7), torch.randn(31, 7)),
        aten.convolution.default: (
            *(torch.randn(2, 8, 12, 12), torch.randn(8, 8, 3, 3), None, [1, 1], [1, 1], [1, 1]),
            *(False, [0, 0], 1),
        ),
    }[target]
    node = _node(target, *operands)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        beside = Needs({})
        beside.measure([node])
        torch.cos(operands[0])
    assert not beside.unknown
    seen = {event.key for event in profile.key_averages()}
    assert "aten::cos" in seen
    assert not seen & {"aten::sort", "aten::mse_loss", "aten::convolution"}  # it ran on another thread
    monkeypatch.setattr(dovetail.execute.needs, "_FOUND", {})
    alone = Needs({})
    assert alone.need_of(node) == beside.need_of(node)
    assert alone.need_of(node) != NOTHING


def _classifier() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]]:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 5)
    )
    return net, F.cross_entropy, (torch.randn(4, 3, 16, 16), torch.arange(4))


def _normalized() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]]:
    """A net whose peak is where its second batch norm runs, in forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(8, 16), nn.Linear(8, 64)
            self.first, self.second = nn.BatchNorm1d(16), nn.BatchNorm1d(64)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                beside = self.second(self.wide(x)).mean()
            return self.first(self.narrow(x)) + beside

    return Net(), F.mse_loss, (torch.randn(32, 8), torch.randn(32, 16))


def _recurrent() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    return Net(), F.mse_loss, (torch.randn(4, 6, 8), torch.randn(4, 3))


@pytest.mark.parametrize("make", [_classifier, _normalized, _recurrent])
@pytest.mark.parametrize("executors", [("aten",), None])
def test_the_peak_of_a_step_is_known(make: Callable[[], Any], executors: tuple[str, ...] | None) -> None:
    torch.manual_seed(0)
    net, criterion, batch = make()
    optimizer = torch.optim.Adam(net.parameters())

    @dovetail.compile_step(keep_grads=False, **({} if executors is None else {"executors": executors}))
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        step(*batch)
    said, measured = step.explain().peak_bytes, measure_peak(step, *batch).peak_bytes
    assert measured == said if executors else 0.99 * said < measured <= said


def _relu(shape: tuple[int, ...]) -> Node:
    return _node(aten.relu.default, torch.randn(shape))


def test_modes_of_the_caller_do_not_notice() -> None:
    class Counts(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    node, needs = _relu((7, 1, 3)), Needs({})
    with Counts() as mode, torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        needs.measure([node])
    assert mode.calls == 0
    assert not needs.unknown


def test_a_step_whose_first_call_is_profiled_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dovetail.execute.needs, "_FOUND", {})
    net = nn.ModuleDict({"embed": nn.Embedding(64, 32), "lstm": nn.LSTM(32, 32, 2), "head": nn.Linear(32, 64)})
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(words: Tensor) -> Tensor:
        sgd.zero_grad()
        hidden, _ = net["lstm"](net["embed"](words))
        loss = F.cross_entropy(net["head"](hidden).flatten(0, 1), words.flatten())
        loss.backward()
        sgd.step()
        return loss.detach()

    words = torch.randint(64, (16, 8))
    lowest = dovetail.estimate(step, words).floor_transient_bytes
    monkeypatch.setattr(dovetail.execute.needs, "_FOUND", {})  # nothing is known from before
    compiled = dovetail.compile_step(step, memory_limit=f"transient:{lowest}B")
    for _ in range(3):
        peak = measure_peak(compiled, words).peak_bytes
        assert peak == compiled.explain().peak_bytes
        assert peak <= lowest


def test_an_error_beside_a_profile_is_raised() -> None:
    def fail() -> None:
        raise ValueError("as it should")

    with pytest.raises(ValueError, match="as it should"):
        record_allocator_events_apart(fail)


def test_warnings_of_operators_are_not_the_callers(recwarn: pytest.WarningsRecorder) -> None:
    node = _node(aten.var.correction, torch.randn(1, 9), [0])
    recwarn.clear()
    needs = Needs({})
    needs.measure([node])
    assert not needs.unknown
    assert not recwarn.list


@pytest.mark.parametrize("maker", [aten._to_copy.default, aten.view.dtype, aten.empty_like.default])
def test_pivots_that_are_no_pivots_reach_no_kernel(maker: Any) -> None:
    """Only what a factorization left is read as pivots: others are read and written without a check."""
    x = _value("x", torch.randn(4), 0)
    kwargs = () if maker is aten.view.dtype else (("dtype", torch.int32),)
    pivots = _value("p", torch.zeros(4, dtype=torch.int32), 0 if maker is aten.view.dtype else 1)
    made = Node(maker, (x, torch.int32) if maker is aten.view.dtype else (x,), kwargs, outputs=(pivots,))
    lu, b = _value("lu", torch.randn(4, 4), 2), _value("b", torch.randn(4, 2), 3)
    solve = Node(aten.linalg_lu_solve.default, (lu, pivots, b), outputs=(_value("y", torch.randn(4, 2), 4),))
    needs = Needs({})
    needs.measure([made, solve])
    assert needs.unknown == [solve]


def test_pivots_of_a_factorization_are_read() -> None:
    a, b = torch.eye(4), torch.randn(4, 2)
    factor = _node(aten.linalg_lu_factor_ex.default, a)
    lu, pivots, _ = factor.results()
    solve = Node(aten.linalg_lu_solve.default, (lu, pivots, _value("b", b, 50)), outputs=(_value("z", b, 51),))
    needs = Needs({})
    needs.measure([factor, solve])
    assert not needs.unknown


def test_zeros_are_no_positions_in_an_empty_tensor() -> None:
    grad, index = _value("g", torch.randn(3, 4), 0), _value("i", torch.zeros(3, dtype=torch.long), 1)
    out = _value("y", torch.randn(0, 4), 2)
    node = Node(aten.embedding_dense_backward.default, (grad, index, 0, -1, True), outputs=(out,))
    needs = Needs({})
    needs.measure([node])
    assert needs.unknown == [node]  # its kernel writes the count of row 0
