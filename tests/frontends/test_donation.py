"""Donated inputs: memory that is used, what is refused, what is left as it is, and what autograd notices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.testing._internal.two_tensor import TwoTensor

import dovetail
from dovetail.analysis.liveness import simulate_peak
from dovetail.errors import BadDonation, BadOptionValue, UnusableDonation
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.memory import measure_peak
from dovetail.inspect.replay import replay
from dovetail.ir.graph_signature import GraphSignature
from dovetail.passes import reinplace
from tests.rotation import rotated

pytestmark = pytest.mark.usefixtures("alone")
aten = torch.ops.aten


def in_place(gm: fx.GraphModule, example_inputs: list[Any], *, signature: GraphSignature) -> Callable[..., Any]:
    """A compiler that works in what it is given."""
    return reinplace(gm, donate=signature.donated)


def with_executors(fn: Callable[..., Any], **options: Any) -> Any:
    return dovetail.compile(fn, **{"verify": 2, **options})


def with_a_compiler(fn: Callable[..., Any], **options: Any) -> Any:
    return dovetail.aot_function(fn, in_place, **options)


WAYS = pytest.mark.parametrize("way", [with_executors, with_a_compiler], ids=["executors", "a compiler"])


def chain(x: Tensor, w: Tensor) -> Tensor:
    return (torch.relu(x) * 2 + w).sin()


def lies_in(result: Tensor, given: Tensor) -> bool:
    return result.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


# --- memory -----------------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("donate", ["x", 0, ["x"], (0,)], ids=repr)
def test_a_result_is_made_in_memory_that_was_given(way: Any, donate: Any) -> None:
    x, w = torch.randn(50), torch.randn(50)
    expected, before = chain(x, w), w.clone()
    result = way(chain, donate=donate)(x, w)
    assert torch.equal(result, expected)
    assert result.data_ptr() == x.data_ptr()
    assert result is not x
    assert torch.equal(w, before)


@WAYS
def test_the_peak_is_lower(way: Any) -> None:
    peaks = {}
    for donate in ((), ("x",)):
        compiled = way(chain, donate=donate)
        arguments = [torch.randn(1000), torch.randn(1000)]
        compiled(torch.randn(1000), torch.randn(1000))
        measured = measure_peak(compiled, *arguments)
        peaks[donate] = measured.peak_bytes, measured.allocated_bytes
        if way is with_executors:
            simulated = simulate_peak(compiled.graphs[0].forward.program).peak_bytes
            assert 0 <= measured.peak_bytes - simulated < 64  # numbers become tensors of one element
    assert max(peaks["x",]) < 64
    assert min(peaks[()]) >= 4000


def test_a_training_step_takes_less() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (x + w).exp().sum()

    peaks = []
    for donate in ((), ("x",)):
        compiled = dovetail.compile(loss, donate=donate)
        w = torch.zeros(1000, requires_grad=True)
        compiled(torch.zeros(1000), w)
        measured = measure_peak(compiled, torch.zeros(1000), w)
        measured.result.backward()
        assert torch.equal(w.grad, torch.ones(1000))  # type: ignore[arg-type]
        peaks.append(measured.peak_bytes)
    assert peaks[0] - peaks[1] == 4000


def test_executors_work_in_it() -> None:
    class Counting:
        name = "counting"
        claimed: list[Any] = []  # noqa: RUF012

        def claim(self, node: Any) -> bool:
            self.claimed.append(node.target)
            return False

        def call(self, names: Any, node: Any) -> str:
            raise AssertionError("it claims nothing")

    x = torch.ones(4)
    compiled = dovetail.compile(torch.relu, donate=0, executors=[Counting()])
    assert compiled(x).data_ptr() == x.data_ptr()
    assert aten.relu_.default in Counting.claimed


# --- which arguments --------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    a: Tensor
    b: dict[str, Tensor | None]


def test_every_tensor_of_an_argument() -> None:
    def total(batch: Batch, *, scale: float) -> tuple[Tensor, Tensor]:
        assert batch.b["b"] is not None
        return batch.a * scale, batch.b["b"] + batch.a.sum()

    batch = Batch(torch.ones(3), {"b": torch.ones(4), "none": None})
    results = dovetail.compile(total, donate="batch")(batch, scale=2.0)
    assert [r.tolist() for r in results] == [[2.0] * 3, [4.0] * 4]
    assert lies_in(results[0], batch.a)
    assert lies_in(results[1], batch.b["b"])  # type: ignore[arg-type]


@pytest.mark.parametrize("donate", ["x", 0, "y", 1, "rest", 2, "more", "known"], ids=repr)
def test_arguments_of_every_kind(donate: str | int) -> None:
    other = torch.ones(2)

    def f(x: Tensor, y: Tensor = other, *rest: Tensor, known: Any = None, **more: Tensor) -> Any:
        return [t.neg() for t in (x, y, *rest, *(() if known is None else (known,)), *more.values())]

    compiled = dovetail.compile(f, donate=donate)
    places = {"x": [0], 0: [0], "y": [1], 1: [1], "rest": [2, 3], 2: [2], "more": [5], "known": [4]}[donate]
    for _ in range(2):
        given = [torch.ones(2) for _ in range(6)]
        results = compiled(*given[:4], known=given[4], other=given[5])
        assert [k for k in range(6) if lies_in(results[k], given[k])] == places
        by_name = compiled(x=given[0])
        assert lies_in(by_name[0], given[0]) == (donate in ("x", 0))


def test_arguments_of_forward() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("offset", torch.ones(3))

        def forward(self, state: Tensor, scale: Tensor) -> Tensor:
            return state.exp() * scale * self.weight.detach() + self.offset

    module = Layer()
    compiled = dovetail.aot_module(module, in_place, donate="state")
    state, scale = torch.zeros(3), torch.ones(3)
    assert lies_in(compiled(state, scale), state)
    for wrong in (module.weight, module.offset):
        with pytest.raises(UnusableDonation, match="argument 'state' is donated"):
            compiled(wrong, scale)
        with pytest.raises(UnusableDonation, match="lies in the same storage"):
            compiled(wrong.detach()[:], scale)
    assert torch.equal(module.weight, torch.ones(3))


@pytest.mark.parametrize("donate", ["z", 2, -1, True, 1.5, ["x", "z"], None], ids=repr)
def test_no_such_argument(donate: Any) -> None:
    with pytest.raises(BadDonation, match="there is no such argument"):
        dovetail.compile(chain, donate=donate)


def test_functions_without_names() -> None:
    with pytest.raises(BadDonation, match="give positions"):
        dovetail.aot_function(torch.sin, in_place, donate=["x"])
    x = torch.zeros(3)
    assert lies_in(dovetail.aot_function(torch.sin, in_place, donate=[0])(x), x)


def test_an_argument_without_tensors() -> None:
    def scaled(x: Tensor, n: Any) -> Tensor:
        return x if n is None else x * n

    compiled = dovetail.compile(scaled, donate="n")
    with pytest.raises(BadDonation, match="it is not a tensor"):
        compiled(torch.ones(2), 3)
    assert torch.equal(compiled(torch.ones(2), None), torch.ones(2))
    with pytest.raises(UnusableDonation, match="wraps others"):
        compiled(torch.ones(2), TwoTensor(torch.ones(2), torch.ones(2)))


# --- what is refused --------------------------------------------------------------------------------------------------


@WAYS
def test_memory_that_somebody_else_sees(way: Any) -> None:
    base = torch.randn(8)
    kept = base.clone()
    compiled = way(chain, donate="x")
    array = base.numpy()
    calls = [(base, base), (base[:4], base[4:]), (base, base.detach()), (base, torch.from_numpy(array))]
    for _ in range(2):
        for x, w in calls:
            with pytest.raises(UnusableDonation, match="argument 'x' is donated"):
                compiled(x, w)
        assert torch.equal(base, kept)
        compiled(torch.ones(8), torch.ones(8))
        compiled(torch.ones(4), torch.ones(4))
    with pytest.raises(UnusableDonation, match=r"argument '[xw]' lies in the same storage"):
        way(chain, donate=("x", "w"))(base[:4], base[4:])
    assert torch.equal(base, kept)


@WAYS
def test_memory_that_the_function_closes_over(way: Any) -> None:
    held = torch.randn(5)
    kept = held.clone()
    compiled = way(lambda x: (x * 2 + held).sin(), donate=0)
    assert torch.equal(compiled(torch.ones(5)), (2 + held).sin())
    for x in (held, held[:], held.view(5)):
        with pytest.raises(UnusableDonation, match="argument 0 is donated"):
            compiled(x)
    assert torch.equal(held, kept)


def test_tensors_made_in_inference_mode() -> None:
    compiled = dovetail.compile(chain, donate="x")
    with torch.inference_mode():
        x = torch.ones(3)
        w = torch.ones(3)
    with pytest.raises(UnusableDonation, match="inference mode"):
        compiled(x, torch.ones(3))
    with torch.inference_mode():
        expected = chain(x, w)
        assert torch.equal(compiled(x, w), expected)


def test_where_nothing_can_be_donated() -> None:
    with pytest.raises(BadOptionValue, match="donate"):
        dovetail.freeze(nn.Linear(2, 2), (torch.ones(1, 2),), donate=0)
    with pytest.raises(Exception, match="Dynamo chooses the inputs of its graphs"):
        torch.compile(chain, backend="dovetail", options={"donate": (0,)})(torch.ones(2), torch.ones(2))


# --- a line of a backend for torch.compile ---------------------------------------------------------------------------


def test_graphs_of_dynamo() -> None:
    made: list[Any] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        compiled = dovetail.aot_module_simplified(gm, example_inputs, in_place, donate=names[:1])
        for wrong in (len(names), "nobody", True):
            with pytest.raises(BadDonation, match="no such placeholder"):
                dovetail.aot_module_simplified(gm, example_inputs, in_place, donate=wrong)
        made.append(compiled)
        return compiled

    compiled = torch.compile(chain, backend=backend, fullgraph=True)
    base = torch.randn(6)
    for x, w in ((torch.randn(3), torch.randn(3)), (torch.randn(3), torch.randn(3))):
        expected = chain(x, w)
        result = compiled(x, w)
        assert torch.equal(result, expected)
        assert lies_in(result, x)
    with pytest.raises(UnusableDonation):
        compiled(base[:3], base[3:])
    assert len(made) == 1


def test_graphs_of_dynamo_with_sizes() -> None:
    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        place = next(k for k, x in enumerate(example_inputs) if isinstance(x, Tensor))
        return dovetail.aot_module_simplified(gm, example_inputs, in_place, donate=place)

    compiled = torch.compile(chain, backend=backend, fullgraph=True, dynamic=True)
    for size in (3, 5, 7):
        x, w = torch.randn(size), torch.randn(size)
        expected = chain(x, w)
        result = compiled(x, w)
        assert torch.equal(result, expected)
        assert lies_in(result, x)


# --- gradients --------------------------------------------------------------------------------------------------------


def square(x: Tensor, w: Tensor) -> Tensor:
    return (x * x * w).sum()


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).exp().tanh()


def halves(x: Tensor, w: Tensor) -> Tensor:
    return (x[:2] * w[:2]).sum() + x[2:].exp().sum()


def activation(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x + 1) + x.tanh() * w.sigmoid()


def dropped(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x.sin(), 0.5) * w


FUNCTIONS = [square, product, halves, activation, dropped, chain]


@WAYS
@pytest.mark.parametrize(
    ("function", "wants", "partition"),
    rotated([*itertools.product(FUNCTIONS, ["x", "w", "xw"], ["default", "min_cut"])], 4),
    ids=lambda part: getattr(part, "__name__", part),
)
def test_gradients_are_those_of_eager(way: Any, partition: str, function: Any, wants: str) -> None:
    compiled = way(function, donate=("x", "w") if wants == "xw" else "x", partition=partition)
    for seed in range(2):
        found = []
        for call in (function, compiled):
            torch.manual_seed(seed)
            given = {name: torch.randn(4, requires_grad=name in wants) for name in "xw"}
            result = call(given["x"], given["w"])
            result.sum().backward()
            found.append([result.detach(), *(given[name].grad for name in wants)])
        assert all(map(torch.equal, *found))


def test_what_backward_reads_is_not_written() -> None:
    compiled = dovetail.compile(square, donate="x")
    w = torch.ones(4, requires_grad=True)
    x = torch.full((4,), 3.0)
    loss = compiled(x, w)
    assert torch.equal(x, torch.full((4,), 3.0)) or compiled.graphs[0].donated.offered
    loss.backward()
    assert torch.equal(w.grad, torch.full((4,), 9.0))  # type: ignore[arg-type]


@WAYS
def test_second_derivatives_read_the_inputs(way: Any) -> None:
    compiled = way(lambda x: (x.sin() * x).sum(), donate=0, double_backward=True)
    seconds = []
    for call in (lambda x: (x.sin() * x).sum(), compiled):
        x = torch.arange(3.0, requires_grad=True)
        (first,) = torch.autograd.grad(call(x), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.sum(), x)[0])
    assert torch.equal(*seconds)
    assert compiled.graphs[0].donated.offered == ()


class WritesLate(torch.autograd.Function):
    """Writes an input when backward runs."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, state: Tensor) -> Tensor:
        ctx.state = state
        return a * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.state.add_(1)
        return grad * 2, None


