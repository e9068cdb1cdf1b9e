"""The example calls of the methods to freeze."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.errors import BadOptionValue, NotFreezable
from dovetail.frontends.freezing.call_form import CallForm, arguments_of, bound, call_form, same_tensors, signature_of
from dovetail.frontends.freezing.pool import copy_of
from dovetail.frontends.freezing.shapes import FreeSizes, free_sizes
from dovetail.frontends.structure import flatten


@dataclass(frozen=True, slots=True)
class Example:
    """A call of a method. leaves: of its arguments as they are bound, defaults included.

    positional, named: how many arguments were given by position, and the names of those that were given by name.
    own: names of those that were not, but have tensors as defaults: they are given as the others are.
    """

    form: CallForm
    leaves: tuple[Any, ...]
    positional: int
    named: tuple[str, ...]
    own: frozenset[str] = frozenset()

    def call(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they were given in the example, with these leaves.

        A method may tell apart what is given by position, by name and not at all.
        """
        args, kwargs = self.form.structure.put_together(leaves)
        names, values = arguments_of(self.form.signature, args, kwargs)
        known = dict(zip(names, values, strict=True))
        return values[: self.positional], {name: known[name] for name in self.named}

    def order(self) -> list[int]:
        """For each leaf of the arguments as they were given, its place among those that are bound."""
        return [int(place) for place in flatten(self.call(range(len(self.leaves))))[0]]

    def apart(self) -> Example:
        """The same call with a copy wherever a tensor is there again."""
        again = {place for place, _ in same_tensors(self.leaves)}
        return replace(self, leaves=tuple([copy_of(x) if k in again else x for k, x in enumerate(self.leaves)]))

    def free_sizes(self, wish: Any) -> FreeSizes:
        """Which of its sizes are free. Raises: BadDynamicShapes."""
        args, kwargs = self.form.structure.put_together(self.leaves)
        names, arguments = arguments_of(self.form.signature, args, kwargs)
        found = [flatten(argument)[0] for argument in arguments]
        if wish is None:  # a default says nothing of the sizes of others
            found = [[None] * len(leaves) if n in self.own else leaves for n, leaves in zip(names, found, strict=True)]
        return free_sizes(wish, names, arguments, found)


def examples_of(
    model: torch.nn.Module, given: Any, taken: type, named: Mapping[str, Any] | None = None
) -> dict[str, Example]:
    """The example call of each method. taken: the class whose attributes cannot be names of methods.

    named: arguments of forward that are given by name.
    Raises: BadOptionValue for what is not a call; NotFreezable for a method that does not exist.
    """
    found = {}
    for method, call in _calls(model, given, named).items():
        function = getattr(model, str(method), None)
        if not callable(function):
            hint = "name methods of the model, or give the arguments of its forward as a tuple or by their names"
            raise NotFreezable(what=f"{method!r}", reason=f"{type(model).__name__} has no such method", hint=hint)
        if not _is_pair(call):
            raise _bad_example(call, f'{{"{method}": ((argument, ...), {{"name": argument}})}}')
        if method != "forward" and hasattr(taken, str(method)):
            hint = "give the method another name"
            raise NotFreezable(what=f"{method!r}", reason="frozen modules have a method of that name", hint=hint)
        signature = signature_of(method, function)
        try:
            args, kwargs = bound(signature, call[0], dict(call[1]))
        except TypeError as error:
            expected = f"the arguments of {method}{signature}"
            raise _bad_example(call, expected, f"{method} cannot be called so: {error}") from None
        form = call_form(method, signature, args, kwargs)
        leaves = tuple(flatten((args, kwargs))[0])
        own = _tensor_defaults(signature, len(call[0]), call[1])
        by_place = [place + 1 for place, parameter in own.items() if parameter.kind is parameter.POSITIONAL_ONLY]
        named_too = [one.name for one in own.values() if one.kind is not one.POSITIONAL_ONLY]
        found[str(method)] = Example(
            form,
            leaves,
            max([len(call[0]), *by_place]),
            (*call[1], *named_too),
            frozenset(one.name for one in own.values()),
        )
    return found


def _tensor_defaults(
    signature: inspect.Signature, positional: int, named: Mapping[str, Any]
) -> dict[int, inspect.Parameter]:
    """The arguments, by their places, that a call leaves out and that have tensors as defaults.

    Another call can give other tensors, so programs have to read them.
    """
    return {
        place: parameter
        for place, parameter in enumerate(signature.parameters.values())
        if place >= positional
        and parameter.name not in named
        and parameter.default is not parameter.empty
        and any(isinstance(leaf, torch.Tensor) for leaf in flatten(parameter.default)[0])
    }


def _calls(model: torch.nn.Module, given: Any, named: Mapping[str, Any] | None) -> Mapping[Any, Any]:
    """For each method, its arguments and those by name. Raises: BadOptionValue."""
    expected = "a tuple of arguments, arguments by their names, or {method: (arguments, named arguments)}"
    if isinstance(given, torch.Tensor) or not isinstance(given, tuple | list | Mapping):
        raise _bad_example(given, expected)
    if not given and not named:
        raise _bad_example(given, expected, "it is a call, and holds no argument")
    if named is not None and not (isinstance(named, Mapping) and all(isinstance(name, str) for name in named)):
        kind = f"a {type(named).__name__}"
        reason, wanted = "it names arguments of forward", '{"name": argument}'
        raise BadOptionValue(option="example_kwargs", value=kind, reason=reason, expected=wanted)
    if not isinstance(given, Mapping):
        return {"forward": (tuple(given), named or {})}
    if given and all(map(_is_pair, given.values())):
        if named:
            reason = "example_inputs names the arguments of each method"
            expected = f'{{"forward": ((argument, ...), {{"{next(iter(named))}": argument}})}} there'
            raise BadOptionValue(option="example_kwargs", value=named, reason=reason, expected=expected)
        return given
    if _names_arguments(model, given):
        return {"forward": ((), {**given, **(named or {})})}
    return given


def _is_pair(call: Any) -> bool:
    is_pair = isinstance(call, tuple | list) and len(call) == 2
    return is_pair and isinstance(call[0], tuple | list) and isinstance(call[1], Mapping)


def _names_arguments(model: torch.nn.Module, given: Mapping[Any, Any]) -> bool:
    """Whether these are arguments of forward by name."""
    parameters = signature_of("forward", model.forward).parameters.values()
    names = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_more = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return all(isinstance(name, str) and (name in names or takes_more) for name in given)


def _bad_example(given: object, expected: str, reason: str = "it is a call") -> BadOptionValue:
    kind = f"a {type(given).__name__}"
    return BadOptionValue(option="example_inputs", value=kind, reason=reason, expected=expected)
