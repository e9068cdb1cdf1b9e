"""Statements of random programs: each template writes one line of Python over the tensors that exist.

A template looks at the live tensors, so most of what it writes is valid; the program generator runs each line at once
and drops the ones that eager refuses. The last entry of each table row is how often the template is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from dovetail.testing.real_memory import address_span
from dovetail.torch_compat.dispatch import storage_key
from tests.harness.scene import Scene, is_number, is_real_float

Template: TypeAlias = "Callable[[Scene], str | None]"


def _has_dims(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0


def _fits(shape: Sequence[int], into: Sequence[int]) -> bool:
    """Whether `shape` broadcasts to exactly `into`."""
    if len(shape) > len(into):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(into), strict=False))


# --- new values -----------------------------------------------------------------------------------------------------

_UNARY = (
    "abs",
    "neg",
    "relu",
    "square",
    "sign",
    "floor",
    "exp",
    "sin",
    "tanh",
    "sigmoid",
    "clone",
    "contiguous",
    "reciprocal",
)


def pointwise_of_one(scene: Scene) -> str | None:
    """`v = x.tanh()`."""
    x = scene.pick(is_real_float)
    return x and f"{scene.fresh()} = {x}.{scene.choose.choice(_UNARY)}()"


def pointwise_with_number(scene: Scene) -> str | None:
    """`v = x * 2.0`."""
    x = scene.pick(is_number)
    number = scene.choose.choice(
        ("2", "3", "-1") if x and not is_real_float(scene.tensor(x)) else ("2.0", "0.5", "-1.5", "1")
    )
    form = scene.choose.choice(("{x} * {n}", "{x} + {n}", "{n} - {x}", "{x} / {n}", "torch.add({x}, {x}, alpha={n})"))
    return x and f"{scene.fresh()} = {form.format(x=x, n=number)}"


def pointwise_of_two(scene: Scene) -> str | None:
    """`v = x * y`, shapes broadcast."""
    x = scene.pick(is_number)
    if x is None:
        return None
    shape = scene.tensor(x).shape
    y = scene.pick(lambda t: is_number(t) and (_fits(t.shape, shape) or _fits(shape, t.shape)))
    real = not scene.tensor(x).dtype.is_complex and y is not None and not scene.tensor(y).dtype.is_complex
    forms = ["{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}"]
    if real:
        forms += [
            "torch.maximum({x}, {y})",
            "torch.where({x} > {y}, {x}, {y})",
            "{x} < {y}",
            "torch.addcmul({x}, {x}, {y})",
        ]
    return y and f"{scene.fresh()} = {scene.choose.choice(forms).format(x=x, y=y)}"


def conversion(scene: Scene) -> str | None:
    """`v = x.to(torch.float64)`."""
    x = scene.pick(lambda t: not t.dtype.is_complex)
    kind = scene.choose.choice(("torch.float32", "torch.float64", "torch.bool"))
    return x and f"{scene.fresh()} = {x}.to({kind})"


def reduction(scene: Scene) -> str | None:
    """`v = x.sum(0)`."""
    x = scene.pick(lambda t: is_real_float(t) and t.dim() > 0 and t.numel() > 0)
    if x is None:
        return None
    dim = scene.choose.randrange(scene.tensor(x).dim())
    form = scene.choose.choice(
        (
            "{x}.sum({d})",
            "{x}.mean({d}, keepdim=True)",
            "{x}.amax({d})",
            "{x}.sum()",
            "{x}.cumsum({d})",
            "{x}.softmax({d})",
            "{x}.max({d})[0]",
            "{x}.sort({d})[1]",
            "{x}.argmax({d})",
        )
    )
    return f"{scene.fresh()} = {form.format(x=x, d=dim)}"


def product(scene: Scene) -> str | None:
    """`v = x @ y`."""
    x = scene.pick(lambda t: is_real_float(t) and t.dim() == 2)
    if x is None:
        return None
    rows, columns = scene.tensor(x).shape
    dtype = scene.tensor(x).dtype
    y = scene.pick(lambda t: t.dtype is dtype and t.dim() in (1, 2) and t.shape[0] == columns)
    bias = scene.pick(lambda t: t.dtype is dtype and t.dim() == 1 and t.shape[0] == rows)
    if bias is not None and scene.choose.random() < 0.4:
        return f"{scene.fresh()} = torch.nn.functional.linear({x}, {x}, {bias})"
    return y and f"{scene.fresh()} = {x} @ {y}"


def joined(scene: Scene) -> str | None:
    """`v = torch.cat([x, y], 0)`, `v = torch.stack([x, y])`."""
    x = scene.pick(_has_dims)
    if x is None:
        return None
    shape, dtype = scene.tensor(x).shape, scene.tensor(x).dtype
    y = scene.pick(lambda t: t.shape == shape and t.dtype is dtype)
    dim = scene.choose.randrange(len(shape))
    return f"{scene.fresh()} = torch.{scene.choose.choice(('cat', 'stack'))}([{x}, {y}], {dim})"


def created(scene: Scene) -> str | None:
    """`v = torch.zeros_like(x)`."""
    x = scene.pick(is_number)
    form = scene.choose.choice(
        ("torch.zeros_like({x})", "torch.ones(3, 2)", "torch.arange(4)", "torch.full_like({x}, 2)")
    )
    return x and f"{scene.fresh()} = {form.format(x=x)}"


def drawn(scene: Scene) -> str | None:
    """`v = torch.rand_like(x)`, sometimes never read."""
    x = scene.pick(is_real_float)
    form = scene.choose.choice(
        (
            "torch.rand_like({x})",
            "torch.bernoulli(torch.full_like({x}, 0.5))",
            "torch.nn.functional.dropout({x}, 0.5)",
            "torch.randn(2, 3)",
            "torch.randint(0, 2, (3,))",
            "torch.zeros_like({x}).normal_()",
            "torch.randperm(4)",
        )
    )
    return x and f"{scene.fresh()} = {form.format(x=x)}"


# --- views ------------------------------------------------------------------------------------------------------------


def view_of_any(scene: Scene) -> str | None:
    """`v = x.transpose(0, 1)`, `v = x[1:]`, ..."""
    x = scene.pick(_has_dims)
    if x is None:
        return None
    rank = scene.tensor(x).dim()
    dim, other = scene.choose.randrange(rank), scene.choose.randrange(rank)
    order = list(range(rank))
    scene.choose.shuffle(order)
    form = scene.choose.choice(
        (
            "{x}.view(-1)",
            "{x}.transpose({d}, {e})",
            "{x}.t()",
            "{x}.permute({o})",
            "{x}.narrow({d}, 0, 1)",
            "{x}.select({d}, 0)",
            "{x}[1:]",
            "{x}[..., ::2]",
            "{x}.diagonal()",
            "{x}.unsqueeze({d})",
            "{x}.squeeze()",
            "{x}.unfold({d}, 2, 1)",
            "{x}[0]",
            "{x}.expand(2, *{x}.shape)",
            "{x}.reshape(-1)",
            "{x}.detach()",
            "{x}[-1]",
            "{x}.view_as({x})",
            "{x}.flatten()",
            "{x}.movedim({d}, {e})",
            "{x}.data",
        )
    )
    return f"{scene.fresh()} = {form.format(x=x, d=dim, e=other, o=', '.join(map(str, order)))}"


def view_by_strides(scene: Scene) -> str | None:
    """`v = x.as_strided((2,), (1,), 1)`; where gradients are about, of tensors at the start of their storage."""
    trains = bool(scene.tensors(lambda t: t.requires_grad))
    x = scene.pick(lambda t: t.numel() >= 4 and t.is_contiguous() and not (trains and t.storage_offset()))
    if x is None:
        return None
    start = scene.tensor(x).storage_offset()
    form = scene.choose.choice(("(2, 2), (2, 1)", "(2,), (1,), {s}", "(3,), (1,), {t}", "(2, 2), (1, 2), {s}"))
    return f"{scene.fresh()} = {x}.as_strided({form.format(s=start, t=start + 1)})"


def several_views(scene: Scene) -> str | None:
    """`v, w = x.split(...)`."""
    x = scene.pick(lambda t: t.dim() > 0 and 1 < t.shape[0] <= 4)
    if x is None:
        return None
    size = scene.tensor(x).shape[0]
    names = ", ".join(scene.fresh() for _ in range(size))
    form = scene.choose.choice(("{x}.unbind(0)", "{x}.split(1)", "{x}.chunk({n})", "{x}.tensor_split({n})"))
    return f"{names} = {form.format(x=x, n=size)}"


def complex_view(scene: Scene) -> str | None:
    """`v = torch.view_as_real(x)`, `v = x.imag`, ..."""
    if scene.choose.random() < 0.5:
        x = scene.pick(lambda t: is_real_float(t) and t.dim() > 0 and t.shape[-1] == 2)
        return x and f"{scene.fresh()} = torch.view_as_complex({x})"
    x = scene.pick(lambda t: t.dtype.is_complex)
    form = scene.choose.choice(("torch.view_as_real({x})", "{x}.real", "{x}.imag"))
    return x and f"{scene.fresh()} = {form.format(x=x)}"


# --- writes -----------------------------------------------------------------------------------------------------------


def written_alone(scene: Scene) -> str | None:
    """`x.relu_()`, `x.fill_(2)`, ..."""
    x = scene.pick_target(is_number)
    if x is None:
        return None
    forms = ["{x}.zero_()", "{x}.fill_(2)", "{x}.mul_(3)", "{x}.add_(1)", "{x}.neg_()"]
    if is_real_float(scene.tensor(x)):
        forms += ["{x}.clamp_(-0.5, 0.5)", "{x}.relu_()", "{x}.abs_()", "{x}.mul_(0.5)"]
        # Rounding depends on the strides of what is written, and a functional program writes elsewhere.
        forms += ["{x}.sigmoid_()", "{x}.exp_()"] if scene.tensor(x).is_contiguous() else []
    return scene.choose.choice(forms).format(x=x)


def is_apart(target: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a write to `target` that reads `other` has one meaning: they are one tensor, or share no byte."""
    if other is target or storage_key(other) != storage_key(target):
        return True
    (start, end), (other_start, other_end) = address_span(target), address_span(other)
    return end <= other_start or other_end <= start


