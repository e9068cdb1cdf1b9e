"""The donated tensors of a call: `donate=` names arguments, which contain tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail.errors import BadDonation, UnusableDonation
from dovetail.frontends.structure import flatten
from dovetail.torch_compat.subclasses import is_wrapper

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Donation:
    """Arguments that each call gives away.

    wishes: their names and positions. parameters: of the target, by name, as far as they are known.
    """

    wishes: tuple[str | int, ...] = ()
    parameters: Mapping[str, inspect.Parameter] | None = None

    @staticmethod
    def of(target: Callable[..., Any], donate: Sequence[str | int]) -> Donation:
        """Arguments of a function, or of a module's forward. Raises: BadDonation for one that it does not have."""
        if not donate:
            return Donation()
        called = target.forward if isinstance(target, torch.nn.Module) else target
        try:
            donation = Donation(tuple(donate), inspect.signature(called).parameters)
        except (TypeError, ValueError):  # written in C
            donation = Donation(tuple(donate))
        for wish in donation.wishes:
            donation.require(wish)
        return donation

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[torch.Tensor, str]]:
        """The tensors of a call that are given away, and what to call each. Raises: BadDonation, UnusableDonation."""
        for wish in self.wishes:
            for value in self._values(wish, args, kwargs):
                leaves = flatten(value)[0]
                if not leaves:
                    continue
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                name = f"argument {wish!r}" if value is leaves[0] else f"a tensor of argument {wish!r}"
                if not tensors and any(leaf is not None for leaf in leaves):
                    raise BadDonation(
                        donation=wish, reason="it is not a tensor, and contains none", known=self._known()
                    )
                for tensor in tensors:
                    if is_wrapper(tensor):
                        raise UnusableDonation(name=name, reason="it is a tensor that wraps others")
                    yield tensor, name

    def places(self, args: Sequence[Any], kwargs: Mapping[str, Any], everything: Sequence[Any]) -> dict[int, str]:
        """Where those tensors are among all tensors and arguments of the call, and what to call each.

        Raises: BadDonation; UnusableDonation where one of them is passed twice, or held by a module that is called.
        """
        found: dict[int, str] = {}
        for tensor, name in self.tensors(args, kwargs):
            places = [place for place, item in enumerate(everything) if item is tensor]
            if len(places) > 1:
                raise UnusableDonation(name=name, reason="the same tensor is passed twice, or held by a module as well")
            found[places[0]] = name
        return found

    def _values(self, wish: str | int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """What a call passes for an argument; nothing where its default is used."""
        names = list(self.parameters or ())
        if isinstance(wish, int):
            if wish < len(args):
                yield args[wish]
                return
            wish = names[wish] if wish < len(names) else ""
        kind = self.parameters[wish].kind if self.parameters and wish in self.parameters else None
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from args[names.index(wish) :]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from (value for name, value in kwargs.items() if name not in names)
        elif wish in kwargs:
            yield kwargs[wish]
        elif kind is not None and names.index(wish) < len(args) and not self._is_after_all(wish):
            yield args[names.index(wish)]

    def _is_after_all(self, name: str) -> bool:
        """Whether an argument is passed by its name alone."""
        assert self.parameters is not None, "it is one of them"
        return self.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY

    def require(self, wish: object) -> None:
        """Raise BadDonation unless a call can have the argument."""
        parameters = self.parameters or {}
        kinds = [parameter.kind for parameter in parameters.values()]
        if isinstance(wish, str):
            is_known = wish in parameters or inspect.Parameter.VAR_KEYWORD in kinds
        else:
            positional = [kind for kind in kinds if kind not in (*_VARIADIC, inspect.Parameter.KEYWORD_ONLY)]
            has_more = self.parameters is None or inspect.Parameter.VAR_POSITIONAL in kinds
            is_number = isinstance(wish, int) and not isinstance(wish, bool) and wish >= 0
            is_known = is_number and (has_more or wish < len(positional))  # type: ignore[operator]
        if not is_known:
            raise BadDonation(donation=wish, reason="there is no such argument", known=self._known())

    def _known(self) -> str:
        return "the names are not known; give positions" if self.parameters is None else ", ".join(self.parameters)


def donated_placeholders(
    placeholders: Sequence[fx.Node], example_inputs: Sequence[Any], donate: Sequence[str | int]
) -> dict[int, str]:
    """The inputs of a graph that each call gives away, and what to call them. Raises: BadDonation."""
    found: dict[int, str] = {}
    names = [node.name for node in placeholders]
    for wish in donate:
        known = [i for i, name in enumerate(names) if (wish == i and type(wish) is int) or wish == name]
        if not known:
            raise BadDonation(donation=wish, reason="there is no such placeholder", known=", ".join(names))
        if not isinstance(example_inputs[known[0]], torch.Tensor) or is_wrapper(example_inputs[known[0]]):
            raise BadDonation(donation=wish, reason="it is not a plain tensor", known=", ".join(names))
        found[known[0]] = f"argument {wish!r}"
    return found
