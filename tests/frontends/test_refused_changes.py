"""Programs that change an input as no compiled program can: a named error with the user's line, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.errors import CaptureFailed, DovetailError, OrderDependentWrite, UnsupportedInputMutation
from tests.doors import DOORS, Door, assert_as_eager, directly, through_dynamo

pytestmark = pytest.mark.usefixtures("alone")

Inputs = tuple[list[Any], list[torch.Tensor]]
Results = tuple[torch.Tensor, ...]


@pytest.fixture(params=DOORS, ids=lambda door: door.__name__)
def door(request: pytest.FixtureRequest) -> Door:
    chosen: Door = request.param
    return chosen


def _floats(seed: int) -> Inputs:
    return [torch.arange(6.0).view(2, 3) + seed], []


def _integers(seed: int) -> Inputs:
    return [torch.arange(4) + seed], []


def _expanded(seed: int) -> Inputs:
    return [torch.full((1,), float(seed)).expand(4)], []


def _facts(tensor: torch.Tensor) -> tuple[object, ...]:
    place = (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
    )
    return (*place, tensor.dtype, tensor.requires_grad, tensor._version, tensor.tolist())


def _refusal(compiled: Callable[..., Any], tensors: list[Any]) -> BaseException:
    """What a call raises, after a check that it left its arguments alone."""
    before = [_facts(tensor) for tensor in tensors]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is for the caller to say
        compiled(*tensors)
    assert [_facts(tensor) for tensor in tensors] == before
    error: BaseException = caught.value
    return getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises


# --- size and storage -----------------------------------------------------------------------------------------------


def _set(x: torch.Tensor) -> Results:
    x.set_(torch.ones(6))
    return (x + 1,)


def _resize(x: torch.Tensor) -> Results:
    x.resize_(3)
    return (x + 1,)


def _resize_after_a_write(x: torch.Tensor) -> Results:
    x.mul_(2)
    x.resize_(3)
    return (x + 1,)


def _new_data(x: torch.Tensor) -> Results:
    x.data = torch.ones(2, 3)
    return (x + 1,)


def _new_data_of_another_shape(x: torch.Tensor) -> Results:
    x.data = torch.ones(5)
    return (x + 1,)


@pytest.mark.parametrize("function", [_set, _resize, _resize_after_a_write, _new_data, _new_data_of_another_shape])
def test_another_size_or_storage_is_refused(function: Callable[..., Results]) -> None:
    error = _refusal(directly(function).call, _floats(0)[0])
    assert isinstance(error, UnsupportedInputMutation)
    assert "of input arg_0" in str(error)
    assert f"{__file__}:" in str(error)
    assert f"in {function.__name__}" in str(error)


@pytest.mark.parametrize("function", [_new_data, _new_data_of_another_shape])
def test_new_data_is_refused_behind_dynamo(function: Callable[..., Results]) -> None:
    error = _refusal(through_dynamo(function).call, _floats(0)[0])
    assert isinstance(error, UnsupportedInputMutation)
    assert "of input x_0" in str(error)


@pytest.mark.parametrize("function", [_set, _resize, _resize_after_a_write])
def test_what_dynamo_leaves_out_runs_in_eager_mode(function: Callable[..., Results]) -> None:
    assert_as_eager(function, through_dynamo(function, fullgraph=False).call, _floats, (0,))


class _Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("state", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.mul_(2)
        self.state.resize_(6)
        return self.state.sum() + x * self.weight


def test_a_module_stays_as_it_was() -> None:
    model = _Growing()
    state, weight, x = model.state, model.weight, torch.ones(2)
    error = _refusal(lambda *_: directly(model).call(x), [state, weight, x])
    assert isinstance(error, UnsupportedInputMutation)
    assert "in forward" in str(error)
    assert model.state is state
    assert model.weight is weight
    assert list(model.state_dict()) == ["weight", "state"]


# --- memory that is written twice -----------------------------------------------------------------------------------


def _add_to_all(x: torch.Tensor) -> Results:
    x.add_(1)
    return (x,)


def _copy_to_all(x: torch.Tensor) -> Results:
    x.copy_(torch.arange(4.0))
    return (x,)


def _double_an_expanded_view(x: torch.Tensor) -> Results:
    y = x.view(-1)[:1].expand(4)
    y.mul_(2)
    return (y,)


def _add_shifted(x: torch.Tensor) -> Results:
    x = x.view(-1)
    x[1:].add_(x[:-1])
    return (x,)


def _copy_shifted(x: torch.Tensor) -> Results:
    x = x.view(-1)
    x[1:].copy_(x[:-1])
    return (x,)


_REFUSED_BY_EAGER: list[Any] = [
    (_add_to_all, _expanded, "single memory location"),
    (_copy_to_all, _expanded, "single memory location"),
    (_double_an_expanded_view, _floats, "single memory location"),
    (_add_shifted, _floats, "single memory location"),
    (_copy_shifted, _floats, "single memory location"),
]


@pytest.mark.parametrize(("function", "inputs", "words"), _REFUSED_BY_EAGER, ids=lambda v: getattr(v, "__name__", ""))
def test_what_eager_refuses_is_refused_with_its_words(
    door: Door, function: Callable[..., Results], inputs: Callable[[int], Inputs], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        function(*inputs(0)[0])
    error = _refusal(door(function).call, inputs(0)[0])
    assert words in str(error)
    if isinstance(error, DovetailError):  # otherwise Dynamo was first
        assert isinstance(error, CaptureFailed)
        assert __file__ in str(error)


def test_an_order_that_nobody_promises() -> None:
    def f(x: torch.Tensor) -> Results:
        torch._foreach_add_([x[0:2], x[1:3]], 1.0)
        return (x,)

    error = _refusal(directly(f).call, [torch.zeros(4)])
    assert isinstance(error, OrderDependentWrite)
    assert "in f" in str(error)


@pytest.mark.parametrize(
    "write",
    [
        lambda v: v.mul_(2),
        lambda v: v.add_(v),
        lambda v: v.sqrt_(),
        lambda v: v.cumsum_(1),
        lambda v: v.copy_(torch.arange(20.0).view(5, 4)),
    ],
)
def test_windows_that_are_written_element_by_element(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Eager writes an element of two windows twice, the second time over its first result."""

    def f(x: torch.Tensor) -> Results:
        write((x + 1).unfold(0, 4, 2))
        return (x * 2,)

    error = _refusal(directly(f).call, [torch.zeros(12)])
    assert isinstance(error, OrderDependentWrite)
    assert "overlaps itself" in str(error)


