"""How a frozen method is called: binding arguments, and refusing calls that it was not frozen for.

Positional and named arguments are bound by the method's own signature, with its defaults, so a call can
pass them differently from the example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dovetail.deferred import deferred
from dovetail.errors import FrozenCallMismatch, NotFreezable
from dovetail.frontends.freezing.nesting import Captured, Nesting
from dovetail.frontends.structure import flatten
from dovetail.ir.convert import unsupported_class, unsupported_kind
from dovetail.torch_compat.subclasses import is_wrapper

if TYPE_CHECKING:
    from dovetail.frontends.freezing import held_values
    from dovetail.reach import contents
else:
    held_values = deferred("dovetail.frontends.freezing.held_values")
    contents = deferred("dovetail.reach.contents")

_PLAIN_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the arguments. kind: of a tensor, its dtype, device and number of dimensions; else None.

    value: of anything else. held: what that held in the example, see `held_in`; of a file's, nothing does.
    """

    name: str
    kind: tuple[torch.dtype, torch.device, int] | None
    value: object = None
    held: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CallForm:
    """What calls of a method look like."""

    method: str
    signature: inspect.Signature
    structure: Nesting
    leaves: tuple[Leaf, ...]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call. Raises: TypeError as the method would; FrozenCallMismatch with the reason."""
        try:
            found = self.structure.take_apart(bound(self.signature, args, kwargs))
        except ValueError as error:
            hint = "call it like example_inputs, or freeze for calls like this one"
            raise mismatch(self.method, f"its arguments are nested differently: {error}", hint) from None
        for leaf, given in zip(self.leaves, found, strict=True):
            if leaf.kind is None:
                if given is not leaf.value and contents.value_key(given) != contents.value_key(leaf.value):
                    raise self._refusal(leaf, f"{_short(leaf.value)}", _short(given))
                if leaf.held and held_values.held_in(given) != leaf.held:
                    hint = "pass a value like the example's, or freeze for calls like this one"
                    raise mismatch(self.method, f"{leaf.name} holds something else than in the example", hint)
            elif not isinstance(given, torch.Tensor):
                raise self._refusal(leaf, "a tensor", _short(given))
            elif (given.dtype, given.device, given.dim()) != leaf.kind:
                raise self._refusal(leaf, _kind_text(leaf.kind), _kind_text((given.dtype, given.device, given.dim())))
            elif type(given) not in _PLAIN_CLASSES or given.layout is not torch.strided or given.is_nested:
                self._refuse_kind(leaf, given)
        return found

    def _refuse_kind(self, leaf: Leaf, given: torch.Tensor) -> None:
        """Raise for a tensor that is not bytes at strides, or of a class that sees no operators of the program."""
        refused = unsupported_kind(given) or unsupported_class(given)
        if refused is None and is_wrapper(given):
            refused = f"a {type(given).__name__}, which wraps other tensors", "call the model itself"
        if refused is not None:
            raise mismatch(self.method, f"{leaf.name} is {refused[0]}, and was a plain tensor", refused[1])

    def _refusal(self, leaf: Leaf, expected: str, given: str) -> FrozenCallMismatch:
        reason = f"{leaf.name} is {given}, and was {expected}"
        return mismatch(self.method, reason, "pass the example's value, or freeze for calls like this one")


def mismatch(method: str, reason: str, hint: str, because: str = "") -> FrozenCallMismatch:
    """The error for a call that a method was not frozen for."""
    because = because or "freezing fixed everything except the contents of tensors and symbolic sizes"
    return FrozenCallMismatch(name=method, reason=reason, hint=hint, because=because)


def bound(signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments as the signature has them: as many as possible by position, defaults included."""
    found = signature.bind(*args, **kwargs)
    found.apply_defaults()
    return found.args, found.kwargs


def signature_of(method: str, function: Callable[..., Any]) -> inspect.Signature:
    """The signature by which calls are bound. Raises: NotFreezable for a function that has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        hint = "wrap it in a module whose forward names its arguments"
        raise NotFreezable(what=method, reason=f"its arguments are not known ({error})", hint=hint) from error


def call_form(method: str, signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> CallForm:
    """The form of an example call. Raises: TypeError when the method does not take it."""
    leaves, structure = flatten(bound(signature, args, kwargs))
    names = _leaf_names(signature, args, kwargs)
    leaf_forms = tuple(_leaf(n, x) for n, x in zip(names, leaves, strict=True))
    return CallForm(method, signature, Captured(structure, len(leaves)), leaf_forms)


def arguments_of(
    signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[str], list[Any]]:
    """Name and value of each argument, in the order of their leaves; of `*args` and `**kwargs` each by itself."""
    positional, named = bound(signature, args, kwargs)
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{k}]" for k in range(len(positional) - len(names))]
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*names, *named], [*positional, *named.values()]


def same_tensors(leaves: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Each leaf that is the very tensor of an earlier one, with that one."""
    first: dict[int, int] = {}
    tensors = [(place, first.setdefault(id(x), place)) for place, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    return tuple([(place, earlier) for place, earlier in tensors if place != earlier])


def _leaf_names(signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in zip(*arguments_of(signature, args, kwargs), strict=True):
        count = len(flatten(value)[0])
        found += [name] if count == 1 else [f"{name}, item {k}" for k in range(count)]
    return found


def _leaf(name: str, item: Any) -> Leaf:
    if isinstance(item, torch.Tensor):
        return Leaf(name, (item.dtype, item.device, item.dim()))
    return Leaf(name, None, item, held_values.held_in(item))


def _kind_text(kind: tuple[torch.dtype, torch.device, int]) -> str:
    dtype, device, rank = kind
    return f"a tensor of {rank} dimensions, {str(dtype).removeprefix('torch.')} on {device}"


def _short(item: object) -> str:
    text = f"a tensor of shape {tuple(item.shape)}" if isinstance(item, torch.Tensor) else repr(item)
    return text if len(text) <= 60 else f"{text[:57]}..."