def _may_flow(target: torch.Tensor, other: torch.Tensor) -> bool:
    """Eager gives a bool tensor a gradient function when one is copied in; no program needs that."""
    return target.dtype.is_floating_point or target.dtype.is_complex or not other.requires_grad


def written_from_another(scene: Scene) -> str | None:
    """`x.add_(y)`, `x.copy_(y)`, `x[0] = y`, ..."""
    x = scene.pick_target()
    if x is None:
        return None
    target = scene.tensor(x)
    shape = target.shape
    y = scene.pick(lambda t: _fits(t.shape, shape) and is_apart(target, t) and _may_flow(target, t))
    forms = ["{x}.copy_({y})"]
    if is_number(target):
        forms += ["{x}.add_({y})", "{x}.sub_({y}, alpha=2)", "{x}.copy_({y})"]
    if is_number(target) and not target.dtype.is_complex:
        # The rounding of a complex product depends on whether the result lies where an operand lies.
        forms += ["{x}.mul_({y})", "{x}.addcmul_({y}, {y})"]
    if len(shape):
        part = scene.pick(
            lambda t: t is not target and _fits(t.shape, shape[1:]) and is_apart(target, t) and _may_flow(target, t)
        )
        forms += [f"{{x}}[0] = {part}"] if part else []
        forms += [f"{{x}}[-1].mul_({part})"] if part and is_number(target) and not target.dtype.is_complex else []
    return y and scene.choose.choice(forms).format(x=x, y=y)