def test_an_input_that_backward_writes() -> None:
    def f(a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return WritesLate.apply(a, state), state * 2  # type: ignore[no-untyped-call]

    compiled = dovetail.compile(f, donate="state")
    a, state = torch.ones(3, requires_grad=True), torch.ones(3)
    result, other = compiled(a, state)
    result.sum().backward()
    assert torch.equal(other, torch.full((3,), 2.0))
    assert torch.equal(a.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


class WritesUnlessBoth(torch.autograd.Function):
    """Writes an input in a backward for its first result alone."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        ctx.state = state
        ctx.set_materialize_grads(False)
        return a * 2, a * 3

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        if second is None:
            ctx.state.add_(1)
            return first * 2, None
        return first * 2 + second * 3, None


def test_a_write_that_only_one_backward_makes() -> None:
    def f(a: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        return (*WritesUnlessBoth.apply(a, state), state * 2)  # type: ignore[no-untyped-call]

    compiled = dovetail.compile(f, donate="state")
    first, _, other = compiled(torch.ones(3, requires_grad=True), torch.ones(3))
    with pytest.raises(UnusableDonation, match="this backward writes it"):
        first.sum().backward()
    assert torch.equal(other, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "view", [lambda a: a.unbind(0)[0], lambda a: (a * 1).unbind(0)[0], lambda a: a.view(-1)[:4]], ids=["1", "2", "3"]
)
def test_views_that_want_gradients(view: Callable[[Tensor], Tensor]) -> None:
    compiled = dovetail.compile(product, donate="x")
    gradients = []
    for call in (product, compiled):
        a = torch.arange(8.0).view(2, 4).requires_grad_()
        call(view(a), torch.ones(4)).sum().backward()
        gradients.append(a.grad)
    assert torch.equal(*gradients)  # type: ignore[arg-type]


# --- what autograd notices --------------------------------------------------------------------------------------------


@WAYS
def test_autograd_does_not_use_what_was_donated(way: Any) -> None:
    compiled = way(chain, donate="x")
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    before = (x * w).sum()  # keeps x
    compiled(x, torch.zeros(4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.backward()


@WAYS
def test_the_counter_moves_even_if_nothing_is_written(way: Any) -> None:
    compiled = way(lambda x: x.sum(), donate=0)
    x = torch.ones(3)
    version = x._version
    assert compiled(x) == 3
    assert x._version > version


@WAYS
def test_a_write_to_what_was_donated_is_noticed(way: Any) -> None:
    compiled = way(chain, donate="x")
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    result = compiled(x, torch.zeros(4))
    after = (result * w).sum()  # keeps the result, which lies in x
    x.fill_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        after.backward()


@pytest.mark.filterwarnings("ignore:.*was compiled for 1 kinds of calls")
def test_calls_that_run_in_eager_mode() -> None:
    compiled = dovetail.compile(chain, donate="x", max_variants=1)
    for size in (3, 4):
        x, w = torch.ones(size), torch.ones(size, requires_grad=True)
        expected, version = chain(x, w), x._version
        result = compiled(x, w)
        assert torch.equal(result, expected)
        assert x._version > version
        result.sum().backward()


# --- aliases and writes -----------------------------------------------------------------------------------------------


@WAYS
def test_results_that_are_the_input(way: Any) -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x[1:], x.detach(), x

    x = torch.arange(3.0)
    results = way(views, donate="x")(x)
    assert [r.tolist() for r in results] == [[0, 2, 4], [1, 2], [0, 1, 2], [0, 1, 2]]
    assert results[3] is x
    assert results[1].data_ptr() == x[1:].data_ptr()
    assert not lies_in(results[0], x)


@WAYS
def test_an_input_that_is_written_as_well(way: Any) -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(y)
        return x.sin()

    x, y = torch.ones(3), torch.full((3,), 2.0)
    result = way(step, donate=("x", "y"))(x, y)
    assert torch.equal(result, torch.full((3,), 2.0).sin())
    assert torch.equal(x, torch.full((3,), 2.0))
    leaf, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    x = leaf * 1
    way(step, donate="x")(x, y).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0).cos() * 2)  # type: ignore[arg-type]


@WAYS
def test_memory_beside_a_donated_part_is_kept(way: Any) -> None:
    base = torch.zeros(4, 6)
    expected = chain(torch.zeros(4, 3), torch.ones(4, 3))
    result = way(chain, donate="x")(base[:, ::2], torch.ones(4, 3))
    assert torch.equal(result, expected)
    assert not base[:, 1::2].any()


@WAYS
def test_conjugate_and_expanded_inputs(way: Any) -> None:
    for x in (torch.randn(3, dtype=torch.complex64).conj(), torch.randn(1, 3).expand(2, 3), torch.randn(3, 2).t()):
        expected = [(x * 2).exp(), x.sum(0)]
        results = way(lambda x: ((x * 2).exp(), x.sum(0)), donate=0)(x)
        assert all(map(torch.equal, expected, results))
        assert not results[0].is_conj()


@WAYS
def test_free_sizes(way: Any) -> None:
    compiled = way(chain, donate="x", dynamic=True)
    for size in (3, 4, 9):
        x, w = torch.randn(size, 2), torch.randn(size, 2)
        expected = chain(x, w)
        result = compiled(x, w)
        assert torch.equal(result, expected)
        assert lies_in(result, x)
    assert len(compiled.graphs) == 1


# --- what is said about it --------------------------------------------------------------------------------------------


def test_reasons_are_reported(tmp_path: Path) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> tuple[Tensor, ...]:
        c.add_(1)
        return a.exp(), b, (d * d).sum(), e.sum()

    arguments = [torch.ones(3) for _ in range(3)] + [torch.ones(3, requires_grad=True), torch.ones(3)]
    compiled = dovetail.compile(f, donate=tuple("abcde"), dump=str(tmp_path))
    compiled(*arguments)
    (folder,) = tmp_path.iterdir()
    explained = [dovetail.explain(compiled, *(x.detach().requires_grad_(x.requires_grad) for x in arguments))]
    explained += explain_dump(folder)
    for explanation in explained:
        rows = {row.name: (row.code, row.bytes) for row in explanation.decisions if row.kind == "donated"}
        assert rows == {
            "arg_0": ("USED", 12),
            "arg_1": ("IS-RETURNED", 0),
            "arg_2": ("IS-WRITTEN", 0),
            "arg_3": ("IS-SAVED", 0),
            "arg_4": ("NOT-USED", 0),
        }
        assert "donated: 5, 12 B of results in donated memory" in str(explanation)
        explanation.html(tmp_path / "report.html")
        assert "Inputs that the caller donated" in (tmp_path / "report.html").read_text()
    assert {row.verdict for row in replay(folder)} == {"ran", "equal"}


def test_the_signature_says_it() -> None:
    seen: list[GraphSignature] = []

    def compiler(gm: fx.GraphModule, example_inputs: list[Any], *, signature: GraphSignature) -> Any:
        seen.append(signature)
        return gm

    dovetail.aot_function(chain, compiler, donate=1)(torch.ones(2), torch.ones(2))
    assert seen[0].donated == ("arg_1",)
    assert str(seen[0]).splitlines()[2] == "  arg_1: user input 1, donated"
    assert GraphSignature.from_json(seen[0].to_json()) == seen[0]
