"""What gloo asks of the arguments of a collective: a step that is recorded meets it, before anything is written.

    all_gather_([a, b], part, "0")      raises where three ranks are in the group, or `a` has another shape than `part`

Gloo itself asks when a collective runs, in a program maybe behind the first update. Only what is known while a step is
recorded is looked at: sizes that are symbols are left to gloo, and all is on other backends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dovetail.torch_compat.collectives import find_group

_OF_BITS = ("BAND", "BOR", "BXOR")


def check_arguments(what: str, operands: Sequence[Any], group: str) -> None:
    """what: the name of a collective. Raises: ValueError for what gloo would refuse."""
    rule = _RULES.get(what)
    size = None if rule is None else _size_on_gloo(group)
    if rule is None or size is None:
        return
    wrong = rule(size, *operands)
    if wrong:
        raise ValueError(f"{what} in a group of {size} ranks: {wrong}")


def _size_on_gloo(name: str) -> int | None:
    """How many ranks a group on gloo has; None where there is none of that name, or on another backend."""
    try:
        group = find_group(name)
    except LookupError:
        return None
    return int(group.size()) if dist.get_backend(group) == "gloo" else None


def _reduces(size: int, tensor: torch.Tensor, op: str, root: int = 0) -> str:
    if op in _OF_BITS and (tensor.is_floating_point() or tensor.is_complex()):
        return f"{op} of {tensor.dtype}"
    return _has_root(size, root)


def _has_root(size: int, root: int) -> str:
    return "" if 0 <= root < size else f"there is no rank {root}"


def _in_list(size: int, items: Sequence[torch.Tensor], like: torch.Tensor) -> str:
    """Whether there is a tensor for each rank, all alike."""
    if len(items) != size:
        return f"a list has {len(items)} tensors"
    return next((found for item in items if (found := _alike(item, like))), "")


def _alike(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dtype != other.dtype:
        return f"{one.dtype} beside {other.dtype}"
    if not _known(*one.shape, *other.shape) or one.shape == other.shape:
        return ""
    return f"a tensor of shape {list(one.shape)} beside one of shape {list(other.shape)}"


def _known(*sizes: Any) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _shares_out(size: int, whole: torch.Tensor, part: torch.Tensor) -> str:
    """Whether the parts of all ranks, one below the other, are the whole."""
    if whole.dtype != part.dtype:
        return f"{whole.dtype} beside {part.dtype}"
    if not part.dim():
        return "a part without dimensions"
    if not _known(*whole.shape, *part.shape):
        return ""
    wanted = [size * part.shape[0], *part.shape[1:]]
    return "" if list(whole.shape) == wanted else f"a whole of shape {list(whole.shape)}, not {wanted}"


def _covers(size: int, whole: torch.Tensor, length: int) -> str:
    count = whole.numel()
    if not _known(count, length) or count == size * length:
        return ""
    return f"a part of {length} elements, and a whole of {count}"


def _exchanges(size: int, out: torch.Tensor, given: torch.Tensor, to: Sequence[int], of: Sequence[int], *_: Any) -> str:
    if out.dtype != given.dtype:
        return f"{out.dtype} beside {given.dtype}"
    return _splits(size, out, to) or _splits(size, given, of)


def _splits(size: int, tensor: torch.Tensor, lengths: Sequence[int]) -> str:
    if not lengths or not _known(*tensor.shape, *lengths):
        return ""  # gloo takes rows that its ranks do not divide
    if len(lengths) != size:
        return f"there are {len(lengths)} lengths"
    return (
        "" if sum(lengths) == tensor.shape[0] else f"lengths {list(lengths)} of a tensor of shape {list(tensor.shape)}"
    )


def _of_lists(size: int, outs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> str:
    like = next(iter(parts), None)
    if like is None:
        return "a list has no tensors"
    return _in_list(size, parts, like) or _in_list(size, outs, next(iter(outs), like))


def _to_root(size: int, outs: Sequence[torch.Tensor], part: torch.Tensor, root: int) -> str:
    return _has_root(size, root) or (_in_list(size, outs, part) if outs else "")


_RULES: dict[str, Callable[..., str]] = {
    "all_reduce": _reduces,
    "reduce": lambda size, tensor, root, op: _reduces(size, tensor, op, root),
    "broadcast": lambda size, tensor, root: _has_root(size, root),
    "all_gather": _in_list,
    "gather_into": _shares_out,
    "gather_own": lambda size, out, first, length: _covers(size, out, length),
    "reduce_scatter": lambda size, out, parts, op: _in_list(size, parts, out) or _reduces(size, out, op),
    "scatter_from": lambda size, out, whole, op: _shares_out(size, whole, out) or _reduces(size, out, op),
    "scatter_in": lambda size, out, whole, op: _shares_out(size, whole, out) or _reduces(size, out, op),
    "all_to_all": _of_lists,
    "exchange": _exchanges,
    "gather": _to_root,
    "scatter": lambda size, out, parts, root: _to_root(size, parts, out, root),
}