def written_by_mask(scene: Scene) -> str | None:
    """`x.masked_fill_(m, 0)`."""
    x = scene.pick_target(lambda t: is_number(t) and t.dim() > 0)
    if x is None:
        return None
    shape = scene.tensor(x).shape
    mask = scene.pick(lambda t: t.dtype is torch.bool and t.dim() > 0 and t.shape == shape) or f"({x} == {x}.clone())"
    form = scene.choose.choice(
        ("{x}.masked_fill_({m}, 2)", "{x}.index_put_(({m},), {x}.new_tensor(1))", "{x}[{m}] = 3")
    )
    return form.format(x=x, m=mask)


def written_by_index(scene: Scene) -> str | None:
    """`x.index_add_(0, i, y)`, `x.scatter_(0, i, 1.0)`, ..."""
    x = scene.pick_target(lambda t: is_number(t) and t.dim() > 0 and t.shape[0] > 0)
    if x is None:
        return None
    dtype, shape = scene.tensor(x).dtype, scene.tensor(x).shape
    target = scene.tensor(x)
    y = scene.pick(lambda t: t.dtype is dtype and t.shape == shape and t is not target and is_apart(target, t))
    index = f"torch.arange({shape[0]})"
    forms = [
        "{x}.index_put_((torch.tensor([0]),), {x}[0].clone(), accumulate=True)",
        "{x}.index_fill_(0, torch.tensor([0]), 2)",
    ]
    if y is not None:
        forms += ["{x}.index_add_(0, {i}, {y})", "{x}.index_copy_(0, {i}, {y})"]
        forms += ["{x}.scatter_(0, torch.zeros_like({x}, dtype=torch.int64), {y})"]
        forms += ["{x}.scatter_add_(0, torch.zeros_like({x}, dtype=torch.int64), {y})"]
    return scene.choose.choice(forms).format(x=x, y=y, i=index)


