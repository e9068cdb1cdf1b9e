"""Operators that act on what is outside: fakes must not run them.

Torch knows the numbers of some fakes (of `torch.tensor([3])`, and of what is computed of such tensors alone), and runs
operators for real where it knows those of all operands. One that sends them would do so while a step is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from dovetail.torch_compat.dispatch import Overload, schema_of

_ACTING: set[Overload] = set()


def let_act(ops: Iterable[Overload]) -> None:
    """Note operators that act on what is outside."""
    _ACTING.update(ops)


@contextmanager
def numbers_unknown(op: object, operands: Sequence[Any]) -> Iterator[None]:
    """While active, torch does not know the numbers of fakes that an operator takes that acts on what is outside.

    What it writes has none that are known afterwards, whatever else shares its memory.
    """
    if op not in _ACTING or not isinstance(op, Overload):
        yield
        return
    read: list[FakeTensor] = []
    for argument, operand in zip(schema_of(op).arguments, operands, strict=False):
        for item in operand if isinstance(operand, list | tuple) else (operand,):
            if isinstance(item, FakeTensor) and item.constant is not None:
                if argument.is_write:
                    item.fake_mode.fake_tensor_converter.invalidate_constant_aliases(item.constant)
                else:
                    read.append(item)
    held = [(item, item.constant) for item in read if item.constant is not None]
    for item, _ in held:
        item.constant = None
    try:
        yield
    finally:
        for item, constant in held:
            item.constant = constant
