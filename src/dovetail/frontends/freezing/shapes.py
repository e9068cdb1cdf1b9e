"""Which sizes of the example inputs are symbolic: parsing `dynamic_shapes`, and the sizes to record with.

A free size has a label; sizes with one label are equal in every call. By default the first size of every input is
free, and those that are equal in the example share a label. To record, each label gets a number of its own: symbols
are told apart by it, and 0 and 1 are never taken for a symbol.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import BadDynamicShapes
from dovetail.ir.convert import unsupported_kind

STATIC = "static"
_SPELLING = (
    'give None, "static", or for each argument by name a mapping from dimension to a name, '
    'as in dynamic_shapes={"x": {0: "batch"}}; torch.export.Dim works, too'
)


@dataclass(frozen=True, slots=True)
class FreeSizes:
    """labels: by leaf of the arguments and dimension. ranges: least and greatest size per label, where one was given.

    is_asked: the user named them, so that one that cannot be free is an error. notes: of those that the
    example keeps from being free.
    """

    labels: Mapping[tuple[int, int], Hashable]
    ranges: Mapping[Hashable, tuple[int, int | None]]
    is_asked: bool
    notes: tuple[str, ...] = ()

    def dims(self, place: int) -> tuple[int, ...]:
        """The free dimensions of a leaf."""
        return tuple(dim for leaf, dim in self.labels if leaf == place)

    def numbers(self, leaves: Sequence[Any]) -> dict[Hashable, int]:
        """A number above 1 for each label, different for each, and the example's where that is possible."""
        wished = {label: int(leaves[leaf].shape[dim]) for (leaf, dim), label in self.labels.items()}
        fixed = {
            int(size)
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor)
            for dim, size in enumerate(leaf.shape)
            if (place, dim) not in self.labels
        }
        chosen: dict[Hashable, int] = {}
        for label in sorted(wished, key=lambda label: -wished[label]):
            least, greatest = self.ranges.get(label, (0, None))
            number = wished[label]
            while number < 2 or number in chosen.values() or (wished[label] < 2 and number in fixed):
                number += 1
            fits = number >= least and (greatest is None or number <= greatest)
            chosen[label] = number if fits else max(wished[label], 2)
        return chosen

    def resized(self, leaves: Sequence[Any], numbers: Mapping[Hashable, int]) -> list[Any]:
        """The leaves with free sizes as `numbers` has them; those of other sizes than the example's hold zeros.

        A tensor that is there twice has the sizes of the first place.
        """
        found = list(leaves)
        first: dict[int, int] = {}
        for place, leaf in enumerate(leaves):
            earlier = first.setdefault(id(leaf), place) if isinstance(leaf, torch.Tensor) else place
            if earlier != place:
                found[place] = found[earlier]
                continue
            wanted = {dim: numbers[self.labels[place, dim]] for dim in self.dims(place)}
            if any(leaf.shape[dim] != size for dim, size in wanted.items()):
                found[place] = _with_sizes(leaf, wanted)
        return found


def free_sizes(wish: Any, names: Sequence[str], arguments: Sequence[Any], leaves: Sequence[Sequence[Any]]) -> FreeSizes:
    """What `dynamic_shapes` says of these arguments.

    names, arguments: of the method, bound. leaves: of each argument, in order.
    Raises: BadDynamicShapes.
    """
    flat = [leaf for found in leaves for leaf in found]
    if isinstance(wish, str) and wish == STATIC:
        return FreeSizes({}, {}, is_asked=True)
    if wish is None:
        return FreeSizes(_first_sizes(flat), {}, is_asked=False, notes=_kept(_leaf_names(names, leaves), flat))
    specs = _by_argument(wish, names)
    labels: dict[tuple[int, int], Hashable] = {}
    ranges: dict[Hashable, tuple[int, int | None]] = {}
    wishes: list[Any] = []
    for name, argument, found in zip(names, arguments, leaves, strict=True):
        wishes += _per_leaf(specs.get(name), argument, len(found), name)
    for place, (spec, name) in enumerate(zip(wishes, _leaf_names(names, leaves), strict=True)):
        _read(spec, name, place, flat, labels, ranges)
    free = FreeSizes(labels, ranges, is_asked=True)
    _check_equal(free, flat)
    return free


