"""Inputs that share memory, written or not, in ways that change from call to call: results are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.analysis import overlap_groups
from dovetail.errors import DovetailWarning
from dovetail.execute.graph import CompiledGraph
from tests.doors import DOORS, Compiled, Door, assert_as_eager, directly
from tests.rotation import rotated

pytestmark = pytest.mark.usefixtures("alone")

Inputs = tuple[list[Any], list[torch.Tensor]]


@pytest.fixture(params=DOORS, ids=lambda door: door.__name__)
def door(request: pytest.FixtureRequest) -> Door:
    chosen: Door = request.param
    return chosen


def _base(seed: int, size: int, wants_gradient: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A tensor to take views of, and the leaf behind it when a gradient is wanted."""
    leaf = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return (leaf.requires_grad_() * 1, [leaf]) if wants_gradient else (leaf, [])


def _doubled_and_added(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    x.mul_(2)
    return (x + y,)


# --- variants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("calls", [(0, 1, 2, 3), (1, 0, 3, 2)], ids=["apart first", "together first"])
def test_sharing_that_comes_and_goes(door: Door, calls: Sequence[int], wants_gradient: bool) -> None:
    def inputs(seed: int) -> Inputs:
        if seed % 2:
            base, leaves = _base(seed, 8, wants_gradient)
            return [base[:4], base[2:6]], leaves
        (x, one), (y, other) = _base(seed, 4, wants_gradient), _base(seed + 10, 4, wants_gradient)
        return [x, y], one + other

    compiled = door(_doubled_and_added)
    assert_as_eager(_doubled_and_added, compiled.call, inputs, calls)
    assert len(compiled.graphs()) == 2


def test_the_first_report(door: Door) -> None:
    compiled = door(_doubled_and_added)
    (total,) = compiled.call(torch.ones(4), torch.ones(4))
    assert total.tolist() == [3, 3, 3, 3]
    base = torch.ones(6)
    (total,) = compiled.call(base[:4], base[2:6])
    assert total.tolist() == [4, 4, 3, 3]
    assert base.tolist() == [2, 2, 2, 2, 1, 1]


class _Counting(nn.Module):
    """Writes its argument, and reads and writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        self.state.add_(1)
        return self.state.sum() + x * 3


def test_an_argument_that_is_a_view_of_a_buffer(door: Door) -> None:
    eager, source = _Counting(), _Counting()
    compiled = door(source)
    for where in (None, slice(2, 6), slice(0, 4), None, slice(2, 6)):
        x, y = (m.state[where] if where is not None else torch.ones(4) for m in (eager, source))
        assert torch.equal(eager(x), compiled.call(y))
        assert torch.equal(x, y)
        assert torch.equal(eager.state, source.state)


def test_three_inputs_that_share_in_turn(door: Door) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(x[0])
        return x * 2, y - z, z[1:]

    def inputs(seed: int) -> Inputs:
        a, b, c = (torch.randn(8, generator=torch.Generator().manual_seed(10 * seed + i)) for i in range(3))
        ways = (
            [a[:4], b[:4], c[:4]],
            [a[:4], a[2:6], c[:4]],
            [a[:4], b[:4], b[1:5]],
            [a[:4], a[2:6], a[4:8]],
            [a[:4], b[:4], a[3:7]],  # nobody writes what x and z share
        )
        return ways[seed % len(ways)], []

    compiled = door(f)
    assert_as_eager(f, compiled.call, inputs, range(5))
    count = len(compiled.graphs())
    assert count == 4
    assert_as_eager(f, compiled.call, inputs, (7, 5, 9, 8, 6))
    assert len(compiled.graphs()) == count


def test_the_same_way_elsewhere_in_memory_is_no_new_way(door: Door) -> None:
    compiled = door(_doubled_and_added)

    def inputs(seed: int) -> Inputs:
        base, _ = _base(seed, 20, False)
        return [base[seed : seed + 4], base[seed + 2 : seed + 6]], []

    assert_as_eager(_doubled_and_added, compiled.call, inputs, (0,))
    count = len(compiled.graphs())
    assert_as_eager(_doubled_and_added, compiled.call, inputs, (1, 5, 12, 0))
    assert len(compiled.graphs()) == count


def test_beyond_the_limit_calls_run_in_eager_mode_with_one_warning(door: Door) -> None:
    def inputs(seed: int) -> Inputs:
        base, _ = _base(seed, 12, False)
        return [base[:4], base[seed : seed + 4]], []

    compiled = door(_doubled_and_added, max_variants=3)
    assert_as_eager(_doubled_and_added, compiled.call, inputs, (4, 1, 2))
    with pytest.warns(DovetailWarning, match="eager mode"):
        assert_as_eager(_doubled_and_added, compiled.call, inputs, (3,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_as_eager(_doubled_and_added, compiled.call, inputs, (3, 1, 2, 5))
    assert len(compiled.graphs()) == 3


# --- several dtypes -------------------------------------------------------------------------------------------------


def test_one_buffer_as_floats_and_as_integers(door: Door) -> None:
    def f(k: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k.add_(1)
        s.mul_(2)
        return k * 1, s + 1

    def inputs(seed: int) -> Inputs:
        base = torch.arange(16.0) + seed
        return [base, base.view(torch.int32)], []

    assert_as_eager(f, door(f).call, inputs)


@pytest.mark.parametrize("subset", rotated(range(16), 4))
def test_four_dtypes_over_the_same_bytes(door: Door, subset: int) -> None:
    def f(*views: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for place, view in enumerate(views):
            if subset >> place & 1:
                view.add_(1)
        return tuple(view * 2 for view in views)

    def inputs(seed: int) -> Inputs:
        base = torch.arange(16.0) + seed
        views = [base[:8], base[2:12].view(torch.int32), base[4:5].view(torch.uint8), base[4:14].view(torch.bfloat16)]
        return views, []

    assert_as_eager(f, door(f).call, inputs)


def test_disjoint_views_of_several_dtypes_need_no_flat_tensor(door: Door) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for view in (a, b, c, d):
            view.add_(1)
        return a + 1, b * 2, c, d[1:]

    def inputs(seed: int) -> Inputs:
        base = torch.arange(16.0) + seed
        dtypes = (torch.float32, torch.int32, torch.uint8, torch.bfloat16)
        return [part.view(dtype) for part, dtype in zip(base.split(4), dtypes, strict=True)], []

    compiled = door(f)
    assert_as_eager(f, compiled.call, inputs)
    _assert_apart(compiled.graphs())


# --- many views of one buffer ---------------------------------------------------------------------------------------


def _columns(count: int) -> list[torch.Tensor]:
    return list(torch.arange(4.0 * count).view(4, count).unbind(1))


def _slices(count: int) -> list[torch.Tensor]:
    return list(torch.arange(4.0 * count).split(4))


def _assert_apart(graphs: Sequence[CompiledGraph]) -> None:
    (graph,) = graphs
    assert graph.plan.extras == ()
    assert not any("scatter" in str(node.target) for node in graph.forward.program.nodes)


@pytest.mark.parametrize("every", [1, 3], ids=["all written", "some written"])
@pytest.mark.parametrize("views", [_columns, _slices])
def test_many_disjoint_views_of_one_buffer(door: Door, views: Callable[[int], list[torch.Tensor]], every: int) -> None:
    def f(*parts: torch.Tensor) -> torch.Tensor:
        for part in parts[::every]:
            part.mul_(2)
        return parts[0] + parts[-1]

    count = 400 if door is directly else 100  # Dynamo guards every input: its time, not ours
    compiled: Compiled = door(f)
    for _ in range(2):
        expected, actual = views(count), views(count)
        assert torch.equal(f(*expected), compiled.call(*actual))
        assert torch.equal(torch.stack(expected), torch.stack(actual))
    _assert_apart(compiled.graphs())


@pytest.mark.parametrize("views", [_columns, _slices])
def test_many_disjoint_views_are_groups_of_one(views: Callable[[int], list[torch.Tensor]]) -> None:
    assert overlap_groups(views(2000)) == [[i] for i in range(2000)]


# --- addresses --------------------------------------------------------------------------------------------------------


def _written_at_an_address(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.as_strided((2, 2), (1, 2), 5).mul_(2)
    return x * y


@pytest.mark.parametrize("start", [0, 2, 5])
def test_a_write_at_an_address_reaches_that_place(door: Door, start: int) -> None:
    results = []
    for call in (_written_at_an_address, door(_written_at_an_address).call):
        base = torch.arange(30.0)
        results.append((call(base[start : start + 9].view(3, 3), base[20:29].view(3, 3)), base))
    assert all(map(torch.equal, *results))


def _at_an_address(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.relu_()
    view = y.flatten().as_strided((2, 2), (1, 1), 0)
    y.mul_(2)
    return view


def _at_two_addresses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.as_strided((2, 2), (1, 2), 2).as_strided((2, 2), (1, 2), 3)


@pytest.mark.parametrize("start", [0, 2, 12])
@pytest.mark.parametrize(
    ("function", "wants_gradient"), [(_at_an_address, False), (_at_two_addresses, False), (_at_two_addresses, True)]
)
def test_a_view_at_an_address_beside_its_input(
    door: Door, function: Callable[..., torch.Tensor], wants_gradient: bool, start: int
) -> None:
    results = []
    for call in (function, door(function).call):
        leaf = torch.randn(30, generator=torch.Generator().manual_seed(0), requires_grad=wants_gradient)
        base = leaf * 1
        view = call(base[:9].view(3, 3), base[start : start + 9].view(3, 3))
        at_home = view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        gradient = torch.autograd.grad(view.square().sum(), leaf)[0] if wants_gradient else torch.zeros(())
        results.append((at_home, view._base is base, view.storage_offset(), view.tolist(), gradient.tolist()))
    assert results[0] == results[1]
    assert results[0][0]


# --- bytes that are shown otherwise ----------------------------------------------------------------------------------


def _written_and_seen_in_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    x.real.add_(1)
    return x.imag * 1, x * x.conj()


@pytest.mark.parametrize("of_state", [False, True])
@pytest.mark.parametrize("shown", [lambda x: x.conj(), lambda x: x.conj()[1:], lambda x: torch._neg_view(x).conj()])
def test_a_conjugate_input_is_written(shown: Callable[[torch.Tensor], torch.Tensor], of_state: bool) -> None:
    compiled = (dovetail.compile_step if of_state else dovetail.compile)(_written_and_seen_in_parts)
    results = []
    for call in (_written_and_seen_in_parts, compiled):
        whole = torch.complex(torch.arange(6.0), torch.ones(6)).view(3, 2).clone()
        x = shown(whole)
        made = [*call(x), *call(x)]
        results.append((*made, x.resolve_conj().resolve_neg(), whole))
        assert x.is_conj()
    assert all(map(torch.equal, *results))


# --- what autograd sees as a view -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(
    "of", [lambda x: x.detach(), lambda x: x.detach()[1:], lambda x: x[1:].detach(), lambda x: x[1:], lambda x: x[...]]
)
def test_a_result_is_a_view_of_another_where_autograd_says_so(
    door: Door, of: Callable[[Any], Any], wants_gradient: bool
) -> None:
    def of_an_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, of(x)

    def of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, of(y)

    for function in (of_an_input, of_a_result):
        seen = []
        for call in (function, door(function).call):
            whole, part = call(_base(0, 4, wants_gradient)[0])
            seen.append((part._base is whole, part.requires_grad, part.is_leaf))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(
    "make", [lambda x: x.t().reshape(-1), lambda x: torch.nn.functional.linear(x[None], x)[0], lambda x: x.t().clone()]
)
def test_a_part_of_a_result_follows_what_is_written_to_it(
    door: Door, make: Callable[[Any], Any], wants_gradient: bool
) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = make(x)
        return whole, whole[1:], whole[0]

    found = []
    for call in (f, door(f).call):
        x, times = torch.ones(3, 4, requires_grad=wants_gradient), torch.tensor(3.0, requires_grad=True)
        whole, rest, first = call(x)
        whole.mul_(times)
        leaves = [times, x] if wants_gradient else [times]
        found.append(torch.autograd.grad(rest.sum() + first.square().sum(), leaves))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    "of", [lambda x: x.data, lambda x: x.detach(), lambda x: x[1:].data, lambda x: x.data[1:], lambda x: x[1:]]
)
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_results_count_versions_with_an_input_as_in_eager_mode(of: Callable[[Any], Any], wants_gradient: bool) -> None:
    def of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, of(y)

    for function in (lambda x: (x, of(x)), of_a_result):
        seen = []
        for call in (function, dovetail.compile(function)):
            whole, part = call(_base(0, 4, wants_gradient)[0])
            before = whole._version
            with torch.no_grad():
                part.add_(1)
            seen.append(whole._version - before)
        assert seen[0] == seen[1]
