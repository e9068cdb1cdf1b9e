"""Loops as operators: `scan`, and `while_loop` with gradients, for fixed and for changing sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import dovetail
from tests.doors import Door
from tests.rotation import rotated
from tests.semantics.check import Case, Make, assert_like_eager, cases_of, leaf

# torch's own imports and traces, made when a loop's subgraph is first taken apart, warn by themselves.
pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


class Cell(nn.Module):
    """A recurrent network over the rows of its input, whose step is a scan's body."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner, self.outer, self.options = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), options

    def forward(self, state: Tensor, rows: Tensor) -> Any:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            state = torch.tanh(self.inner(row) + self.outer(state))
            return state, state * 2

        return scan(step, state, rows, **self.options)


def case_scan_without_gradients() -> Case:
    return Case(lambda x: scan(lambda c, r: ((c * r).sin(), c + r), x[0], x), (torch.randn(4, 3),))


def case_scan_of_xs_and_init() -> Case:
    return Case(lambda x: scan(lambda c, r: ((c * r).sin(), c + r), x[0], x), (leaf(4, 3),))


def case_scan_whose_init_wants_no_gradient() -> Case:
    return Case(lambda c, x: scan(lambda c, r: ((c * r).sin(), c + r), c, x), (torch.randn(3), leaf(4, 3)))


def case_scan_whose_xs_want_no_gradient() -> Case:
    return Case(lambda c, x: scan(lambda c, r: ((c * r).sin(), c + r), c, x), (leaf(3), torch.randn(4, 3)))


def case_scan_with_parameters() -> Case:
    return Case(Cell(), (leaf(4), leaf(5, 3)))


def case_scan_with_parameters_that_alone_want_gradients() -> Case:
    return Case(Cell(), (torch.zeros(4), torch.randn(5, 3)))


def case_scan_in_reverse() -> Case:
    return Case(Cell(reverse=True), (leaf(4), leaf(5, 3)))


def case_scan_over_another_dimension() -> Case:
    def f(c: Tensor, x: Tensor) -> Any:
        return scan(lambda c, r: ((c * r).sin(), c + r), c, x, dim=1)

    return Case(f, (leaf(2), leaf(2, 5)))


def case_scan_over_the_last_dimension_in_reverse() -> Case:
    def f(c: Tensor, x: Tensor) -> Any:
        return scan(lambda c, r: (c * r, (c + r).exp()), c, x, dim=-1, reverse=True)

    return Case(f, (leaf(2, 3), leaf(2, 3, 4)))


def case_scan_of_a_single_row() -> Case:
    return Case(Cell(), (leaf(4), leaf(1, 3)))


def _structures(count: Tensor, x: Tensor, y: Tensor) -> Case:
    def step(carry: dict[str, Tensor], rows: tuple[Tensor, Tensor]) -> Any:
        total = carry["sum"] + rows[0] * rows[1]
        return {"sum": total, "count": carry["count"] + 1}, [total.cos(), rows[0] - 1]

    def f(x: Tensor, y: Tensor) -> Any:
        carry, (first, second) = scan(step, {"sum": x.sum(0), "count": count}, (x, y))
        return carry["sum"], carry["count"], first, second

    return Case(f, (x, y))


def case_scan_of_structures() -> Case:
    return _structures(torch.zeros(()), leaf(4, 3), leaf(4, 3))


def case_scan_of_whole_numbers() -> Case:
    return _structures(torch.zeros((), dtype=torch.long), torch.randn(4, 3), torch.randn(4, 3))


def case_scan_of_a_closed_over_intermediate() -> Case:
    def f(x: Tensor, w: Tensor) -> Any:
        scale = w.exp()
        carry, rows = scan(lambda c, r: ((c * scale).tanh(), r * scale + c), x.sum(0), x)
        return carry * scale, rows

    return Case(f, (leaf(4, 3), leaf(3)))


def case_scan_that_draws() -> Case:
    def f(x: Tensor) -> Any:
        return scan(lambda c, r: (c + torch.rand(3), r * c), x[0], x)

    return Case(f, (torch.randn(4, 3),))


def case_scan_that_drops_out() -> Case:
    def f(x: Tensor) -> Any:
        carry, rows = scan(lambda c, r: (c + F.dropout(r, 0.5), r * c), x[0], x)
        return carry, F.dropout(rows, 0.5)

    return Case(f, (leaf(4, 3),))


