"""Views that are read after their base was written have eager's gradients, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail

_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda y: y.t(),
    "rows": lambda y: y.t()[2:9],
    "expanded": lambda y: y.expand(3, 7, 13),
    "expanded_row": lambda y: y[0:1].expand(6, 13),
    "windows": lambda y: y.unfold(1, 5, 2),
    "column": lambda y: y[:, 3],
    "diagonal": lambda y: y.diagonal(),
    "permuted": lambda y: y.unflatten(1, (13, 1)).permute(2, 1, 0),
    "real_part": lambda y: torch.view_as_complex(y[:, :12].clone().unflatten(1, (6, 2))).real.t(),
}


def _under_no_grad(y: Tensor) -> None:
    with torch.no_grad():
        y.mul_(2)


def _twice(y: Tensor) -> None:
    y.mul_(2)
    y[3:].tanh_()


_WRITES: dict[str, Callable[[Tensor], object]] = {
    "in_place": lambda y: y.mul_(2),
    "detached": lambda y: y.detach().mul_(2),
    "under_no_grad": _under_no_grad,
    "by_another_view": lambda y: y.t()[3].mul_(1.5),
    "twice": _twice,
}
Gradients = tuple[Tensor, ...]


def _sides(view: str, write: str) -> tuple[Callable[[Tensor, Tensor], Tensor], list[tuple[Tensor, Tensor]]]:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w - w.sum()
        seen = _VIEWS[view](y)
        _WRITES[write](y)
        return (seen * seen.flatten()[0]).square().mean()

    torch.manual_seed(0)
    return f, [(torch.randn(7, 13, requires_grad=True), torch.randn(7, 13, requires_grad=True)) for _ in range(6)]


@pytest.mark.parametrize("write", _WRITES)
@pytest.mark.parametrize("view", _VIEWS)
def test_gradients_as_eager(view: str, write: str) -> None:
    f, batches = _sides(view, write)
    compiled = dovetail.compile(f)
    for batch in batches:
        wanted = torch.autograd.grad(f(*batch), batch)
        found = torch.autograd.grad(compiled(*batch), batch)
        assert all(map(torch.equal, wanted, found))


@pytest.mark.parametrize("write", _WRITES)
@pytest.mark.parametrize("view", ["transposed", "expanded_row", "windows"])
def test_steps_have_gradients_as_eager(view: str, write: str) -> None:
    f, batches = _sides(view, write)

    def step(x: Tensor, w: Tensor) -> None:
        f(x, w).backward()

    compiled = dovetail.compile_step(step, keep_grads=True)
    for x, w in batches:
        wanted = torch.autograd.grad(f(x, w), (x, w))
        compiled(x, w)
        assert torch.equal(wanted[0], x.grad)
        assert torch.equal(wanted[1], w.grad)


def test_backward_that_starts_at_the_view() -> None:
    def step(x: Tensor, w: Tensor, arriving: Tensor) -> None:
        y = x * w - w.sum()
        view = y.t()
        y.mul_(2)
        view.backward(arriving)

    compiled = dovetail.compile_step(step, keep_grads=True)
    for _ in range(4):
        x, w, arriving = (torch.randn(shape, requires_grad=shape[0] == 7) for shape in ((7, 13), (7, 13), (13, 7)))
        step(x, w, arriving)
        wanted = x.grad, w.grad
        x.grad = w.grad = None
        compiled(x, w, arriving)
        assert torch.equal(wanted[0], x.grad)
        assert torch.equal(wanted[1], w.grad)


def test_second_derivatives_of_such_views() -> None:
    def penalty(x: Tensor, w: Tensor) -> Tensor:
        y = x * w - w.sum()
        view = y.t()
        y.mul_(2)
        (first,) = torch.autograd.grad(view.pow(3).mean(), x, create_graph=True)
        return first.square().sum() + view.sum()

    def step(x: Tensor, w: Tensor) -> None:
        penalty(x, w).backward()

    compiled = dovetail.compile_step(step, keep_grads=True)
    for _ in range(4):
        x, w = torch.randn(7, 13, requires_grad=True), torch.randn(7, 13, requires_grad=True)
        wanted = torch.autograd.grad(penalty(x, w), (x, w))
        compiled(x, w)
        assert torch.equal(wanted[0], x.grad)
        assert torch.equal(wanted[1], w.grad)


def test_hooks_of_the_view_see_and_change_its_gradient() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w - w.sum()
        view = y.t()[1:]
        y.mul_(2)
        assert view.grad_fn is not None  # eager crashes where a hook is the first to ask for the new node
        view.register_hook(lambda gradient: gradient * 3)
        return view.square().mean()

    compiled = dovetail.compile(f)
    for _ in range(4):
        x, w = torch.randn(7, 13, requires_grad=True), torch.randn(7, 13, requires_grad=True)
        assert all(map(torch.equal, *(torch.autograd.grad(side(x, w), (x, w)) for side in (f, compiled))))


def test_a_view_that_may_not_be_differentiated_any_more_is_compared() -> None:
    """Autograd refuses to make the node of one of several views anew; a comparison does not ask for it."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        part = y.split(3)[1]
        y.mul_(2)
        return y.sum() * (part > 0).sum()

    compiled = dovetail.compile(f)
    x = torch.randn(7, 13, requires_grad=True)
    assert torch.equal(f(x), compiled(x))
    assert all(map(torch.equal, torch.autograd.grad(f(x), x), torch.autograd.grad(compiled(x), x)))


