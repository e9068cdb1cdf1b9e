"""Changes of an input other than plain writes: of its shape, of `requires_grad`, behind autograd's back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import CaptureFailed, DataDependentControlFlow, DovetailWarning, UnsupportedInputMutation
from tests.doors import DOORS, Door, assert_as_eager, directly
from tests.rotation import rotated

pytestmark = pytest.mark.usefixtures("alone")

Inputs = tuple[list[Any], list[torch.Tensor]]
Results = tuple[torch.Tensor, ...]


@pytest.fixture(params=DOORS, ids=lambda door: door.__name__)
def door(request: pytest.FixtureRequest) -> Door:
    chosen: Door = request.param
    return chosen


def _input(kind: str, shape: tuple[int, ...] = (2, 3)) -> Callable[[int], Inputs]:
    """Makes one input: "plain", a "view", a "leaf" that wants a gradient, or "computed" from one."""

    def inputs(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        if kind == "view":
            return [torch.randn(3, *shape, generator=generator)[1]], []
        x = torch.randn(shape, generator=generator)
        if kind == "plain":
            return [x], []
        x.requires_grad_()
        return [x * 1 if kind == "computed" else x], [x]

    return inputs


# --- shape and strides ----------------------------------------------------------------------------------------------

_CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "as_strided_": lambda x: x.as_strided_((3, 2), (1, 3)),
}


def _programs(change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Callable[[torch.Tensor], Results]]:
    def alone(x: torch.Tensor) -> Results:
        change(x)
        return (x * 2,)

    def returned(x: torch.Tensor) -> Results:
        return (change(x), x + 1)

    def after_a_write(x: torch.Tensor) -> Results:
        x.mul_(2)
        change(x)
        return (x + 1,)

    def before_a_write(x: torch.Tensor) -> Results:
        change(x)
        x.mul_(2)
        return (x + 1,)

    def between_writes(x: torch.Tensor) -> Results:
        x.add_(1)
        change(x)
        x.mul_(2)
        return (x + 1, x)

    def with_a_view_from_before(x: torch.Tensor) -> Results:
        view = x[0]
        change(x)
        view.add_(1)
        return (x + 1, view, x)

    def with_a_view_of_all_from_before(x: torch.Tensor) -> Results:
        view = x.view(-1)
        change(x)
        x.add_(1)
        return (view, x)

    programs = (
        *(alone, returned, after_a_write, before_a_write, between_writes),
        *(with_a_view_from_before, with_a_view_of_all_from_before),
    )
    return {program.__name__: program for program in programs}


_NAMES = tuple(_programs(_CHANGES["t_"]))


def _shape(name: str) -> tuple[int, ...]:
    return (1, 3, 1) if name == "squeeze_" else (2, 3)


@pytest.mark.parametrize("program", rotated(_NAMES, 2))
@pytest.mark.parametrize("name", _CHANGES)
def test_changed_shapes(name: str, program: str) -> None:
    function = _programs(_CHANGES[name])[program]
    for kind in ("plain", "view"):
        assert_as_eager(function, directly(function).call, _input(kind, _shape(name)))


@pytest.mark.parametrize("program", rotated(_NAMES, 2))
@pytest.mark.parametrize("name", _CHANGES)
def test_changed_shapes_of_an_input_with_a_gradient(name: str, program: str) -> None:
    function = _programs(_CHANGES[name])[program]
    refused = {"with_a_view_from_before": "before they were changed in place"}  # by fakes, which make such a view again
    if name not in ("squeeze_", "unsqueeze_"):
        refused["with_a_view_of_all_from_before"] = "Cannot view"
    if program in refused:
        (x,), _ = _input("computed", _shape(name))(0)
        compiled = dovetail.compile(function)
        with pytest.warns(DovetailWarning, match=refused[program]):
            compiled(x)
        with pytest.raises(CaptureFailed, match=refused[program]):
            compiled(_input("computed", _shape(name))(0)[0][0])
        return
    assert_as_eager(function, directly(function).call, _input("computed", _shape(name)))


def _parts_after(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.t_()
    return x.split(1)[0], x.unbind()[1]


def test_parts_of_a_reshaped_input_may_be_written_as_in_eager_mode() -> None:
    seen = []
    for call in (_parts_after, directly(_parts_after).call):
        x = _input("computed", (3, 3))(0)[0][0]
        made = call(x)
        names = [result.grad_fn.name() for result in made]
        with pytest.raises(RuntimeError, match="Output 0 of Split is a view and is being modified inplace"):
            made[0].mul_(2)
        seen.append((names, [result._base is x for result in made]))
    assert seen[0] == seen[1]


# --- requires_grad --------------------------------------------------------------------------------------------------


def _switched_on(x: torch.Tensor) -> Results:
    x.requires_grad_()
    return (x * 2,)


def _written_and_switched_on(x: torch.Tensor) -> Results:
    x.mul_(2)
    x.requires_grad_()
    return (x * 3,)


def _switched_on_and_off(x: torch.Tensor) -> Results:
    x.requires_grad_()
    y = x * 2
    x.requires_grad_(False)
    return (y, x + 1)


def _detached(x: torch.Tensor) -> Results:
    y = x * 2
    x.detach_()
    return (y, x + 1)


@pytest.mark.parametrize("kind", ["plain", "view", "leaf", "computed"])
def test_requires_grad_is_switched_on(kind: str) -> None:
    assert_as_eager(_switched_on, directly(_switched_on).call, _input(kind))


@pytest.mark.parametrize("kind", ["plain", "computed"])
def test_requires_grad_is_switched_on_after_a_write(kind: str) -> None:
    assert_as_eager(_written_and_switched_on, directly(_written_and_switched_on).call, _input(kind))


def test_requires_grad_is_not_switched_on_and_off_again() -> None:
    (x,), _ = _input("plain")(0)
    with pytest.raises(UnsupportedInputMutation, match="on and off again"):
        directly(_switched_on_and_off).call(x)
    assert not x.requires_grad


def _squeezed_then_switched_on(x: torch.Tensor) -> torch.Tensor:
    return x.squeeze_().requires_grad_() * 2


def _transposed_unseen(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.t_()
    return x * 2


@pytest.mark.parametrize(
    ("function", "x", "what"),
    [
        (_squeezed_then_switched_on, torch.ones(1, 3), "the shape and requires_grad"),
        (_transposed_unseen, torch.ones(3, 3, requires_grad=True), "unseen by autograd"),
        (_transposed_unseen, torch.ones(3, 3, requires_grad=True) * 1, "unseen by autograd"),
    ],
)
def test_shapes_that_gradients_would_not_be_of(function: Callable[..., Any], x: torch.Tensor, what: str) -> None:
    shape, strides, version = x.shape, x.stride(), x._version
    with pytest.raises(UnsupportedInputMutation, match=what):
        directly(function).call(x)
    assert (x.shape, x.stride(), x._version) == (shape, strides, version)


def test_strides_change_before_requires_grad_does() -> None:
    results = []
    for call in (_transposed_then_switched_on, directly(_transposed_then_switched_on).call):
        x = torch.arange(9.0).view(3, 3)
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        results.append((x.stride(), gradient))
    assert results[0][0] == results[1][0] == (1, 3)
    assert torch.equal(results[0][1], results[1][1])


def _transposed_then_switched_on(x: torch.Tensor) -> torch.Tensor:
    return x.t_().requires_grad_() * torch.arange(9.0).view(3, 3)


def test_requires_grad_of_a_leaf_is_switched_off() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.requires_grad_(False)
        return y + x * 3

    compiled = directly(f)
    for seed in range(2):
        (x,), _ = _input("leaf")(seed)
        twin = x.detach().clone().requires_grad_()
        ours, theirs = compiled.call(x), f(twin)
        assert torch.equal(ours, theirs)
        assert not x.requires_grad
        assert ours.requires_grad
        assert theirs.requires_grad
        ours.sum().backward()
        theirs.sum().backward()
        assert x.grad is None
        assert twin.grad is None


def test_detaching_a_leaf() -> None:
    compiled = directly(_detached)
    (x,), _ = _input("leaf")(0)
    twin = x.detach().clone().requires_grad_()
    for ours, theirs in zip(compiled.call(x), _detached(twin), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad
    assert not x.requires_grad


def test_detaching_a_computed_input_is_refused() -> None:
    (x,), _ = _input("computed")(0)
    graph = x.grad_fn
    with pytest.raises(UnsupportedInputMutation, match="detach_"):
        directly(_detached).call(x)
    assert x.grad_fn is graph


def _with_an_older_view(x: torch.Tensor) -> torch.Tensor:
    part = x[0]
    x.requires_grad_()
    return part * 2


def _beside_a_write(x: torch.Tensor) -> torch.Tensor:
    part = x[0]
    x.mul_(2)
    x.requires_grad_()
    return part * 2


def _asking(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x._is_view() else x * 3


@pytest.mark.parametrize("function", [_with_an_older_view, _beside_a_write, _asking])
def test_a_view_is_told_from_a_tensor_of_its_own_where_it_matters(function: Callable[..., torch.Tensor]) -> None:
    compiled = dovetail.compile(function, verify=2)
    for kind in ("plain", "view", "plain", "view"):
        results = []
        for call in (function, compiled):
            (x,), _ = _input(kind)(0)
            made = call(x)
            results.append((made.detach(), made.requires_grad, x.requires_grad, x._version))
        assert torch.equal(results[0][0], results[1][0])
        assert results[0][1:] == results[1][1:]
    assert len(compiled.graphs) == 2
    assert compiled.stats.eager_calls == 0


@pytest.mark.parametrize("sized", [False, True])
def test_views_of_many_sizes_are_told(sized: bool) -> None:
    compiled = dovetail.compile(_with_an_older_view, dynamic=sized)
    for rows in (3, 4, 5):
        assert compiled(torch.ones(rows, 2)).requires_grad
        assert not compiled(torch.ones(2, rows).t()).requires_grad


def test_it_does_not_matter_whether_an_input_is_a_view_without_an_older_one() -> None:
    compiled = dovetail.compile(lambda x: x.requires_grad_() * 2)
    for kind in ("plain", "view"):
        assert compiled(_input(kind)(0)[0][0]).requires_grad
    assert len(compiled.graphs) == 1


def test_an_older_view_of_a_view_is_no_result() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        part = x[0]
        x.requires_grad_()
        return part

    compiled, x = dovetail.compile(f), _input("view")(0)[0][0]
    assert compiled(_input("plain")(0)[0][0]).requires_grad
    with pytest.raises(UnsupportedInputMutation, match="another view of its base"):
        compiled(x)
    assert not x.requires_grad


def test_a_view_is_not_detached_in_place() -> None:
    compiled = dovetail.compile(lambda x: x.detach_() * 2)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        compiled(torch.ones(2, 3)[0])


@pytest.mark.parametrize(
    ("function", "kind"), [(lambda x: x[0]._base * 2, "view"), (lambda x: x * x._is_view(), "view_of_computed")]
)
def test_what_an_input_is_a_view_of_is_not_known(function: Callable[..., torch.Tensor], kind: str) -> None:
    x = _input("view")(0)[0][0] if kind == "view" else _input("computed")(0)[0][0][1:]
    with pytest.raises(DataDependentControlFlow, match="a view"):
        dovetail.compile(function)(x)


# --- writes that autograd does not follow ---------------------------------------------------------------------------


def _through_data(x: torch.Tensor) -> Results:
    y = x * x
    x.data.add_(1)
    return (y, x * 3)


def _without_gradients(x: torch.Tensor) -> Results:
    with torch.no_grad():
        x.mul_(2)
    return (x.sin(),)


def _in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        x.add_(x * 2)
    return (x.sin(),)


def _through_a_detached_view(x: torch.Tensor) -> Results:
    x.detach()[0].mul_(2)
    return (x.sin(),)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", ["plain", "view", "leaf", "computed"])
@pytest.mark.parametrize("function", [_through_data, _without_gradients, _in_inference_mode, _through_a_detached_view])
def test_writes_behind_autograds_back(door: Door, function: Callable[..., Results], kind: str) -> None:
    assert_as_eager(function, door(function).call, _input(kind))
