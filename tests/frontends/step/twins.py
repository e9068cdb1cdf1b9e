"""What a training loop has in hands, built twice from one seed: one side for eager, the other to be compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dovetail.pipeline.differential import same_bits

Step = Callable[..., Any]


class Differs(AssertionError):
    """The compiled side did something else than the eager one."""


@dataclass(frozen=True)
class Call:
    """One call of a step: which of the steps of a side, and with what."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    step: str = "step"


def _nothing(number: int) -> None:
    del number


def _nothing_around(number: int) -> AbstractContextManager[Any]:
    del number
    return nullcontext()


@dataclass
class Twin:
    """One side of a comparison.

    steps: the user's step functions, by name. call: what the loop calls in its turn k, with tensors made for this call.
    attributes: numbers and objects that belong to the user and that the step may change. before: what the loop does
    before turn k (a scheduler outside the step, a changed setting). around: a context that turn k is called in.
    """

    steps: dict[str, Step]
    call: Callable[[int], Call]
    models: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    schedulers: dict[str, Any] = field(default_factory=dict)
    scalers: dict[str, Any] = field(default_factory=dict)
    attributes: Callable[[], Mapping[str, Any]] = dict
    before: Callable[[int], None] = _nothing
    around: Callable[[int], AbstractContextManager[Any]] = _nothing_around

    def state(self, *, grads: bool) -> dict[str, Any]:
        """All that must be equal after each call, as nested containers. grads: whether `.grad` is a part of it."""
        return {
            **{f"model {name}": _module_state(model, grads) for name, model in self.models.items()},
            **{f"optimizer {name}": _optimizer_state(opt) for name, opt in self.optimizers.items()},
            **{f"scheduler {name}": it.state_dict() for name, it in self.schedulers.items()},
            **{f"scaler {name}": it.state_dict() for name, it in self.scalers.items()},
            "attributes": dict(self.attributes()),
        }

    def hooks(self) -> list[list[int]]:
        """Identities of all hooks of modules, parameters and optimizers."""
        owners: list[Any] = [m for model in self.models.values() for m in model.modules()]
        owners += [p for model in self.models.values() for p in model.parameters()]
        owners += [*self.optimizers.values()]
        return [sorted(map(id, table.values())) for owner in owners for table in _hook_tables(owner)]


def _hook_tables(owner: Any) -> list[Mapping[Any, Any]]:
    if isinstance(owner, Tensor):
        return [owner._backward_hooks or {}, owner._post_accumulate_grad_hooks or {}]
    return [held for key, held in sorted(vars(owner).items()) if key.endswith("hooks") and isinstance(held, dict)]


def _module_state(model: nn.Module, grads: bool) -> dict[str, Any]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {
        "parameters": parameters,
        "buffers": dict(model.named_buffers(remove_duplicate=False)),
        "requires_grad": {name: p.requires_grad for name, p in parameters.items()},
        "is_leaf": {name: p.is_leaf for name, p in parameters.items()},
        "training": {name: module.training for name, module in model.named_modules()},
        **({"grads": {name: p.grad for name, p in parameters.items()}} if grads else {}),
    }


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state_dict()
    return {**state, "defaults": dict(optimizer.defaults)}


# --- comparing --------------------------------------------------------------------------------------------------------


