"""Numbers and sizes that a step took from data when it ran in eager mode, by the line that asked for them.

They are the best guess at how branches on data go when the step is recorded on fakes, which have no numbers. A guess
that turns out wrong costs one call in eager mode: every branch is asked again when the program runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dovetail.capture.origins import OriginTracker
from dovetail.ir.program import Origin
from dovetail.ops.packed_sequences import PACK
from dovetail.ops.sparse import SORTED_PARTS
from dovetail.torch_compat.dispatch import DispatchMode, Overload, tags_of
from dovetail.torch_compat.modes import autocast_is_active_above
from dovetail.torch_compat.traced_numbers import Plain

_SPARSE_SUM = torch.ops.aten._sparse_addmm.default
_COALESCE = torch.ops.aten._coalesce.default
_PACK = torch.ops.aten._pack_padded_sequence.default
_NUMBERS = frozenset(getattr(torch.ops.aten, name).default for name in ("_local_scalar_dense", "equal", "allclose"))
FEW = 256  # elements of a tensor that is turned into a list of traced numbers
_TO_LIST: Any = torch.Tensor.tolist


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tensor was like in eager mode."""

    shape: tuple[int, ...]
    is_contiguous: bool
    dtype: torch.dtype
    device: torch.device


Results: TypeAlias = "tuple[Seen | None, ...]"
_SizeKey: TypeAlias = "tuple[str, int, str]"


class ItemLog(DispatchMode):
    """A dispatch mode that changes nothing.

    numbers: what `.item()` gave, by line, in order. sizes: what results were like whose sizes depend on data,
    by line and operator, in order.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[tuple[str, int], list[Plain]] = {}
        self.sizes: dict[_SizeKey, list[Results]] = {}
        self._origins = OriginTracker()
        self._depth = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _SPARSE_SUM and autocast_is_active_above():
            args = list(map(_as_autocast_does, args))  # its kernel calls what autocast casts, above dispatch modes only
        result = func(*args, **(kwargs or {}))
        if func in _NUMBERS and isinstance(result, bool | int | float):
            self.note_number(self._origins.here(), result)
        elif func is _COALESCE:
            self._note_results(SORTED_PARTS, (result.indices(), result.values()))
        elif func is _PACK:
            self._note_results(PACK, result)
        elif isinstance(func, Overload) and _sizes_depend_on_data(func, args):
            self._note_results(func, result)
        return result

    def _note_results(self, func: Overload, result: Any) -> None:
        origin = self._origins.here()
        self.sizes.setdefault((origin.file, origin.line, str(func)), []).append(results_seen(result))

    def note_number(self, origin: Origin, number: Plain) -> None:
        """A number was taken off a tensor at a line."""
        self.numbers.setdefault((origin.file, origin.line), []).append(number)

    def __enter__(self) -> ItemLog:
        self._depth += 1
        if self._depth == 1:  # torch enters modes again, around subgraphs
            self._watch_lists()
        super().__enter__()
        return self

    def _watch_lists(self) -> None:
        def listed(tensor: torch.Tensor) -> Any:
            made = _TO_LIST(tensor)
            if tensor.dim() and tensor.numel() <= FEW:
                origin = self._origins.here()
                for number in _TO_LIST(tensor.detach().reshape(-1)):
                    if isinstance(number, bool | int | float):
                        self.note_number(origin, number)
            return made

        setattr(torch.Tensor, "tolist", listed)  # noqa: B010, it shows no operator

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        if not self._depth:
            delattr(torch.Tensor, "tolist")


class ItemHints:
    """Hands out logged numbers and results, line by line, in order; the last one again when there are no more.

    is_log: a call was logged, and what it did not ask for is as good as any guess. Else nothing may depend on a guess.
    beyond: how much more than was logged the line has asked for that asked last.
    """

    def __init__(
        self,
        numbers: Mapping[tuple[str, int], Sequence[Plain]] | None = None,
        sizes: Mapping[_SizeKey, Sequence[Results]] | None = None,
        *,
        is_log: bool = True,
    ) -> None:
        self._numbers = numbers or {}
        self._sizes = sizes or {}
        self.is_log = is_log
        self.beyond = 0
        self._next: dict[tuple[str, int] | _SizeKey, int] = {}

    def knows(self, origin: Origin) -> bool:
        """Whether the numbers of a line may be relied on."""
        return self.is_log or (origin.file, origin.line) in self._numbers

    def next_at(self, origin: Origin, dtype: torch.dtype, otherwise: Plain | None = None) -> Plain:
        """The number for the next `.item()` of a line; `otherwise`, or 1 (or True), where nothing was logged."""
        key = (origin.file, origin.line)
        logged = self._numbers.get(key, ())
        place = self._place(key, len(logged))
        kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
        fitting = [number for number in (logged[place:] or logged[-1:]) if type(number) is kind]
        return fitting[0] if fitting else kind(1) if otherwise is None else otherwise

    def next_results(self, origin: Origin, func: Overload) -> Results:
        """What an operator gives the next time that a line calls it; () where nothing was logged."""
        key = (origin.file, origin.line, str(func))
        logged = self._sizes.get(key, ())
        place = self._place(key, len(logged))
        return next(iter(logged[place:] or logged[-1:]), ())

    def _place(self, key: tuple[str, int] | _SizeKey, count: int) -> int:
        place = self._next.get(key, 0)
        self._next[key] = place + 1
        self.beyond = place + 1 - count
        return place


def results_seen(result: object) -> Results:
    """What each result of an operator is like; None for what is no tensor."""
    items = result if isinstance(result, list | tuple) else [result]
    return tuple(
        Seen(tuple(x.shape), x.is_contiguous(), x.dtype, x.device) if isinstance(x, torch.Tensor) else None
        for x in items
    )


def _as_autocast_does(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor) or argument.dtype in (torch.float64, torch.complex64, torch.complex128):
        return argument
    return argument.to(torch.get_autocast_dtype(argument.device.type))


def _sizes_depend_on_data(func: Overload, args: Sequence[Any]) -> bool:
    """Whether the operator may give sizes that only data tell. Indices that are whole numbers do not."""
    if torch.Tag.dynamic_output_shape not in tags_of(func):
        return False
    lists = [argument for argument in args if isinstance(argument, list | tuple)]
    parts = [part for held in lists for part in held if isinstance(part, torch.Tensor)]
    return not parts or any(part.dtype not in _WHOLE for part in parts)


_WHOLE = frozenset({torch.int64, torch.int32})
