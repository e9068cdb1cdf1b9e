"""The example calls of the methods to freeze."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import BadOptionValue, NotFreezable
from dovetail.frontends.freezing.call_form import CallForm, arguments_of, bound, call_form, signature_of
from dovetail.frontends.freezing.shapes import FreeSizes, free_sizes
from dovetail.frontends.structure import flatten


@dataclass(frozen=True, slots=True)
class Example:
    """A call of a method, its arguments bound. leaves: of the arguments."""

    form: CallForm
    leaves: tuple[Any, ...]

    def call(self, leaves: tuple[Any, ...] | list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and named arguments with these leaves."""
        args, kwargs = self.form.structure.put_together(leaves)
        return tuple(args), dict(kwargs)

    def free_sizes(self, wish: Any) -> FreeSizes:
        """Which of its sizes are free. Raises: BadDynamicShapes."""
        args, kwargs = self.call(self.leaves)
        names, arguments = arguments_of(self.form.signature, args, kwargs)
        return free_sizes(wish, names, arguments, [flatten(argument)[0] for argument in arguments])


def examples_of(model: torch.nn.Module, given: Any, taken: type) -> dict[str, Example]:
    """The example call of each method. taken: the class whose attributes cannot be names of methods.

    Raises: BadOptionValue for what is no call; NotFreezable for a method that does not exist.
    """
    if isinstance(given, torch.Tensor) or not isinstance(given, tuple | list | Mapping) or not given:
        raise _bad_example(given, "a tuple of arguments, or {method: (arguments, named arguments)}")
    calls = given if isinstance(given, Mapping) else {"forward": (tuple(given), {})}
    found = {}
    for method, call in calls.items():
        function = getattr(model, str(method), None)
        if not callable(function):
            hint = "name methods of the model, or give its arguments as a tuple"
            raise NotFreezable(what=f"{method!r}", reason=f"{type(model).__name__} has no such method", hint=hint)
        is_pair = isinstance(call, tuple | list) and len(call) == 2
        if not is_pair or not isinstance(call[0], tuple | list) or not isinstance(call[1], Mapping):
            raise _bad_example(call, f'{{"{method}": ((argument, ...), {{"name": argument}})}}')
        if method != "forward" and hasattr(taken, str(method)):
            hint = "give the method another name"
            raise NotFreezable(what=f"{method!r}", reason="frozen modules have a method of that name", hint=hint)
        signature = signature_of(method, function)
        args, kwargs = bound(signature, call[0], dict(call[1]))
        form = call_form(method, signature, args, kwargs)
        found[str(method)] = Example(form, tuple(flatten((args, kwargs))[0]))
    return found


def _bad_example(given: object, expected: str) -> BadOptionValue:
    kind = f"a {type(given).__name__}"
    return BadOptionValue(option="example_inputs", value=kind, reason="it is a call", expected=expected)