def forget_freed(wanted: Any, found: Any) -> None:
    """Leave out gradients that a compiled step has freed: it may, where the step begins by clearing them."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            if name == "grads":
                for label in [label for label, gradient in found[name].items() if gradient is None]:
                    value[label] = None
            elif isinstance(found, dict) and name in found:
                forget_freed(value, found[name])
    elif isinstance(wanted, list):
        for value, other in zip(wanted, found, strict=True):
            forget_freed(value, other)


def difference(wanted: Any, found: Any, path: str = "") -> str | None:
    """Where two nested containers differ first, in words, or None. NaN equals NaN; 1, 1.0 and True all differ."""
    if type(wanted) is not type(found):
        return f"{path}: eager has a {type(wanted).__name__} ({_short(wanted)}), and here is {_short(found)}"
    if isinstance(wanted, Tensor):
        if wanted.layout is not torch.strided and wanted.layout is found.layout:
            wanted, found = wanted.to_dense(), found.to_dense()
        alike = is_lazy(wanted) or (wanted.device == found.device and same_bits(wanted.detach(), found.detach()))
        return None if alike else f"{path}: {_tensors_differ(wanted, found)}"
    if isinstance(wanted, Mapping):
        if list(wanted) != list(found):
            return f"{path}: eager has the keys {_short(list(wanted))}, and here are {_short(list(found))}"
        return _first(difference(wanted[key], found[key], f"{path}[{key!r}]") for key in wanted)
    if isinstance(wanted, (list, tuple)):
        if len(wanted) != len(found):
            return f"{path}: eager has {len(wanted)} items, and here are {len(found)}"
        pairs = zip(wanted, found, strict=True)
        return _first(difference(a, b, f"{path}[{k}]") for k, (a, b) in enumerate(pairs))
    if isinstance(wanted, float):
        same = wanted == found and math.copysign(1, wanted) == math.copysign(1, found)
        same = same or (math.isnan(wanted) and math.isnan(found))
        return None if same else f"{path}: eager has {wanted!r}, and here is {found!r}"
    if isinstance(wanted, (int, str, bytes, type(None), complex, set, frozenset, torch.dtype)):
        return None if wanted == found else f"{path}: eager has {_short(wanted)}, and here is {_short(found)}"
    return None  # another object, of the same type


def _first(found: Any) -> str | None:
    return next((item for item in found if item is not None), None)


def _tensors_differ(wanted: Tensor, found: Tensor) -> str:
    a, b = _kind_of(wanted), _kind_of(found)
    if a != b:
        return f"eager has {a}, and here is {b}"
    largest = (wanted.detach().double() - found.detach().double()).abs().max().item() if wanted.numel() else 0
    return f"{a} differs from eager by up to {largest:.3g}: {_short(wanted)}, and here {_short(found)}"


def _kind_of(tensor: Tensor) -> str:
    return f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()} {tensor.device}"


def _short(item: Any) -> str:
    text = repr(item.detach().flatten()[:4].tolist() if isinstance(item, Tensor) else item)
    return text if len(text) < 300 else text[:300] + "..."


def labelled_tensors(item: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """Every tensor in nested containers, with where it is, in order."""
    if isinstance(item, Tensor):
        return [(path, item)]
    if isinstance(item, Mapping):
        return [pair for key, value in item.items() for pair in labelled_tensors(value, f"{path}[{key!r}]")]
    if isinstance(item, (list, tuple)):
        return [pair for key, value in enumerate(item) for pair in labelled_tensors(value, f"{path}[{key}]")]
    return []


def sharing(tensors: Sequence[tuple[str, Tensor]]) -> list[list[str]]:
    """Labels of tensors that lie in the same memory, in groups of at least two."""
    groups: dict[int, list[str]] = {}
    for label, tensor in tensors:
        if not is_lazy(tensor) and tensor.numel() and tensor.layout is torch.strided:
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(label)
    return sorted(group for group in groups.values() if len(group) > 1)


def identities(tensors: Sequence[tuple[str, Tensor]]) -> list[list[str]]:
    """Labels of tensors that are one object, in groups of at least two."""
    groups: dict[int, list[str]] = {}
    for label, tensor in tensors:
        groups.setdefault(id(tensor), []).append(label)
    return sorted(group for group in groups.values() if len(group) > 1)


def copied(item: Any) -> Any:
    """Nested containers with tensors cloned, so that later writes do not reach them."""
    if is_lazy(item):
        return item  # it has no contents yet
    if isinstance(item, Tensor):
        with torch.no_grad():
            if item.layout is not torch.strided:
                return item.clone()
            clone = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype).copy_(item)
        return nn.Parameter(clone, item.requires_grad) if isinstance(item, nn.Parameter) else clone
    if isinstance(item, dict):
        return {key: copied(value) for key, value in item.items()}
    if isinstance(item, list):
        return [copied(value) for value in item]
    if type(item) is tuple:
        return tuple(copied(value) for value in item)
    return item
