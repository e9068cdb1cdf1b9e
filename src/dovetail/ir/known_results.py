"""Results of operators on fakes, made again from what an equal application gave before.

Layers and optimizers repeat: the same operator on tensors of the same layout, hundreds of times. Torch's fakes answer
each time with 100 us of questions of their own. Here the first answer is kept, by operator and descriptions of the
arguments, and later results are built from it: new memory, a view of the first argument, or that argument itself.

Kept is only what is plain: no symbolic size, no complex number, no result that shares memory in another way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dovetail.ir.program import Value
from dovetail.torch_compat.dispatch import Overload, schema_of, storage_key
from dovetail.torch_compat.fake_layouts import run_on_fakes
from dovetail.torch_compat.fakes import (
    FakeMode,
    Layout,
    blank_fake,
    has_plain_bytes,
    holds_numbers,
    mode_of,
    view_of_fake,
)
from dovetail.torch_compat.nested import tensors_in

_BY_VALUE = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


@dataclass(frozen=True, slots=True)
class _Answer:
    """kind: "new", "view" or "same". layouts: of each result. sequence: what the operator returns them in."""

    kind: str
    layouts: tuple[Layout, ...] = ()
    sequence: type | None = None


Answers: TypeAlias = "dict[object, tuple[Overload, _Answer | None]]"  # with the operator, so that its id stays its own


class _Unknown(Exception):
    """An argument, or a result, is not plain."""


class KnownResults:
    """See the module docstring.

    values: of the tensors that are recorded, by identity, as the recorder changes them. storages: those that are known,
    by `storage_key`. answers: that were given so far; recordings of one call may share them.
    """

    def __init__(self, mode: FakeMode, values: Mapping[int, Value], storages: Collection[int] = ()) -> None:
        self._mode = mode
        self._values = values
        self._storages = storages
        self.answers: Answers = {}

    def run(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any], said: Any = None) -> Any:
        """What the operator gives on these fakes; raises what it raises, where no equal one was answered.

        said: fakes that are said to be its results. They are given back where they are, and an answer is known.
        """
        try:
            key = (
                id(func),
                torch.get_default_dtype(),
                tuple(map(self._key, args)),
                tuple((name, self._key(argument)) for name, argument in keywords.items()),
            )
        except _Unknown:
            return run_on_fakes(func, args, keywords)
        if key not in self.answers:
            result = run_on_fakes(func, args, keywords)
            self.answers[key] = func, self._answer(func, args, keywords, result)
            return result
        _, answer = self.answers[key]
        if answer is None or (answer.kind == "view" and _is_normal_in_inference(args[0])):
            return run_on_fakes(func, args, keywords)
        found = self._as_said(answer, args, said)
        return self._made(answer, args) if found is None else found

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

    def _as_said(self, answer: _Answer, args: Sequence[Any], said: Any) -> Any:
        """The fakes that are said to be the results, if they look like them, and lie where those would."""
        items = list(said) if type(said) in (list, tuple) else [said]
        if said is None or answer.kind == "same" or len(items) != len(answer.layouts):
            return None
        if not all(
            mode_of(x) is self._mode and _is_like(layout, x) for layout, x in zip(answer.layouts, items, strict=True)
        ):
            return None
        keys = {storage_key(item) for item in items}
        if answer.kind == "view":
            return said if keys == {storage_key(args[0])} else None
        is_new = len(keys) == len(items) and not any(key in self._storages for key in keys)
        return (said if answer.sequence is None else answer.sequence(items)) if is_new else None

    def _made(self, answer: _Answer, args: Sequence[Any]) -> Any:
        if answer.kind == "same":
            return args[0]
        if answer.kind == "view":
            return view_of_fake(self._mode, args[0], answer.layouts[0])
        made = [blank_fake(self._mode, layout) for layout in answer.layouts]
        return made[0] if answer.sequence is None else answer.sequence(made)

    def _answer(self, func: Overload, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> _Answer | None:
        returns = schema_of(func).returns
        written = [place for place, argument in enumerate(schema_of(func).arguments) if argument.is_write]
        if written:
            is_same = written == [0] and len(returns) == 1 and returns[0][2] and result is args[0]
            return _Answer("same") if is_same else None
        items = list(result) if type(result) in (list, tuple) else [result]
        if not items or not all(isinstance(item, torch.Tensor) and has_plain_bytes(item) for item in items):
            return None
        layouts = tuple(map(Layout.of, items))
        given = {storage_key(x) for x in tensors_in((*args, *keywords.values()))}
        made = {storage_key(item) for item in items}
        if given.isdisjoint(made):
            is_new = len(made) == len(items) and all(layout.fills(x) for x, layout in zip(items, layouts, strict=True))
            return _Answer("new", layouts, type(result) if type(result) in (list, tuple) else None) if is_new else None
        is_view = len(items) == 1 and items[0] is result and isinstance(args[0], torch.Tensor)
        is_view = is_view and result is not args[0] and storage_key(args[0]) in made
        return _Answer("view", layouts) if is_view else None


def _is_normal_in_inference(base: torch.Tensor) -> bool:
    """Whether views of a tensor count its writes, where other new tensors count none."""
    return torch.is_inference_mode_enabled() and not base.is_inference()


def _is_like(layout: Layout, fake: torch.Tensor) -> bool:
    if not has_plain_bytes(fake) or fake.dtype is not layout.dtype or fake.device.type != layout.device.type:
        return False
    is_there = layout.device.type == "cpu" or fake.device == layout.device  # fakes say "cpu:0" where tensors say "cpu"
    place = (tuple(fake.shape), fake.stride(), fake.storage_offset())
    return is_there and place == (layout.shape, layout.stride, layout.offset)