def _leaf_names(names: Sequence[str], leaves: Sequence[Sequence[Any]]) -> list[str]:
    """What errors call each leaf of the arguments."""
    found: list[str] = []
    for name, own in zip(names, leaves, strict=True):
        found += [name] if len(own) == 1 else [f"{name}[{offset}]" for offset in range(len(own))]
    return found


def _kept(names: Sequence[str], leaves: Sequence[Any]) -> tuple[str, ...]:
    """Which first sizes the example's tensors keep from being free."""
    return tuple(
        f"dimension 0 of {name} is fixed to {leaf.shape[0]}: {why}"
        for name, leaf in zip(names, leaves, strict=True)
        if isinstance(leaf, torch.Tensor) and leaf.dim() and (why := _why_not_free(leaf, 0))
    )


def _why_not_free(tensor: torch.Tensor, dim: int) -> str:
    """What keeps a dimension of an example's tensor from being free; empty if nothing does, or no program takes it."""
    if unsupported_kind(tensor) is not None:
        return ""
    if tensor.shape[dim] == 0:
        return "it is empty in the example"
    if _is_dense(tensor):
        return ""
    apart = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    shares = apart < tensor.numel() or 0 in tensor.stride()
    return f"elements of the example {'share memory' if shares else 'have gaps between them'}"


def _first_sizes(leaves: Sequence[Any]) -> dict[tuple[int, int], Hashable]:
    tensors = [(k, x) for k, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.dim() and _is_dense(x)]
    sizes = {int(x.shape[0]) for _, x in tensors} - {0}
    if len(sizes) > 1:
        sizes -= {1}  # it is stretched over the others, or counts something else
    return {(k, 0): int(x.shape[0]) for k, x in tensors if int(x.shape[0]) in sizes}


