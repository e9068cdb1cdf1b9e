"""What a call of an operator costs on a CPU, roughly: Python and dispatch, and work; and what a direct call saves.

Enough to tell programs whose time goes into calls from those whose time goes into work, before anything runs.

Source: measured on one thread of an Intel Xeon with AVX-512, torch 2.13; only relations matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from dovetail.ir.program import Node, TensorMeta, Value
from dovetail.ir.sizes import Size
from dovetail.ops.arguments import arguments_of
from dovetail.ops.attention import ATTENTION
from dovetail.ops.channel_parts import CAT_CHANNELS
from dovetail.ops.max_pools import MAX_POOL
from dovetail.ops.packing import reads_panels, rounds_rows, runs_steps
from dovetail.torch_compat.dispatch import Overload, schema_of, tags_of

_VIEW_US, _CALL_US = 1.0, 3.0
_SAVED_VIEW_US, _SAVED_POINTWISE_US, _SAVED_PRODUCT_US, _SAVED_KERNEL_US = 0.9, 1.8, 1.5, 4.5
_SAVED_PANEL_US, _SAVED_LAYER_US, _SAVED_ATTENTION_US = 4.0, 15.0, 10.0
_SAVED_IMAGE_US = 5e-4  # of each element that pools read, or parts of images: torch's kernels take that much longer
_FLOPS_PER_US, _BYTES_PER_US = 5e4, 1.5e4
_UNKNOWN_SIZE = 16  # what is expected of a symbolic size
_MOST_ELEMENTS = 1 << 17  # of a product, or of a kernel's tensors: the work is all there is

_PRODUCTS = frozenset({"mm", "addmm", "bmm"})
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# Kernels that machine code calls as they are, if sizes are known.
DIRECT = frozenset(
    {
        *("_softmax", "_log_softmax", "gelu", "native_layer_norm", "embedding", "gather", "index_select"),
        *("max_pool2d_with_indices", "bmm", _ATTENTION),
    }
)
_SUMS = frozenset({"sum", "mean"})
_DTYPES = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True, slots=True)
class CallCost:
    """total_us: of a call by way of Python. saved_us: of it, what is saved where machine code makes the call."""

    total_us: float
    saved_us: float


def call_cost(node: Node) -> CallCost:
    """What one node costs. Nodes that nothing is known of take their passes over memory."""
    results = [value.tensor for value in node.results() if value.is_tensor]
    operands = [value.tensor for value in node.operands() if value.is_tensor]
    if reads_panels(node.target) or rounds_rows(node.target):
        is_known = all(isinstance(size, int) for meta in results for size in meta.shape)
        saved_us = _SAVED_LAYER_US if runs_steps(node.target) else _SAVED_PANEL_US
        return CallCost(_CALL_US + saved_us + _bytes_us(operands, results), saved_us * is_known)
    if node.target in (MAX_POOL, CAT_CHANNELS):  # of known sizes
        saved_us = _SAVED_KERNEL_US + sum(map(_elements, operands)) * _SAVED_IMAGE_US
        return CallCost(_CALL_US + saved_us + _bytes_us(operands, results), saved_us)
    if node.target is ATTENTION:  # of known sizes
        work_us = 4.0 * _elements(results[0]) * _size(operands[1].shape[-2]) / _FLOPS_PER_US
        return CallCost(_CALL_US + _SAVED_ATTENTION_US + work_us, _SAVED_ATTENTION_US)
    if not isinstance(node.target, Overload) or not results:
        return CallCost(_CALL_US + _bytes_us(operands, results), 0.0)
    is_within = not {meta.storage for meta in results}.isdisjoint(meta.storage for meta in operands)
    if is_within and not schema_of(node.target).is_mutable:
        return CallCost(_VIEW_US, _SAVED_VIEW_US)
    total = _CALL_US + max(_bytes_us(operands, results), _flops(node, results[0]) / _FLOPS_PER_US)
    is_usual = all(meta.device.type == "cpu" and meta.dtype in _DTYPES for meta in results)
    return CallCost(total, _saved_us(node.target, operands, results) if is_usual else 0.0)


def _saved_us(target: Overload, operands: list[TensorMeta], results: list[TensorMeta]) -> float:
    if torch.Tag.pointwise in tags_of(target):
        return _SAVED_POINTWISE_US
    name = schema_of(target).name
    metas = (*operands, *results)
    if not all(isinstance(size, int) for meta in metas for size in meta.shape):
        return 0.0
    if sum(map(_elements, metas)) > _MOST_ELEMENTS:
        return 0.0
    if name in DIRECT:
        return _SAVED_KERNEL_US
    return _SAVED_PRODUCT_US if name in _PRODUCTS or name in _SUMS else 0.0


def _flops(node: Node, result: TensorMeta) -> float:
    assert isinstance(node.target, Overload), "primitives have no schema"
    name, named = schema_of(node.target).name, arguments_of(node)
    if name in _PRODUCTS:
        inner = named["mat1"] if name == "addmm" else named["self"]
        return 2.0 * _elements(result) * (_size(inner.tensor.shape[-1]) if isinstance(inner, Value) else 1)
    weight = named.get("weight")
    if name == "convolution" and isinstance(weight, Value):
        return 2.0 * _elements(result) * prod(map(_size, weight.tensor.shape[1:]))
    key = named.get("key")
    if name == _ATTENTION and isinstance(key, Value):
        return 4.0 * _elements(result) * _size(key.tensor.shape[-2])
    return 0.0


def _bytes_us(operands: list[TensorMeta], results: list[TensorMeta]) -> float:
    return sum(_elements(meta) * meta.dtype.itemsize for meta in (*operands, *results)) / _BYTES_PER_US


def _elements(meta: TensorMeta) -> int:
    return prod(map(_size, meta.shape))


def _size(size: Size) -> int:
    return size if isinstance(size, int) else _UNKNOWN_SIZE
