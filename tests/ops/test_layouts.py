"""Operators that may follow another layout: fakes find the strides that kernels give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.ir.program import Node
from dovetail.ops.layouts import FOLLOWING, is_absolute, may_follow_layout
from dovetail.torch_compat.dispatch import DispatchMode, Overload, schema_of
from dovetail.torch_compat.fake_layouts import RightLayouts
from dovetail.torch_compat.fakes import new_fake_mode
from tests.passes.programs import Builder

aten = torch.ops.aten
F = torch.nn.functional

Call = Callable[[Tensor], Any]

# By the name of the operator that is meant, on an image.
CALLS: dict[str, list[Call]] = {
    "convolution": [
        lambda x: aten.convolution(x, torch.ones(6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        lambda x: aten.convolution(x, torch.ones(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
        lambda x: aten.convolution(x, torch.ones(4, 3, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
    ],
    "native_batch_norm": [
        lambda x: aten.native_batch_norm(x, None, None, torch.ones(4), torch.ones(4), False, 0.1, 1e-5)
    ],
    "_native_batch_norm_legit_no_training": [
        lambda x: aten._native_batch_norm_legit_no_training(x, None, None, torch.ones(4), torch.ones(4), 0.1, 1e-5)
    ],
    "native_group_norm": [lambda x: F.group_norm(x, 2)],
    "native_layer_norm": [lambda x: F.layer_norm(x, x.shape[1:]), lambda x: F.layer_norm(x, x.shape[-1:])],
    "max_pool2d_with_indices": [lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])],
    "avg_pool2d": [lambda x: F.avg_pool2d(x, 2)],
    "_adaptive_avg_pool2d": [
        lambda x: aten._adaptive_avg_pool2d(x, [2, 3]),
        lambda x: aten._adaptive_avg_pool2d(x, [1, 1]),
    ],
    "adaptive_max_pool2d": [lambda x: aten.adaptive_max_pool2d(x, [2, 3])],
    "max_pool3d_with_indices": [lambda x: aten.max_pool3d_with_indices(_volume(x), [2, 2, 2])],
    "avg_pool3d": [lambda x: aten.avg_pool3d(_volume(x), [2, 2, 2])],
    "upsample_nearest2d": [lambda x: F.interpolate(x, scale_factor=2.0)],
    "_upsample_nearest_exact2d": [lambda x: F.interpolate(x, size=(5, 4), mode="nearest-exact")],
    "upsample_bilinear2d": [lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")],
    "upsample_bicubic2d": [lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic")],
    "constant_pad_nd": [lambda x: F.pad(x, (1, 2, 1, 0))],
    "reflection_pad2d": [lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")],
    "replication_pad2d": [lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate")],
    "pixel_shuffle": [lambda x: F.pixel_shuffle(x, 2)],
    "pixel_unshuffle": [lambda x: F.pixel_unshuffle(x, 2)],
    "grid_sampler_2d": [lambda x: aten.grid_sampler_2d(x, torch.zeros(x.shape[0], 3, 3, 2), 0, 0, False)],
    "glu": [lambda x: F.glu(x, 1), lambda x: F.glu(x, 2)],
    "_prelu_kernel": [lambda x: F.prelu(x, torch.ones(4))],
    "cat": [
        lambda x: torch.cat([x, x], 1),
        lambda x: torch.cat([x, torch.ones(x.shape)], 1),
        lambda x: torch.cat([torch.ones(x.shape), x], 0),
    ],
    "stack": [lambda x: torch.stack([x, x]), lambda x: torch.stack([x, torch.ones(x.shape)], 2)],
    "repeat": [lambda x: x.repeat(1, 2, 1, 1)],
    "flip": [lambda x: x.flip(3), lambda x: x.flip(1)],
    "index_select": [lambda x: x.index_select(1, torch.tensor([1, 0])), lambda x: x.index_select(3, torch.tensor([1]))],
    "slice_scatter": [lambda x: x.slice_scatter(torch.ones(x.shape[0], 1, *x.shape[2:]), 1, 0, 1)],
    "mean": [lambda x: x.mean((2, 3)), lambda x: x.mean((2, 3), keepdim=True), lambda x: x.mean(1)],
    "sum": [lambda x: x.sum(-1), lambda x: x.sum(1, keepdim=True), lambda x: x.sum((0, 1))],
    "amax": [lambda x: x.amax((2, 3)), lambda x: x.amax(1, keepdim=True)],
    "amin": [lambda x: x.amin(3)],
    "max": [lambda x: x.max(1), lambda x: x.max(3), lambda x: x.max()],
    "argmax": [lambda x: x.argmax(1), lambda x: x.argmax(2)],
    "var_mean": [lambda x: torch.var_mean(x, (2, 3)), lambda x: torch.var_mean(x, 1, keepdim=True)],
    "linalg_vector_norm": [lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)],
    "cumsum": [lambda x: x.cumsum(2), lambda x: x.cumsum(1)],
    "_softmax": [lambda x: x.softmax(1), lambda x: x.softmax(3)],
    "_log_softmax": [lambda x: x.log_softmax(1)],
    "topk": [lambda x: x.topk(2, 1), lambda x: x.topk(1, 3)],
    "mm": [lambda x: x[0, 0].mm(x[0, 0].t()), lambda x: x[0, 0].t().mm(x[0, 1])],
    "addmm": [lambda x: torch.addmm(x[0, 0, :, :1], x[0, 0], x[0, 1].t()[:, :1])],
    "bmm": [lambda x: x[:, 0].bmm(x[:, 1].transpose(1, 2)), lambda x: x.flatten(2).bmm(x.flatten(2).transpose(1, 2))],
    "baddbmm": [lambda x: torch.baddbmm(torch.ones(1), x[:, 0], x[:, 1].transpose(1, 2))],
    "clone": [lambda x: x.clone(), lambda x: x.clone(memory_format=torch.contiguous_format)],
    "_to_copy": [lambda x: x.double(), lambda x: aten._to_copy(x, dtype=torch.int32)],
    "zeros_like": [torch.zeros_like],
    "ones_like": [torch.ones_like],
    "full_like": [lambda x: torch.full_like(x, 2.0)],
    "empty_like": [torch.empty_like],
    "new_zeros": [lambda x: x.new_zeros(x.shape)],
    "new_ones": [lambda x: x.new_ones(x.shape)],
    "new_full": [lambda x: x.new_full(x.shape, 2.0)],
    "new_empty": [lambda x: x.new_empty(x.shape)],
}

# Composed of others, so that no recorded program of a model has them; a pass writes reshapes, and tells their strides.
COMPOSED = {"reshape", "contiguous"}


class Called(DispatchMode):
    """Notes the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(schema_of(func).name)
        return func(*args, **(kwargs or {}))