def _by_argument(wish: Any, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(wish, Mapping):
        unknown = [name for name in wish if name not in names]
        if unknown:
            raise BadDynamicShapes(reason=f"there is no argument {unknown[0]!r}", hint=f"name {', '.join(names)}")
        return wish
    if isinstance(wish, tuple | list):
        if len(wish) > len(names):
            reason = f"it has {len(wish)} entries for {len(names)} arguments"
            raise BadDynamicShapes(reason=reason, hint="give one entry per argument")
        return dict(zip(names, wish, strict=False))
    raise BadDynamicShapes(reason=f"a {type(wish).__name__} does not describe arguments", hint=_SPELLING)


def _per_leaf(spec: Any, argument: Any, count: int, name: str) -> list[Any]:
    """The specification of each leaf of an argument."""
    if spec is None or (isinstance(argument, torch.Tensor) or count == 0):
        return [spec] * count
    parts = list(argument.values()) if isinstance(argument, Mapping) else argument
    if isinstance(argument, Mapping) and isinstance(spec, Mapping):
        unknown = [key for key in spec if key not in argument]
        if unknown:
            raise BadDynamicShapes(reason=f"{name} has no entry {unknown[0]!r}", hint=_SPELLING)
        spec = [spec.get(key) for key in argument]
    if not isinstance(parts, tuple | list) or not isinstance(spec, tuple | list) or len(spec) != len(parts):
        raise BadDynamicShapes(reason=f"the entry for {name} is not nested like that argument", hint=_SPELLING)
    if len(parts) != count:
        raise BadDynamicShapes(
            reason=f"{name} holds containers of containers", hint="name sizes of tensors, and of lists or dicts of them"
        )
    return list(spec)


def _read(
    spec: Any,
    name: str,
    place: int,
    leaves: Sequence[Any],
    labels: dict[tuple[int, int], Hashable],
    ranges: dict[Hashable, tuple[int, int | None]],
) -> None:
    """Add what the specification of one leaf says."""
    if spec is None or spec == {}:
        return
    leaf = leaves[place]
    if not isinstance(leaf, torch.Tensor) or unsupported_kind(leaf) is not None:
        raise BadDynamicShapes(reason=f"{name} is not a plain tensor", hint="leave it out")
    if isinstance(spec, tuple | list):
        spec = dict(enumerate(spec))
    if not isinstance(spec, Mapping):
        raise BadDynamicShapes(reason=f"the entry for {name} is a {type(spec).__name__}", hint=_SPELLING)
    for dim, wish in spec.items():
        if not isinstance(dim, int) or not -leaf.dim() <= dim < leaf.dim():
            raise BadDynamicShapes(reason=f"{name} has no dimension {dim!r}", hint=f"it has {leaf.dim()} dimensions")
        if isinstance(wish, int) and not isinstance(wish, bool) and wish != leaf.shape[dim]:
            reason = f"dimension {dim} of {name} is {leaf.shape[dim]} in the example inputs, and was said to be {wish}"
            raise BadDynamicShapes(reason=reason, hint="name the size, or leave it out")
        label = _label(wish, (place, dim % leaf.dim()), name)
        if label is None:
            continue
        why = _why_not_free(leaf, dim)
        if why:
            hint = f"give an example {'of other sizes' if leaf.shape[dim] == 0 else 'without: x.contiguous()'}"
            raise BadDynamicShapes(reason=f"dimension {dim} of {name} cannot vary: {why}", hint=hint)
        labels[place, dim % leaf.dim()] = label
        least, greatest = getattr(wish, "min", None), getattr(wish, "max", None)  # not numbers where there is no bound
        if isinstance(least, int) or isinstance(greatest, int):
            ranges[label] = (least if isinstance(least, int) else 0, greatest if isinstance(greatest, int) else None)


def _label(wish: Any, own: tuple[int, int], name: str) -> Hashable | None:
    """The label that an entry stands for; None when the size stays as it is."""
    if wish is None or (isinstance(wish, int) and not isinstance(wish, bool)):
        return None
    if isinstance(wish, str):
        return wish
    kind = getattr(getattr(wish, "type", None), "name", "")
    if kind:  # Dim.AUTO and its kind
        return None if kind == "STATIC" else own
    named = getattr(wish, "__name__", None)
    if isinstance(named, str):
        return named
    raise BadDynamicShapes(reason=f"{wish!r} names no size of {name}", hint=_SPELLING)


def _check_equal(free: FreeSizes, leaves: Sequence[Any]) -> None:
    sizes: dict[Hashable, int] = {}
    for (place, dim), label in free.labels.items():
        size = int(leaves[place].shape[dim])
        if sizes.setdefault(label, size) != size:
            reason = f"{label!r} is {sizes[label]} and {size} in the example inputs"
            raise BadDynamicShapes(reason=reason, hint="give different sizes different names")
        least, greatest = free.ranges.get(label, (0, None))
        if size < least or (greatest is not None and size > greatest):
            reason = f"{label!r} is {size} in the example inputs, which is outside its range"
            raise BadDynamicShapes(reason=reason, hint="give an example inside the range")


def _order(tensor: torch.Tensor) -> list[int]:
    """The dimensions from the one of the widest steps to the one of the narrowest.

    One of size 1 lies within another of equal steps: around that, its steps would be wider.
    """
    shape, strides = tensor.shape, tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], shape[dim] == 1, dim))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each element has its own memory, without gaps."""
    if unsupported_kind(tensor) is not None:
        return False
    step = 1
    for dim in reversed(_order(tensor)):
        if tensor.shape[dim] > 1 and tensor.stride(dim) != step:
            return False
        step *= int(tensor.shape[dim])
    return True


def _with_sizes(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """A tensor of zeros with other sizes, laid out in the same order."""
    order = _order(tensor)
    shape = [sizes.get(dim, int(tensor.shape[dim])) for dim in order]
    made = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    back = [0] * len(order)
    for place, dim in enumerate(order):
        back[dim] = place
    return made.permute(back)