def case_scan_in_a_scan() -> Case:
    def inner(c: Tensor, row: Tensor) -> Any:
        carry, items = scan(lambda a, b: ((a * b).sin(), a + b), c, row)
        return carry + c, items.sum(0)

    return Case(lambda c, x: scan(inner, c, x), (leaf(2), leaf(3, 4, 2)))


def case_scan_in_a_branch() -> Case:
    def taken(x: Tensor) -> Tensor:
        return scan(lambda c, r: ((c * r).sin(), c + r), x[0], x)[1]

    return Case(lambda x: torch.cond(x.sum() > -99, taken, lambda x: x * 2, (x,)), (leaf(4, 3),))


def case_scan_of_a_map() -> Case:
    def f(x: Tensor) -> Any:
        return scan(lambda c, r: (c + map_over(lambda a: a.sin(), r), c * r), x[0], x)

    return Case(f, (leaf(4, 3),))


def case_scan_whose_carry_nobody_uses() -> Case:
    return Case(lambda x: scan(lambda c, r: (c * r, (c + r).exp()), x[0], x)[1], (leaf(4, 3),))


def case_scan_whose_rows_nobody_uses() -> Case:
    return Case(lambda x: scan(lambda c, r: (c * r, (c + r).exp()), x[0], x)[0], (leaf(4, 3),))


def case_scan_without_a_gradient_in_the_middle() -> Case:
    def step(c: Tensor, r: Tensor) -> Any:
        with torch.no_grad():
            scale = c.exp()
        return (c * scale).tanh(), c * r.detach()

    return Case(lambda x: scan(step, x[0], x), (leaf(4, 3),))


def _four_times(step: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, step(x)), (torch.tensor(0), x))


def case_while_loop() -> Case:
    return Case(lambda x: _four_times(lambda x: (x * 1.5).sin(), x), (leaf(3),))


def case_while_loop_that_ends_at_once() -> Case:
    def f(x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))

    return Case(f, (leaf(3),))


def case_while_loop_as_long_as_data_says() -> Case:
    def f(x: Tensor) -> Any:
        return while_loop(lambda x: x.sum() < 20, lambda x: (x.abs() * 1.5 + 1,), (x,))

    return Case(f, (leaf(3),))


def case_while_loop_with_parameters() -> Case:
    net = nn.Linear(3, 3)
    return Case(lambda x: _four_times(lambda x: net(x).tanh(), x), (leaf(2, 3),), module=net)


def case_while_loop_of_intermediates() -> Case:
    def f(x: Tensor) -> Tensor:
        scale = x.exp()
        _, result = _four_times(lambda x: (x * scale).tanh(), x + 1)
        return (result * scale).cos()

    return Case(f, (leaf(3),))


def case_while_loop_of_two_carries() -> Case:
    def f(x: Tensor, y: Tensor) -> Any:
        def step(i: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return i + 1, (x * y).tanh(), x + y

        return while_loop(lambda i, x, y: i < 4, step, (torch.tensor(0), x, y))

    return Case(f, (leaf(3), leaf(3)))


def case_while_loop_of_a_number() -> Case:
    def f(x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5 + i), (0, x))

    return Case(f, (torch.randn(3),))


def case_while_loop_after_another() -> Case:
    def f(x: Tensor) -> Any:
        _, once = _four_times(lambda x: x.sin() * 1.1, x)
        return _four_times(lambda y: (y * x).cos(), once * 2)

    return Case(f, (leaf(3),))


def case_while_loop_in_a_while_loop() -> Case:
    return Case(lambda x: _four_times(lambda x: _four_times(lambda y: y.sin() * 1.1, x)[1], x), (torch.randn(3),))


def case_while_loop_that_draws() -> Case:
    def f(x: Tensor) -> Any:
        return _four_times(lambda x: x + torch.rand(3), x)[1] * torch.rand(3)

    return Case(f, (leaf(3),))


def case_while_loop_then_a_scan() -> Case:
    def f(x: Tensor) -> Any:
        rows = _four_times(lambda x: x.sin() * 1.1, x)[1] * 2
        return scan(lambda c, r: ((c * r).sin(), c + r), rows[0], rows)

    return Case(f, (leaf(4, 3),))


@cases_of(globals(), in_turn=True, of=3)
def test_like_eager(make: Make, door: Door) -> None:
    assert_like_eager(make, door)


