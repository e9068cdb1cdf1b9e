"""Checking inputs at the boundary, before any work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dovetail.capture.inputs import InputSpec
from dovetail.errors import UnsupportedDevice, UnsupportedTensor
from dovetail.frontends.untested_devices import tell_if_untested
from dovetail.ir.convert import unsupported_class, unsupported_kind
from dovetail.ir.sizes import Number
from dovetail.torch_compat.sparse import form_of
from dovetail.torch_compat.subclasses import is_wrapper, take_apart
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES, hint_of, symbol_name_at_first
from dovetail.torch_compat.traced_numbers import handle_of, is_traced, number_now

_DEVICES = ("cpu", "cuda")


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise unless dovetail supports the tensor's layout, class and device; warn where it was never run."""
    refused = unsupported_kind(tensor)
    if refused is not None and form_of(tensor) is None:
        raise UnsupportedTensor(name=name, kind=refused[0], hint=refused[1])
    if is_wrapper(tensor):
        for place, part in enumerate(take_apart(tensor)[0]):
            check_tensor(f"{name}.{place}", part)
        return
    if tensor.device.type not in _DEVICES:
        raise UnsupportedDevice(name=name, device=str(tensor.device))
    tell_if_untested(tensor.device)


def check_class(name: str, tensor: torch.Tensor) -> None:
    """Raise for a tensor whose class has a say in what operators do: where no Dynamo asks it, nobody does."""
    refused = unsupported_class(tensor)
    if refused is not None:
        raise UnsupportedTensor(name=name, kind=refused[0], hint=refused[1])


def specs_with_parts(
    inputs: Sequence[Any], specs: Sequence[InputSpec], fake: Callable[[torch.Tensor], torch.Tensor]
) -> list[InputSpec]:
    """The specs, then those of the parts, in the order of `with_parts`. fake: the fake twin of a part."""
    found = list(specs)
    for place, (tensor, spec) in enumerate(zip(inputs, specs, strict=True)):
        if is_wrapper(tensor):
            parts, layout = take_apart(tensor)
            first = len(found)
            value = fake(tensor) if tensor.layout is not torch.strided else None
            found[place] = replace(spec, value=value, layout=layout, parts=tuple(range(first, first + len(parts))))
            seen = parts if value is None else [part.data for part in parts]  # no views of what is not strided
            found += [InputSpec(f"{spec.name}_part_{k}", spec.role, fake(part)) for k, part in enumerate(seen)]
    return found


def size_hints(specs: Sequence[InputSpec]) -> dict[str, Number]:
    """A number for each symbol among the inputs."""
    hints: dict[str, Number] = {}
    for spec in specs:
        if spec.parts:  # which are among the specs
            continue
        numbers = (
            [spec.value] if not isinstance(spec.value, torch.Tensor) else [*spec.value.shape, *spec.value.stride()]
        )
        for number in numbers:
            if is_traced(number):
                hints[str(handle_of(number))] = number_now(number)
            elif isinstance(number, SYMBOLIC_TYPES):
                name, hint = symbol_name_at_first(number), hint_of(number)
                if name is not None and hint is not None:
                    hints[name] = hint
    return hints
