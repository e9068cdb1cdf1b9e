"""What must hold of operands of operators that compute a whole layer: see `dovetail.ops.preconditions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Refused(Exception):
    """Operands are not what a kernel trusts them to be."""


def require(holds: bool, reason: str) -> None:
    """Raises: Refused, with the reason, unless something holds."""
    if not holds:
        raise Refused(reason)


def within(indices: torch.Tensor, count: int, what: str) -> None:
    """Every index is one of `count`."""
    if indices.numel():
        lowest, highest = torch.aminmax(indices)
        require(int(lowest) >= 0 and int(highest) < count, f"an index in {what} is not within {count}")


def of_length(given: Mapping[str, Any], names: Sequence[str], length: int) -> None:
    """Operands that are there have so many elements."""
    for name in names:
        is_unread = name.startswith("save_") and given.get("train") is False  # then the running ones are read
        if given.get(name) is not None and not (is_unread and not given[name].numel()):
            require(given[name].numel() == length, f"{name} does not have {length} elements")


def encoder_layer(given: Mapping[str, Any]) -> None:
    """A layer of `nn.TransformerEncoder`."""
    width, source = given["embed_dim"], given["src"]
    _attends(given, source, given["num_heads"])
    inner = given["ffn_bias_1"].numel()
    wanted: dict[str, tuple[int, ...]] = {
        **{"ffn_weight_1": (inner, width), "ffn_bias_1": (inner,), "ffn_weight_2": (width, inner)},
        **dict.fromkeys(("norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_bias_2"), (width,)),
    }
    _are_shaped(given, wanted, source)


def attention_layer(given: Mapping[str, Any]) -> None:
    """`nn.MultiheadAttention` of a tensor over itself, or over others of its form."""
    query = given["query"]
    _attends(given, query, given["num_head"])
    for name in ("key", "value"):
        require(given[name].shape == query.shape, f"{name} has another shape than the query")
        require(given[name].dtype == query.dtype, f"{name} has another dtype than the query")
    if given.get("mask") is not None:
        batch, length = query.shape[:2]
        kinds: dict[Any, tuple[int, ...]] = {
            0: (length, length),
            1: (batch, length),
            2: (batch, given["num_head"], length, length),
        }
        require(kinds.get(given.get("mask_type")) == tuple(given["mask"].shape), "the mask is of another kind")
        require(given["mask"].dtype == torch.bool, "the mask is not of booleans")


def one_of_each(given: Mapping[str, Any]) -> None:
    """One scale, one zero point, and whether to quantize, each a tensor of one number."""
    wanted = {"scale": torch.float32, "zero_point": torch.int32, "fake_quant_enabled": torch.int64}
    for name, dtype in wanted.items():
        require(given[name].numel() == 1, f"{name} is not one number")
        require(given[name].dtype == dtype, f"{name} is not of {dtype}")


def _attends(given: Mapping[str, Any], source: torch.Tensor, heads: int) -> None:
    width = given["embed_dim"]
    require(
        source.dim() == 3 and source.shape[2] == width and heads > 0 and width % heads == 0,
        "the input has another width",
    )
    wanted: dict[str, tuple[int, ...]] = {
        **{"qkv_weight": (3 * width, width), "qkv_bias": (3 * width,)},
        **{"proj_weight": (width, width), "proj_bias": (width,)},
    }
    _are_shaped(given, wanted, source)
    mask, size = given.get("mask"), source.shape[:2]
    if mask is not None:
        shapes = {(size[1], size[1]), tuple(size), (size[0], heads, size[1], size[1])}
        require(tuple(mask.shape) in shapes, "the mask does not fit")


def _are_shaped(given: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]], source: torch.Tensor) -> None:
    for name, shape in wanted.items():
        require(tuple(given[name].shape) == shape, f"{name} has another shape")
        require(given[name].dtype == source.dtype, f"{name} has another dtype")