def by_dynamo(target: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(target, backend="dovetail", fullgraph=True, dynamic=dynamic)
    return compiled


def directly(target: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    return dovetail.compile(target, dynamic=bool(dynamic))


both_ways = pytest.mark.parametrize("compile_it", [by_dynamo, directly])
either_way = pytest.mark.parametrize("compile_it", rotated([by_dynamo, directly], 2))
Compile = Callable[..., Callable[..., Any]]


def outcome(call: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], wanted: Any = ()) -> list[Tensor]:
    """Results and gradients of one call on tensors of these shapes."""
    torch.manual_seed(sum(map(sum, shapes)))
    inputs = [leaf(*shape) for shape in shapes]
    results = call(*inputs)
    loss = sum((index + 1) * result.square().sum() for index, result in enumerate(results))
    return [*(result.detach() for result in results), *torch.autograd.grad(loss, [*inputs, *wanted])]


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


OPTIONS = {"plain": ({}, None), "reverse": ({"reverse": True}, True), "dim": ({"dim": 1}, True)}


@pytest.mark.parametrize(
    ("options", "dynamic"), [pytest.param(*OPTIONS[name], id=name) for name in rotated([*OPTIONS], 3)]
)
@either_way
def test_scan_over_changing_lengths(compile_it: Compile, options: dict[str, Any], dynamic: bool | None) -> None:
    cell = Cell(**options)
    compiled = compile_it(cell, dynamic)
    for length in (4, 6, 2, 9):
        shapes = ((4,), (3, length) if options.get("dim") else (length, 3))
        wanted = list(cell.parameters())
        assert_same(outcome(compiled, shapes, wanted), outcome(cell, shapes, wanted))


@pytest.mark.parametrize("dynamic", [True])
@either_way
def test_scan_over_changing_widths(compile_it: Compile, dynamic: bool | None) -> None:
    def f(c: Tensor, x: Tensor) -> Any:
        return scan(lambda c, r: ((c * r).sin() * r.shape[0], torch.cat([c, r])), c, x)

    compiled = compile_it(f, dynamic)
    for length, width in ((4, 3), (6, 5), (2, 7), (9, 2)):
        assert_same(outcome(compiled, ((width,), (length, width))), outcome(f, ((width,), (length, width))))


@either_way
def test_backwards_of_a_scan_one_after_the_other(compile_it: Compile) -> None:
    cell = Cell()
    state, rows = leaf(4), leaf(5, 3)
    wanted = [state, rows, *cell.parameters()]

    def gradients(call: Callable[..., Any]) -> list[Tensor]:
        carry, states = call(state, rows)
        first = torch.autograd.grad(states.square().sum(), wanted, retain_graph=True)
        second = torch.autograd.grad(carry.sum(), wanted, retain_graph=True)
        return [*first, *second, *torch.autograd.grad(carry.sum() + states.sum(), wanted)]

    assert_same(gradients(compile_it(cell)), gradients(cell))


def test_a_scan_in_a_checkpoint() -> None:
    cell = Cell()

    def f(state: Tensor, rows: Tensor) -> Any:
        return checkpoint(cell, state, rows, use_reentrant=False)

    compiled = by_dynamo(f)
    wanted = list(cell.parameters())
    assert_same(outcome(compiled, ((4,), (5, 3)), wanted), outcome(cell, ((4,), (5, 3)), wanted))  # eager fails on `f`


@pytest.mark.parametrize("dynamic", [True])
@either_way
def test_while_loop_over_changing_sizes(compile_it: Compile, dynamic: bool | None) -> None:
    net = nn.Linear(3, 3)

    def f(x: Tensor) -> Any:
        _, result = _four_times(lambda x: net(x).tanh() * x.shape[0], x)
        return (result.cos(),)

    compiled = compile_it(f, dynamic)
    for rows in (4, 6, 2, 9):
        assert_same(outcome(compiled, ((rows, 3),), net.parameters()), outcome(f, ((rows, 3),), net.parameters()))


@both_ways
def test_while_loop_whose_length_changes(compile_it: Compile) -> None:
    def f(limit: Tensor, x: Tensor) -> Any:
        return while_loop(lambda i, x: i < limit, lambda i, x: (i + 1, (x * 1.5).sin()), (torch.tensor(0), x))

    compiled = compile_it(f)
    for limit in (3, 0, 7, 1):
        length = torch.tensor(limit)
        assert_same(
            outcome(lambda x, n=length: compiled(n, x)[1:], ((3,),)), outcome(lambda x, n=length: f(n, x)[1:], ((3,),))
        )