# --- views whose shape or strides were changed in place --------------------------------------------------------------


def _view_and_part(y: Tensor) -> Tensor:
    y.t_()
    y[0].sigmoid_()
    return y


def _view(y: Tensor) -> Tensor:
    return y.t_().sigmoid_()


def _beside_another_shape(y: Tensor) -> Tensor:
    x = y[0]
    y.unsqueeze_(0)
    with torch.no_grad():
        x.sigmoid_()
    return y


def _view_of_a_changed_base(y: Tensor) -> Tensor:
    x = y[0]
    viewed = y._base
    assert viewed is not None
    viewed.t_()
    x.sigmoid_()
    return viewed


@pytest.mark.parametrize("write", [_view, _view_and_part, _beside_another_shape, _view_of_a_changed_base])
def test_a_write_to_a_view_that_was_reshaped_is_left_to_eager_mode_once(write: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x * 1
        return whole.sum(), write(whole[:4]).square().sum()

    x, compiled = torch.randn(4, 4, requires_grad=True), dovetail.compile(f)
    (wanted,) = torch.autograd.grad(f(x), x, [torch.tensor(2.0), torch.tensor(1.0)])
    with pytest.warns(dovetail.errors.DovetailWarning, match="before they were changed in place"):
        results = compiled(x)
    assert torch.equal(torch.autograd.grad(results, x, [torch.tensor(2.0), torch.tensor(1.0)])[0], wanted)
    with pytest.raises(dovetail.errors.CaptureFailed, match=r"in place of that change \(x.t_\(\)\)"):
        compiled(x)


def _base_itself(y: Tensor) -> Tensor:
    y.t_().exp_()
    return y * 2


def _older_view(y: Tensor) -> Tensor:
    x, z = y[:2, :2], y[1:]
    x.t_()
    z.mul_(3)
    return x * x.detach()


def _where_autograd_does_not_follow(y: Tensor) -> Tensor:
    x = y[:2, :2].t_()
    with torch.no_grad():
        x.sigmoid_()
    return x * 2


@pytest.mark.parametrize("write", [_base_itself, _older_view, _where_autograd_does_not_follow])
def test_other_writes_beside_a_reshaped_tensor_have_gradients_as_eager(write: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        return write(x * 1).square().sum()

    x, compiled = torch.randn(4, 4, requires_grad=True), dovetail.compile(f)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(compiled(x), x)[0], torch.autograd.grad(f(x), x)[0])
    assert compiled.stats.eager_calls == 0


def _returned(base: Tensor, view: Tensor) -> tuple[Tensor, ...]:
    return base, view


def _read_last(base: Tensor, view: Tensor) -> tuple[Tensor, ...]:
    return base, view * 1


@pytest.mark.parametrize("read", [_returned, _read_last])
def test_the_gradient_of_a_view_whose_base_was_reshaped_is_refused(
    read: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        base = x * 1
        view = base[0]
        base.t_()
        base.sigmoid_()
        return read(base, view)

    for shape in ((3, 3), (3, 4)):
        x, compiled = torch.randn(shape, requires_grad=True), dovetail.compile(f)
        results = compiled(x)
        assert all(map(torch.equal, results, f(x)))
        (wanted,) = torch.autograd.grad([made.square().sum() for made in f(x)], x)
        if shape == (
            3,
            3,
        ):  # the view would be made again in the same shape, and its gradient is put in the right place
            assert torch.equal(torch.autograd.grad([made.square().sum() for made in results], x)[0], wanted)
            continue
        with pytest.raises(dovetail.errors.CaptureFailed, match="had been changed in place"):
            torch.autograd.grad([made.square().sum() for made in results], x)
