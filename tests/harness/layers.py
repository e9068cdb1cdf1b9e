"""More statements of random programs: functions of `torch.nn.functional`, indexing, several tensors at once, leaves."""

from __future__ import annotations

import torch

from tests.harness.scene import Scene, is_number, is_real_float
from tests.harness.statements import Template, is_apart


def _has_rows(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.numel() > 0


def layer(scene: Scene) -> str | None:
    """`v = torch.nn.functional.layer_norm(x, x.shape[-1:])`."""
    x = scene.pick(lambda t: is_real_float(t) and _has_rows(t))
    form = scene.choose.choice(
        (
            "torch.nn.functional.layer_norm({x}, {x}.shape[-1:])",
            "torch.nn.functional.gelu({x})",
            "torch.nn.functional.log_softmax({x}, -1)",
            "torch.nn.functional.normalize({x}, dim=-1)",
            "torch.nn.functional.pad({x}, (1, 0))",
            "torch.nn.functional.mse_loss({x}, torch.zeros_like({x}))",
            "torch.nn.functional.silu({x})",
            "torch.nn.functional.softplus({x})",
            "{x}.var(-1, correction=0)",
            "{x}.norm()",
            "{x}.logsumexp(0)",
            "torch.nn.functional.leaky_relu({x}, 0.1, inplace=False)",
            "torch.nn.functional.cross_entropy({x}, torch.zeros({x}.shape[0], dtype=torch.int64))",
        )
    )
    return x and f"{scene.fresh()} = {form.format(x=x)}"


def batch_norm(scene: Scene) -> str | None:
    """`v = torch.nn.functional.batch_norm(x, mean, var, training=True)`, which writes mean and var."""
    x = scene.pick(lambda t: t.dtype is torch.float32 and t.dim() in (2, 3) and t.shape[0] > 1 and t.is_contiguous())
    if x is None:
        return None
    width = scene.tensor(x).shape[1]
    source = scene.tensor(x)
    mean = scene.pick_target(
        lambda t: t.dtype is torch.float32 and t.shape == (width,) and not t.requires_grad and is_apart(t, source)
    )
    mean = mean or f"torch.zeros({width})"
    return f"{scene.fresh()} = torch.nn.functional.batch_norm({x}, {mean}, torch.ones({width}), training=True)"


def indexed(scene: Scene) -> str | None:
    """`v = x[index]`, `v = x.gather(0, index)`, ..."""
    x = scene.pick(lambda t: is_number(t) and _has_rows(t))
    form = scene.choose.choice(
        (
            "{x}[torch.tensor([0, 0])]",
            "{x}.index_select(0, torch.tensor([0]))",
            "{x}.gather(0, torch.zeros_like({x}, dtype=torch.int64))",
            "{x}[..., torch.tensor([0])]",
            "{x}.take(torch.tensor([0, 0]))",
            "torch.where({x} == {x}, {x}, torch.zeros_like({x}))",
        )
    )
    return x and f"{scene.fresh()} = {form.format(x=x)}"


def rearranged(scene: Scene) -> str | None:
    """`v = x.flip(0)`, `v = x.repeat(...)`, ..."""
    x = scene.pick(_has_rows)
    form = scene.choose.choice(
        (
            "{x}.flip(0)",
            "{x}.roll(1, 0)",
            "{x}.repeat(2, *[1] * ({x}.dim() - 1))",
            "{x}.tril()",
            "{x}.mT",
            "{x}.unflatten(0, (-1, 1))",
            "{x}.broadcast_to(2, *{x}.shape)",
            "{x}.swapaxes(0, -1)",
            "{x}.view(torch.int32)",
            "{x}.conj()",
            "{x}.new_zeros({x}.shape)",
            "{x}.expand_as({x})",
            "{x}.hsplit(1)[0]",
        )
    )
    return x and f"{scene.fresh()} = {form.format(x=x)}"


def several_written(scene: Scene) -> str | None:
    """`torch._foreach_mul_([x, y], 2.0)`."""
    x = scene.pick_target(is_real_float)
    if x is None:
        return None
    target = scene.tensor(x)
    y = scene.pick_target(lambda t: is_real_float(t) and t is not target and is_apart(target, t))
    form = scene.choose.choice(
        (
            "torch._foreach_mul_([{x}, {y}], 2.0)",
            "torch._foreach_add_([{x}, {y}], 1.0)",
            "torch._foreach_neg_([{x}, {y}])",
            "torch._foreach_add_([{x}], [{x}.clone()])",
        )
    )
    return y and form.format(x=x, y=y)


def written_with_more(scene: Scene) -> str | None:
    """`x.lerp_(y, 0.5)`, `x.cumsum_(0)`, `x.tril_()`, ..."""
    x = scene.pick_target(lambda t: is_real_float(t) and _has_rows(t) and t.is_contiguous())
    form = scene.choose.choice(
        (
            "{x}.lerp_(torch.ones_like({x}), 0.5)",
            "{x}.cumsum_(0)",
            "{x}.tril_()",
            "{x}.clamp_min_(0.0)",
            "{x}.pow_(2)",
            "{x}.square_()",
            "{x}.remainder_(2.0)",
            "{x}.copysign_({x}.clone())",
            "{x}.index_add_(0, torch.tensor([0, 0]), {x}[:1].expand(2, *{x}.shape[1:]).clone())",
            "{x}.diagonal().fill_(1)",
            "torch.nn.functional.relu({x}, inplace=True)",
            "torch.nn.functional.leaky_relu_({x}, 0.1)",
            "torch.nn.functional.dropout({x}, 0.5, inplace=True)",
            "torch.nn.init.uniform_({x})",
            "torch.sort({x}.clone(), out=(torch.empty_like({x}), torch.empty_like({x}, dtype=torch.int64)))",
            "{x}.random_(0, 5)",
            "{x}.exponential_()",
            "{x}[{x} > 0] = 0.5",
        )
    )
    return x and form.format(x=x)


def leaf(scene: Scene) -> str | None:
    """`v = x.detach().requires_grad_()`: a leaf that the program makes, in a program that has gradients anyway."""
    trains = any(scene.tensor(name).requires_grad for name in scene.inputs)
    x = scene.pick(lambda t: trains and is_real_float(t))
    form = scene.choose.choice(("{x}.detach().clone().requires_grad_()", "torch.zeros_like({x}).requires_grad_()"))
    return x and f"{scene.fresh()} = {form.format(x=x)}"


LAYERS: tuple[tuple[Template, int], ...] = (
    (layer, 6),
    (batch_norm, 2),
    (indexed, 4),
    (rearranged, 5),
    (several_written, 2),
    (written_with_more, 6),
    (leaf, 1),
)
