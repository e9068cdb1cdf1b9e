"""Which size of a call's arguments is the batch, the same call with another one, and the largest that fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.errors import BadOptionValue
from dovetail.frontends.structure import Structure, unflatten
from dovetail.torch_compat.fakes import Layout, blank_fake, new_fake_mode

_MOST = 1 << 24  # a batch above which nothing is tried


def batch_of(
    leaves: Sequence[Any],
    structure: Structure,
    batch_dim: int | Mapping[int | str, int],
    names: Sequence[str] = (),
) -> tuple[dict[int, int], int]:
    """The dimension of each argument, by its place among the leaves, that is the batch; and how large it is.

    names: of the arguments by position. Raises: BadOptionValue where that is not clear.
    """
    tensors = {place: x for place, x in enumerate(leaves) if isinstance(x, torch.Tensor)}
    if isinstance(batch_dim, Mapping):
        dims = _named(leaves, structure, batch_dim, names)
    elif isinstance(batch_dim, int) and not isinstance(batch_dim, bool):
        dims = {place: batch_dim for place, x in tensors.items() if x.dim()}
    else:
        raise _refused(batch_dim, "it is a dimension")
    if not dims:
        raise _refused(batch_dim, "no argument is a tensor with dimensions")
    for place, dim in dims.items():
        if not isinstance(dim, int) or not -tensors[place].dim() <= dim < tensors[place].dim():
            raise _refused(batch_dim, f"argument {place} has {tensors[place].dim()} dimensions")
    sizes = {place: tensors[place].shape[dim] for place, dim in dims.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} in argument {place}" for place, size in sizes.items())
        raise _refused(batch_dim, f"the batch is ambiguous: {found}")
    return dims, next(iter(sizes.values()))


def positional_names(target: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments that a call gives by position, as far as they are known."""
    called = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # written in C
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)


def _named(
    leaves: Sequence[Any], structure: Structure, batch_dim: Mapping[int | str, int], names: Sequence[str]
) -> dict[int, int]:
    args, kwargs = unflatten(list(range(len(leaves))), structure)
    known = {**dict(enumerate(args)), **dict(zip(names, args, strict=False)), **kwargs}
    dims: dict[int, int] = {}
    for name, dim in batch_dim.items():
        place = known.get(name)
        if not isinstance(place, int) or not isinstance(leaves[place], torch.Tensor):
            raise _refused(batch_dim, f"there is no tensor argument {name!r}")
        dims[place] = dim
    return dims


def _refused(batch_dim: object, reason: str) -> BadOptionValue:
    expected = 'the dimension that all tensor arguments have it in, or one for each: batch_dim={"x": 0, "mask": 1}'
    return BadOptionValue(option="batch_dim", value=batch_dim, reason=reason, expected=expected)


def with_batch(leaves: Sequence[Any], dims: Mapping[int, int], batch: int) -> list[Any]:
    """The leaves, with fakes that have another batch in place of the tensors that have one."""
    mode = new_fake_mode()
    return [_resized(mode, x, dims[place], batch) if place in dims else x for place, x in enumerate(leaves)]


def _resized(mode: Any, tensor: torch.Tensor, dim: int, batch: int) -> torch.Tensor:
    shape, stride, inner = list(tensor.shape), list(tensor.stride()), 1
    shape[dim] = batch
    for place in sorted(range(len(shape)), key=lambda place: (tensor.stride(place), tensor.shape[place])):
        if stride[place]:
            stride[place] = inner
            inner *= shape[place]
    device = torch.device("cpu") if tensor.device.type == "meta" else tensor.device
    made = blank_fake(mode, Layout(tuple(shape), tuple(stride), 0, tensor.dtype, device))
    return made.requires_grad_(tensor.requires_grad)


def largest_that_fits(needed: Callable[[int], int], limit: int, size: int, size_needs: int, given: object) -> int:
    """The largest batch that needs at most a limit; 0 for none. size_needs: what a batch of `size` needs.

    given: the limit as the user wrote it.

    Needs are taken to rise with the batch, nearly in proportion: sizes are tried where a line through what is known
    meets the limit, then in halves. Raises: BadOptionValue where the largest batch that is tried fits.
    """
    known = {0: 0, size: size_needs} if size else {0: 0}
    low, high = (size, None) if size_needs <= limit and size else (0, size or None)
    for turn in range(200):
        if high is not None and high - low <= 1:
            return low
        if low >= _MOST:
            reason = f"a batch of {low:,} fits as well, and larger ones are not tried"
            expected = "a lower limit; or, in batch_dim, the dimension that is the batch"
            raise BadOptionValue(option="limit", value=given, reason=reason, expected=expected)
        batch = _next(known, limit, low, high, turn)
        known[batch] = needed(batch)
        if known[batch] <= limit:
            low = batch
        else:
            high = batch
    return low


def _next(known: Mapping[int, int], limit: int, low: int, high: int | None, turn: int) -> int:
    """The next batch to try, between the largest that fits and the smallest that does not."""
    points = sorted(batch for batch in known if batch)
    guess = 2 * low if high is None else (low + high) // 2
    if len(points) > 1 and turn < 12:
        near = sorted(points, key=lambda batch: abs(known[batch] - limit))[:2]
        one, other = sorted(near)
        slope = (known[other] - known[one]) / (other - one)
        if slope > 0:
            guess = int(one + (limit - known[one]) / slope)
            guess = guess + 1 if guess == low else guess
    least, most = low + 1, _MOST if high is None else high - 1
    return min(max(guess, least), most)