def _volume(x: Tensor) -> Tensor:
    return torch.stack([x, x], 2).contiguous(memory_format=torch.channels_last_3d)


def test_each_name_has_a_call() -> None:
    assert set(CALLS) | COMPOSED == FOLLOWING


@pytest.mark.parametrize("shape", [(2, 4, 6, 6), (1, 4, 6, 6), (3, 4, 5, 7)])
@pytest.mark.parametrize("name", CALLS)
def test_fakes_find_the_strides_of_kernels(name: str, shape: tuple[int, ...]) -> None:
    for call in CALLS[name]:
        if (shape[-1] % 2 and name == "pixel_unshuffle") or (name == "glu" and shape[2] % 2):
            continue
        x = torch.rand(shape).contiguous(memory_format=torch.channels_last)
        called = Called()
        with torch.no_grad(), called:
            made = call(x)
        assert name in called.names
        mode = new_fake_mode()
        with torch.no_grad(), mode, RightLayouts():
            described = call(torch.empty_strided(x.shape, x.stride()))
        results, fakes = ([r] if isinstance(r, Tensor) else list(r) for r in (made, described))
        for real, fake in zip(results, fakes, strict=True):
            wide = [dim for dim, size in enumerate(real.shape) if size != 1]
            assert real.shape == fake.shape
            assert [real.stride(d) for d in wide] == [fake.stride(d) for d in wide]


def _node(target: Any, *args: Any, is_view: bool = False) -> Node:
    b = Builder("x")
    (x,) = b.inputs
    b.call("y", target, x, *args, view_of=x if is_view else None)
    return b.nodes[0]


@pytest.mark.parametrize(
    ("node", "may"),
    [
        (_node(aten.relu.default), True),
        (_node(aten.clone.default), True),
        (_node(aten.view.default, [4], is_view=True), True),
        (_node(aten.as_strided.default, [4], [1], is_view=True), False),
        (_node(aten._reshape_alias.default, [4], [1], is_view=True), False),
        (_node(aten.roll.default, [1]), False),
        (_node(aten.rand_like.default), False),
        (_node(aten.relu_.default, is_view=True), False),
        (_node(torch.ops.prims.exp.default), False),
    ],
)
def test_who_may_follow(node: Node, may: bool) -> None:
    assert may_follow_layout(node) is may
    assert isinstance(node.target, Overload)
    assert is_absolute(node) is (schema_of(node.target).name in ("as_strided", "_reshape_alias"))
