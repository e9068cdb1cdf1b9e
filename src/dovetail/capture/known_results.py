"""Results of operators on fakes, made again from what an equal application gave before.

Layers and optimizers repeat: the same operator on tensors of the same layout, hundreds of times. Torch's fakes answer
each time with 100 us of questions of their own. Here the first answer is kept, by operator and descriptions of the
arguments, and later results are built from it: new memory, a view of the first argument, or that argument itself.

Kept is only what is plain: no symbolic size, no complex number, no result that shares memory in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.capture.known_numbers import tensors_in
from dovetail.ir.program import Value
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import Overload, schema_of, storage_key
from dovetail.torch_compat.fakes import FakeMode, Layout, blank_fake, has_plain_bytes, holds_numbers, view_of_fake

_BY_VALUE = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


@dataclass(frozen=True, slots=True)
class _Answer:
    """kind: "new", "view" or "same". layouts: of each result. sequence: what the operator returns them in."""

    kind: str
    layouts: tuple[Layout, ...] = ()
    sequence: type | None = None


class _Unknown(Exception):
    """An argument, or a result, is not plain."""


class KnownResults:
    """See the module docstring. values: of the tensors that are recorded, by identity, as the recorder changes them."""

    def __init__(self, mode: FakeMode, values: Mapping[int, Value]) -> None:
        self._mode = mode
        self._values = values
        self._answers: dict[object, _Answer | None] = {}

    def run(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """What the operator gives on these fakes; raises what it raises, where no equal one was answered."""
        if self._mode.shape_env is not None:  # symbolic sizes: it may have to note what it assumes
            return func(*args, **keywords)
        try:
            key = (
                id(func),
                torch.get_default_dtype(),
                tuple(map(self._key, args)),
                tuple((name, self._key(argument)) for name, argument in keywords.items()),
            )
        except _Unknown:
            return func(*args, **keywords)
        if key not in self._answers:
            result = func(*args, **keywords)
            self._answers[key] = self._answer(func, args, keywords, result)
            return result
        answer = self._answers[key]
        return func(*args, **keywords) if answer is None else self._made(answer, args)

    def _key(self, argument: Any) -> object:
        if isinstance(argument, torch.Tensor):
            value = self._values.get(id(argument))
            if value is None or not value.is_tensor or value.tensor.dtype.is_complex or holds_numbers(argument):
                raise _Unknown
            return (value.tensor.layout(), value.tensor.offset)
        if type(argument) in (list, tuple):
            return tuple(map(self._key, argument))
        if type(argument) not in _BY_VALUE:
            raise _Unknown
        return (type(argument), argument)

    def _made(self, answer: _Answer, args: Sequence[Any]) -> Any:
        if answer.kind == "same":
            return args[0]
        if answer.kind == "view":
            return view_of_fake(self._mode, args[0], answer.layouts[0])
        made = [blank_fake(self._mode, layout) for layout in answer.layouts]
        return made[0] if answer.sequence is None else answer.sequence(made)

    def _answer(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> _Answer | None:
        returns = schema_of(func).returns
        items = list(result) if type(result) in (list, tuple) else [result]
        if not items or not all(isinstance(item, torch.Tensor) and has_plain_bytes(item) for item in items):
            return None
        if facts_of(func).writes:
            is_same = facts_of(func).writes == (0,) and len(returns) == 1 and returns[0][2] and result is args[0]
            return _Answer("same") if is_same else None
        layouts = tuple(map(Layout.of, items))
        given = {storage_key(x) for x in tensors_in((*args, *keywords.values()))}
        made = {storage_key(item) for item in items}
        if given.isdisjoint(made):
            is_new = len(made) == len(items) and all(layout.fills(x) for x, layout in zip(items, layouts, strict=True))
            return _Answer("new", layouts, type(result) if type(result) in (list, tuple) else None) if is_new else None
        is_view = len(items) == 1 and items[0] is result and isinstance(args[0], torch.Tensor)
        is_view = is_view and result is not args[0] and storage_key(args[0]) in made
        return _Answer("view", layouts) if is_view else None