@pytest.mark.parametrize(
    "write", [lambda v: v.clamp_(-1, 1), lambda v: v.copy_(torch.tensor(3.0)), lambda v: v.relu_()]
)
def test_windows_that_can_be_written_in_any_order(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> Results:
        y = x * 2
        write(y.unfold(0, 4, 2))
        return (y * 2,)

    assert_as_eager(
        f, directly(f).call, lambda seed: ([torch.randn(12, generator=torch.Generator().manual_seed(seed))], [])
    )


@pytest.mark.parametrize("fill", [lambda x: x.fill_(3), lambda x: x.zero_(), lambda x: x[0].add_(1)])
def test_expanded_memory_that_eager_does_write(door: Door, fill: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> Results:
        fill(x)
        return (x * 2,)

    assert_as_eager(f, door(f).call, _expanded)


# --- dtypes ---------------------------------------------------------------------------------------------------------


def _add_floats(x: torch.Tensor) -> Results:
    x.add_(torch.full((4,), 1.5))
    return (x,)


def _scale_by_floats(x: torch.Tensor) -> Results:
    x.mul_(torch.full((4,), 1.5))
    return (x,)


def _scale_by_a_float(x: torch.Tensor) -> Results:
    x.mul_(1.5)
    return (x,)


@pytest.mark.parametrize("function", [_add_floats, _scale_by_floats, _scale_by_a_float])
def test_a_write_that_would_change_the_dtype(door: Door, function: Callable[..., Results]) -> None:
    with pytest.raises(RuntimeError, match="can't be cast"):
        function(*_integers(0)[0])
    error = _refusal(door(function).call, _integers(0)[0])
    assert "in-place" in str(error) or "can't be cast" in str(error)


def test_a_write_after_which_another_is_refused(door: Door) -> None:
    def f(x: torch.Tensor) -> Results:
        x.add_(1)
        x.add_(torch.full((4,), 1.5))
        return (x,)

    tensors, as_eager = _integers(0)[0], _integers(0)[0]
    before = [_facts(tensor)[1:] for tensor in tensors]
    with pytest.raises(RuntimeError, match="can't be cast"):
        f(*as_eager)
    with pytest.raises(Exception):  # noqa: B017, PT011 - Dynamo has its own
        door(f).call(*tensors)
    now, wanted = ([_facts(tensor)[1:] for tensor in each] for each in (tensors, as_eager))
    assert now in (before, wanted), "an address apart"


def test_a_storage_that_is_given_back() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.untyped_storage().resize_(0)
        return x.new_ones(3)

    x = torch.ones(6)
    try:
        directly(f).call(x)
    except DovetailError:
        return
    assert x.untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.baddbmm_(y, torch.ones(2, 4, 4)),
        lambda y: y.baddbmm_(torch.ones(2, 4, 4), y),
        lambda y: y[0].addbmm_(torch.ones(1, 4, 4), y[:1]),
        lambda y: y.masked_scatter_(y > 0, y),
    ],
)
def test_products_that_read_what_they_write(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Eager reads elements that it has written; where it does not, programs give what it gives."""

    def f(x: torch.Tensor) -> Results:
        return (write(x * 2).clone(),)

    error = _refusal(directly(f).call, [torch.randn(2, 4, 4)])
    assert isinstance(error, OrderDependentWrite)
    assert "another of its operands" in str(error)


@pytest.mark.parametrize("write", [lambda y: y.addmm_(y, y), lambda y: torch.mm(y, y, out=y), lambda y: y.add_(y)])
def test_operators_that_read_all_before_they_write(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> Results:
        return (write(x * 2),)

    x = torch.randn(4, 4)
    assert torch.equal(directly(f).call(x)[0], f(x)[0])