def written_as_out(scene: Scene) -> str | None:
    """`torch.add(x, y, out=z)`."""
    z = scene.pick_target(lambda t: is_real_float(t) and not t.requires_grad)
    if z is None:
        return None
    target = scene.tensor(z)

    def readable(tensor: torch.Tensor) -> bool:
        return tensor.dtype is target.dtype and not tensor.requires_grad and is_apart(target, tensor)

    x = scene.pick(lambda t: t.shape == target.shape and readable(t))
    y = scene.pick(lambda t: _fits(t.shape, target.shape) and readable(t))
    form = scene.choose.choice(
        ("torch.add({x}, {y}, out={z})", "torch.mul({x}, {y}, out={z})", "torch.neg({x}, out={z})")
    )
    return x and y and form.format(x=x, y=y, z=z)


def written_at_random(scene: Scene) -> str | None:
    """`x.normal_()`."""
    x = scene.pick_target(is_real_float)
    form = scene.choose.choice(("{x}.normal_()", "{x}.uniform_()", "{x}.bernoulli_(0.5)"))
    return x and form.format(x=x)


def written_behind_autograd(scene: Scene) -> str | None:
    """`x.data.mul_(2)`, `x.detach().add_(1)`."""
    x = scene.pick_target(is_number)
    form = scene.choose.choice(("{x}.data.mul_(2)", "{x}.detach().add_(1)", "{x}.data.zero_()"))
    return x and form.format(x=x)


def reshaped_in_place(scene: Scene) -> str | None:
    """`x.t_()` of a tensor that the program made, before it makes views of it."""
    x = scene.pick(lambda t: (t.dim() == 2 or 1 in t.shape) and _is_alone(t, scene))
    form = scene.choose.choice(("{x}.t_()", "{x}.transpose_(0, 1)", "{x}.unsqueeze_(0)", "{x}.squeeze_()"))
    return x and form.format(x=x)


def _is_alone(tensor: torch.Tensor, scene: Scene) -> bool:
    return len(scene.tensors(lambda t: storage_key(t) == storage_key(tensor))) == 1 and not any(
        tensor is scene.tensor(name) for name in scene.inputs
    )


TEMPLATES: tuple[tuple[Template, int], ...] = (
    (pointwise_of_one, 8),
    (pointwise_with_number, 8),
    (pointwise_of_two, 10),
    (conversion, 2),
    (reduction, 4),
    (product, 4),
    (joined, 3),
    (created, 2),
    (drawn, 3),
    (view_of_any, 20),
    (view_by_strides, 3),
    (several_views, 3),
    (complex_view, 3),
    (written_alone, 9),
    (written_from_another, 12),
    (written_by_mask, 3),
    (written_by_index, 4),
    (written_as_out, 2),
    (written_at_random, 2),
    (written_behind_autograd, 3),
    (reshaped_in_place, 2),
)
