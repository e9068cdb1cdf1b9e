"""The passes on graph modules, called as a user calls them: what they refuse, what they keep, what they say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.errors import (
    BadDonation,
    DovetailError,
    InplaceMismatch,
    InvalidGraphModule,
    MissingSamples,
    NotAGraphModule,
    NotFunctional,
    SampleMismatch,
)
from dovetail.passes import InplaceReport, plan_inplace, reinplace, remove_dropout, verify_inplace
from dovetail.torch_compat.fakes import is_fake

aten = torch.ops.aten

PASSES: list[Callable[..., Any]] = [reinplace, plan_inplace]


def _targets(gm: fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def _step(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() + y).exp()


def _two() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(3, 4)


def _traced(function: Any) -> fx.GraphModule:
    """A graph that calls a function, or a method by its name, on its input."""
    graph = fx.Graph()
    call = graph.call_method if isinstance(function, str) else graph.call_function
    graph.output(call(function, (graph.placeholder("x"),)))
    return fx.GraphModule(torch.nn.Module(), graph)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("donate", "reason"),
    [
        ((2,), "there is no such input"),
        ((-1,), "there is no such input"),
        ((True,), "there is no such input"),
        (("weight",), "there is no such input"),
        (2.5, "there is no such input"),
        (("x_1",), "'x_1' cannot be donated: it shares memory with y_1, which is not donated"),
    ],
)
@pytest.mark.parametrize("a_pass", PASSES)
def test_bad_donations(a_pass: Callable[..., Any], donate: object, reason: str) -> None:
    x = torch.randn(3, 4)
    graph = make_fx(_step)(x, x[:, :])
    with pytest.raises(BadDonation, match=re.escape(reason)) as caught:
        a_pass(graph, x, x[:, :], donate=donate)
    assert "x_1, y_1" in str(caught.value)


def test_a_number_is_not_donated() -> None:
    graph = make_fx(lambda x, n: x * n, tracing_mode="symbolic")(torch.randn(3), 5)
    with pytest.raises(BadDonation, match="it is not a tensor"):
        reinplace(graph, donate="n_1")


@pytest.mark.parametrize("a_pass", PASSES)
def test_graphs_that_are_not_functional(a_pass: Callable[..., Any]) -> None:
    graph = make_fx(lambda x: (x * 2).add_(1))(torch.randn(3))
    with pytest.raises(NotFunctional, match="add_"):
        a_pass(graph, torch.randn(3))


@pytest.mark.parametrize("a_pass", PASSES)
@pytest.mark.parametrize(
    "samples",
    [
        (torch.randn(3, 4),),
        (torch.randn(3, 4), torch.randn(5, 4)),
        (torch.randn(3, 4), torch.randn(3, 4), torch.randn(3)),
        (torch.randn(3, 4), "text"),
    ],
)
def test_samples_that_do_not_fit(a_pass: Callable[..., Any], samples: tuple[Any, ...]) -> None:
    graph = make_fx(_step)(*_two())
    with pytest.raises(DovetailError) as caught:
        a_pass(graph, *samples)
    assert isinstance(caught.value, SampleMismatch | InvalidGraphModule)


@pytest.mark.parametrize("given", [torch.nn.Linear(2, 2), _step, fx.Graph()])
@pytest.mark.parametrize("a_pass", PASSES)
def test_what_is_no_graph_module(a_pass: Callable[..., Any], given: object) -> None:
    with pytest.raises(NotAGraphModule, match=f"a {type(given).__name__} is not a torch.fx.GraphModule"):
        a_pass(given, torch.randn(2, 2))


def test_no_samples_and_no_descriptions() -> None:
    with pytest.raises(MissingSamples):
        reinplace(_traced(aten.sin.default))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.sin, "torch.sin"),
        (aten.sin, "a packet of operators"),
        ("sin", "call_method"),
    ],
)
def test_calls_without_a_schema(function: Any, reason: str) -> None:
    with pytest.raises(InvalidGraphModule, match=reason):
        plan_inplace(_traced(function), torch.randn(3))


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_the_graph_that_is_given_is_not_edited() -> None:
    graph, samples = make_fx(_step)(*_two()), _two()
    before = [(node.name, node.target, node.args, dict(node.meta)) for node in graph.graph.nodes], graph.code
    kept = [sample.clone() for sample in samples]
    made = reinplace(graph, *samples, donate=(0, 1))
    assert ([(node.name, node.target, node.args, dict(node.meta)) for node in graph.graph.nodes], graph.code) == before
    assert all(map(torch.equal, samples, kept))
    assert made is not graph
    assert aten.sin_.default in _targets(made)


def test_donated_inputs_by_name_and_by_number() -> None:
    graph = make_fx(_step)(*_two())
    kept, by_number, by_name = (reinplace(graph, *_two(), donate=donate) for donate in ((), 0, "x_1"))
    assert _targets(kept) == [aten.sin.default, aten.add_.Tensor, aten.exp_.default]
    assert _targets(by_number) == _targets(by_name) == [aten.sin_.default, aten.add_.Tensor, aten.exp_.default]
    x, y = _two()
    assert torch.equal(by_name(x.clone(), y), _step(x, y))


def test_nothing_outside_is_written_before_the_last_check() -> None:
    def checked(x: Tensor, y: Tensor) -> Tensor:
        new = x + 1
        aten._assert_async.msg(y.sum() > 0, "negative")
        x.copy_(new)
        return y * 2

    graph = make_fx(checked)(torch.randn(3, 4), torch.ones(3, 4))
    free, bound = (reinplace(graph, *_two(), commit_point=commit) for commit in (False, True))
    assert _targets(free).index(aten.add_.Tensor) < _targets(free).index(aten._assert_async.msg)
    x, y = torch.randn(3, 4), -torch.ones(3, 4)
    before = x.clone()
    with pytest.raises(RuntimeError, match="negative"):
        bound(x, y)
    assert torch.equal(x, before)
    with pytest.raises(InplaceMismatch):
        verify_inplace(graph, free, *_two(), commit_point=True)
    verify_inplace(graph, bound, *_two(), commit_point=True)


def test_symbolic_sizes() -> None:
    def halves(x: Tensor) -> Tensor:
        part = aten.slice_copy.Tensor(x, 1, 1, 3)
        x.copy_(torch.cat([part, part], 1))
        return part.sum()

    graph = make_fx(halves, tracing_mode="symbolic")(torch.randn(5, 4))
    made = reinplace(graph)
    verify_inplace(graph, made)
    for rows in (3, 7):
        x = torch.randn(rows, 4)
        other = x.clone()
        assert torch.equal(graph(x), made(other))
        assert torch.equal(x, other)


def test_sizes_are_computed_where_a_copy_needs_them() -> None:
    samples = (torch.randn(4, 6, 5),)
    graph = make_fx(lambda x: aten.slice_copy.Tensor(x, 1, 0, 3, 2), tracing_mode="symbolic")(*samples)
    made = reinplace(graph)
    verify_inplace(graph, made)
    assert torch.equal(graph(*samples), made(*samples))


def test_operators_that_torch_cannot_run_on_symbols_into_given_memory() -> None:
    def marked(x: Tensor, places: Tensor) -> Tensor:
        new = x.scatter(0, places, 5.0)
        total = x.sum()
        x.copy_(new)
        return total

    samples = torch.randn(7), torch.tensor([2, 3])
    graph = make_fx(marked, tracing_mode="symbolic")(*samples)
    made = reinplace(graph)
    verify_inplace(graph, made)


def test_a_write_may_find_out_that_sizes_are_equal() -> None:
    samples = torch.randn(4, 2, 6), torch.randn(4, 2, 6)
    graph = make_fx(lambda x, y: aten.slice_scatter.default(x.sin(), y, 1, 0, 2), tracing_mode="symbolic")(*samples)
    made = reinplace(graph)
    verify_inplace(graph, made)
    assert torch.equal(graph(*samples), made(*samples))


def test_several_lists_of_results() -> None:
    def momentum(p: Tensor, q: Tensor, g: Tensor, m: Tensor) -> None:
        options = {"weight_decay": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
        lists = [p, q], [g, g * 2], [m, m * 2]
        made: Any = aten._fused_sgd.default(*lists, momentum=0.9, is_first_step=False, **options)
        for old, new in ((p, made[0][0]), (q, made[0][1]), (m, made[2][0])):
            old.copy_(new)

    samples = tuple(torch.randn(5) for _ in range(4))
    graph = make_fx(momentum)(*samples)
    made = reinplace(graph, *samples)
    assert aten.copy_.default not in _targets(made)
    assert aten._fused_sgd_.default in _targets(made)
    verify_inplace(graph, made, *samples)
    one, other = ([sample.clone() for sample in samples] for _ in range(2))
    graph(*one)
    made(*other)
    assert all(map(torch.equal, one, other))


# --- what is said ---------------------------------------------------------------------------------------------------


def test_a_report_says_why_with_bytes_and_lines() -> None:
    def kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        new = x + y
        return new, aten.select_scatter.default(new, y[0], 0, 1)

    samples = _two()
    graph = make_fx(kept)(*samples)
    for node in graph.graph.nodes:
        node.meta["stack_trace"] = 'File "model.py", line 7, in forward\n    return self.blend(x)'
    report = plan_inplace(graph, *samples)
    assert isinstance(report, InplaceReport)
    assert (report.copied_bytes, report.missed_bytes) == (48, 0)
    (line,) = [line for line in report.explain().splitlines() if "select_scatter" in line]
    assert re.search(r"copy, because .*; 48 bytes copied .*model\.py:7 in forward", line)


# --- what it costs, and what is believed ----------------------------------------------------------------------------


def _layers(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight.t() + 1) * x
    return x


def _fakes_run(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[int, Any]:
    """How many operators run on fakes during a call, and its result."""
    count = 0
    dispatch = FakeTensorMode.dispatch

    def counted(self: Any, func: Any, *more: Any) -> Any:
        nonlocal count
        count += isinstance(func, torch._ops.OpOverload) and func.namespace == "aten"
        return dispatch(self, func, *more)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counted)
    made = call()
    monkeypatch.undo()
    return count, made


@pytest.mark.parametrize("with_samples", [False, True])
def test_equal_layers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch, with_samples: bool) -> None:
    counts = []
    for layers in (2, 40):
        inputs = [torch.randn(4, 4) for _ in range(layers + 1)]
        graph = make_fx(_layers, tracing_mode="fake")(*inputs)
        count, made = _fakes_run(
            monkeypatch, lambda graph=graph, inputs=inputs: reinplace(graph, *(inputs if with_samples else ()))
        )
        counts.append(count)
        assert torch.equal(made(*[x.clone() for x in inputs]), _layers(*inputs))
        described = [node.meta["val"] for node in made.graph.nodes if node.op == "call_function"]
        assert all(is_fake(val) and val.shape == (4, 4) for val in described)
    assert counts[0] == counts[1]


def test_descriptions_that_are_there_are_kept() -> None:
    graph = make_fx(lambda x: (x.sin() + 1).exp(), tracing_mode="fake")(torch.randn(3))
    said = {node.name: node.meta.get("val") for node in graph.graph.nodes}
    again = remove_dropout(graph)
    kept = [
        said[node.name] is node.meta["val"]
        for node in again.graph.nodes
        if node.name in said and said[node.name] is not None
    ]
    assert kept.count(True) >= 1  # of the first of each kind, the fake was made again


def test_descriptions_that_are_wrong_are_not_believed() -> None:
    graph = make_fx(lambda x: (x.t().sin() + 1, x.t().sin() * 2), tracing_mode="fake")(torch.randn(3, 4))
    for node in graph.graph.nodes:
        if node.target in (aten.sin.default, aten.t.default):
            node.meta["val"] = node.meta["val"].new_empty((5, 7))  # another shape, on other memory
    made = reinplace(graph)
    for node in made.graph.nodes:
        if node.target in (aten.t.default, aten.sin.default, aten.mul.Tensor):
            assert node.meta["val"].shape == (4, 3)
    views = [node.meta["val"] for node in made.graph.nodes if node.target is aten.t.default]
    (x,) = [node.meta["val"] for node in made.graph.nodes if node.op == "placeholder"]
    assert {val.untyped_storage()._cdata for val in views} == {x.untyped_storage()._cdata}


def test_memory_that_is_said_to_be_shared_is_not_believed() -> None:
    graph = make_fx(lambda x: (x.sin() * 1, x.sin() * 2), tracing_mode="fake")(torch.randn(3))
    first, second = [node for node in graph.graph.nodes if node.target is aten.sin.default]
    second.meta["val"] = first.meta["val"]  # as careless passes leave it
    x = torch.randn(3)
    for got, expected in zip(reinplace(graph)(x), (x.sin(), x.sin() * 2), strict=True):
        assert torch.equal(got, expected)


def test_generated_functions_say_how_they_are_called() -> None:
    assert list(inspect.signature(reinplace).parameters) == ["gm", "sample_inputs", "donate", "commit_point"]
    assert inspect.signature(plan_inplace) != inspect.signature(reinplace)  # they give something else
    assert plan_inplace.__name__ == "plan_inplace"
    with pytest.raises(TypeError, match="donated"):
        reinplace(make_fx(_step)(*_two()), *_two(), donated=(0,))
