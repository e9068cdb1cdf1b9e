"""Statements of programs whose arguments share bytes: mostly writes to arguments, and reads of others after them.

Templates as in `statements`. None names an offset in a storage: it differs from call to call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from tests.harness.scene import Scene, is_number
from tests.harness.statements import (
    pointwise_of_two,
    several_views,
    view_of_any,
    written_alone,
    written_behind_autograd,
    written_by_index,
    written_by_mask,
    written_from_another,
)

Template: TypeAlias = "Callable[[Scene], str | None]"

_PARTS = (
    "{x}[0]",
    "{x}[-1]",
    "{x}[1:]",
    "{x}[..., ::2]",
    "{x}.t()",
    "{x}.transpose(0, -1)",
    "{x}.view(-1)",
    "{x}.select(-1, 0)",
    "{x}.diagonal()",
    "{x}.view_as({x})",
    "{x}.detach()",
    "{x}.data",
    "{x}.unbind(0)[0]",
    "{x}.split(1)[-1]",
    "{x}.chunk(2, -1)[0]",
    "{x}.narrow(-1, 0, 1)",
)


def _argument(scene: Scene) -> str:
    """The name of an argument, sometimes of another tensor."""
    if scene.choose.random() < 0.8:
        return scene.choose.choice(scene.inputs)
    return scene.pick() or scene.inputs[0]


def _part(scene: Scene, name: str, whole: float) -> tuple[str, torch.Tensor] | None:
    """An expression for a tensor or, with probability 1 - whole, for a part of it, and its value."""
    text = name if scene.choose.random() < whole else scene.choose.choice(_PARTS).format(x=name)
    try:
        value = eval(text, {}, scene.names)
    except (RuntimeError, IndexError):
        return None
    return (text, value) if isinstance(value, torch.Tensor) else None


def _broadcasts(shape: torch.Size, into: torch.Size) -> bool:
    if len(shape) > len(into):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(into), strict=False))


def write_to_argument(scene: Scene) -> str | None:
    """`x[1:].mul_(2)`, `x.add_(y)`, `x.copy_(y * 2)`, `torch.add(y, 1, out=x)`, ..."""
    target = _part(scene, _argument(scene), whole=0.55)
    if target is None:
        return None
    text, tensor = target
    kind = scene.choose.random()
    forms: tuple[str, ...]
    if kind < 0.35:
        forms = ("{t}.mul_(2)", "{t}.add_(1)", "{t}.zero_()", "{t}.fill_(3)", "{t}.neg_()", "{t}.sub_(1)")
        return scene.choose.choice(forms).format(t=text)
    floats = tensor.dtype.is_floating_point
    shape = tensor.shape
    y = scene.pick(lambda t: _broadcasts(t.shape, shape) and (floats or not t.dtype.is_floating_point))
    if y is None:
        return None
    number = is_number(scene.tensor(y))
    if kind < 0.6 and number:
        forms = ("{t}.add_({y} * 2)", "{t}.copy_({y} + 1)", "{t}.copy_({y}.clone())", "{t}.sub_({y} - 1)")
    elif kind < 0.9:
        forms = ("{t}.add_({y})", "{t}.copy_({y})", "{t}.mul_({y})", "{t}.sub_({y})")
    else:
        forms = ("torch.add({y}, 1, out={t})", "torch.mul({y}, 2, out={t})", "torch.neg({y}, out={t})")
    return scene.choose.choice(forms).format(t=text, y=y)


def write_by_item(scene: Scene) -> str | None:
    """`x[0] = 3`, `x[x > 0] = 2`, `x[1:] = y + 1`, `x.index_put_(...)`, ..."""
    x = scene.choose.choice(scene.inputs)
    shape = scene.tensor(x).shape
    if not shape:
        return f"{x}[...] = 3"
    floats = scene.tensor(x).dtype.is_floating_point
    y = scene.pick(lambda t: _broadcasts(t.shape, shape[1:]) and (floats or not t.dtype.is_floating_point))
    forms = ["{x}[0] = 3", "{x}[..., -1] = 2", "{x}[{x} > 0] = 2", "{x}.masked_fill_({x} > 0, 2)"]
    forms += ["{x}.index_put_((torch.tensor([0]),), {x}.new_tensor(1))", "{x}.index_fill_(0, torch.tensor([-1]), 2)"]
    forms += ["{x}.fill_diagonal_(1)"] if len(shape) == 2 else []
    forms += ["{x}[0] = {y}", "{x}[-1] = {y} + 1", "{x}[:1] = {y}"] if y else []
    return scene.choose.choice(forms).format(x=x, y=y)


def read_argument(scene: Scene) -> str | None:
    """`v = x * 2`, `v = x.clone()`, `v = x[0].sum()`, ..."""
    part = _part(scene, _argument(scene), whole=0.7)
    if part is None or not is_number(part[1]):
        return None
    forms = ["{p} * 2", "{p} + 1", "{p}.clone()", "{p} - 3", "{p}.sum()", "{p} * {p}", "{p} > 0", "{p}.contiguous()"]
    if part[1].dim():
        forms += ["{p}.sum(0)", "{p}.flip(0)", "{p}.cumsum(-1)", "{p}.amax(0)"]
    return f"{scene.fresh()} = {scene.choose.choice(forms).format(p=part[0])}"


def read_two_arguments(scene: Scene) -> str | None:
    """`v = x + y`, `v = torch.cat([x.flatten(), y.flatten()])`."""
    x, y = _argument(scene), _argument(scene)
    forms = ["{x} + {y}", "{x} * {y}", "{x} - {y}", "torch.cat([{x}.flatten(), {y}.flatten()])"]
    return f"{scene.fresh()} = {scene.choose.choice(forms).format(x=x, y=y)}"


def dtype_view(scene: Scene) -> str | None:
    """`v = x.view(torch.int32)`."""
    x = scene.pick(lambda t: not t.requires_grad and t.dim() > 0 and is_number(t))
    dtypes = ("torch.int32", "torch.float32", "torch.uint8", "torch.bfloat16", "torch.int16")
    return x and f"{scene.fresh()} = {x}.view({scene.choose.choice(dtypes)})"


def strided_view(scene: Scene) -> str | None:
    """`v = x.as_strided((2, 2), (2, 1))`, within the tensor, from where it begins."""
    x = scene.pick(lambda t: t.numel() >= 4 and t.is_contiguous())
    form = scene.choose.choice(("(2, 2), (2, 1)", "(2, 2), (1, 2)", "(3,), (1,)", "(2,), (2,)"))
    return x and f"{scene.fresh()} = {x}.as_strided({form})"


def reshape_argument(scene: Scene) -> str | None:
    """`x.t_()`, `x.unsqueeze_(0)`."""
    form = scene.choose.choice(("{x}.t_()", "{x}.unsqueeze_(0)", "{x}.squeeze_()", "{x}.transpose_(0, 1)"))
    return form.format(x=scene.choose.choice(scene.inputs))


WRITES: tuple[tuple[Template, int], ...] = (
    (write_to_argument, 30),
    (write_by_item, 9),
    (written_alone, 3),
    (written_from_another, 4),
    (written_by_mask, 1),
    (written_by_index, 3),
    (written_behind_autograd, 2),
)
READS: tuple[tuple[Template, int], ...] = (
    (read_argument, 18),
    (read_two_arguments, 6),
    (pointwise_of_two, 3),
    (view_of_any, 10),
    (several_views, 3),
    (dtype_view, 3),
    (strided_view, 2),
)
RESHAPES: tuple[tuple[Template, int], ...] = ((reshape_argument, 6),)
