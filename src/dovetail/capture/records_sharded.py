"""Operators of tensors that are spread over processes: their own class takes each apart, and its parts are recorded.

    w.mul_(1 - lr * decay)     DTensor's code    ->    mul_(w_local, sub_3)

Numbers that are traced pass through that code as plain floats that stand for them: it remembers operators by their
arguments, longer than a recording lasts. Where it may compute with a number itself (the order of a norm is part of how
a tensor is spread), it gets the number, and the program asks for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.capture.operators import refuse_leaves
from dovetail.capture.step_questions import AskingRecorder
from dovetail.torch_compat.traced_numbers import fixed_number, is_traced, number_now

_FIRST_TOKEN = 0x3FE2_9D4C_7A51_0000  # the bits of a number near 0.58
_OF_ELEMENTS = frozenset(
    {"add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp", "pow", "adam", "adamw", "sgd"}
)


class RecordsSharded(AskingRecorder):
    """See the module docstring."""

    _tokens: dict[float, Any]

    def token_for(self, number: Any) -> float:
        """A plain float that no code computes with by chance; where an operator gets it, it gets the traced number.

        For arguments that torch's parser, or a tensor's class, takes as plain floats only. What the float is matters to
        nobody: it must go straight to an operator.
        """
        token = struct.unpack("<d", struct.pack("<q", _FIRST_TOKEN + len(self._tokens)))[0]
        self._tokens[token] = number
        return float(token)

    def meant(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with the traced numbers that plain floats stand for."""
        return [self._meant(x) for x in args], {name: self._meant(x) for name, x in (kwargs or {}).items()}

    def _meant(self, argument: Any) -> Any:
        if type(argument) is list and any(type(item) is float for item in argument):
            return [self._meant(item) for item in argument]
        return self._tokens.get(argument, argument) if type(argument) is float else argument

    def leave_to_class(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Let the class of a tensor that is made of others take an operator apart."""
        keywords = dict(kwargs or {})
        if any(map(_has_traced, (*args, *keywords.values()))):
            number = self._stand_in if _takes_each_element(func) else fixed_number
            with self:
                return func(
                    *(_with_plain(x, number) for x in args),
                    **{name: _with_plain(x, number) for name, x in keywords.items()},
                )
        refuse_leaves(args, self._values, self._origins)
        return NotImplemented

    def _stand_in(self, number: Any) -> Any:
        return self.token_for(number) if type(number_now(number)) is float else fixed_number(number)


def _takes_each_element(func: Any) -> bool:
    """Whether an operator only hands its numbers to what it does to each element."""
    name: str = func.overloadpacket.__name__.strip("_")
    return func.namespace == "aten" and name.removeprefix("foreach_").removeprefix("fused_") in _OF_ELEMENTS


def _with_plain(argument: Any, plain: Callable[[Any], Any]) -> Any:
    if isinstance(argument, list | tuple) and any(map(is_traced, argument)):
        return type(argument)([plain(x) if is_traced(x) else x for x in argument])
    return plain(argument) if is_traced(argument) else argument


def _has_traced(argument: Any) -> bool:
    return is_traced(argument) or (isinstance(argument, list | tuple) and any(map(is_traced, argument)))
