"""Tensors that are made of others (wrappers: subclasses; sparse matrices), taken apart and put together again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dovetail.torch_compat.sparse import Form, PairsForm, form_of, parts_of


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is not a tensor, and the same in every wrapper of a layout (the mesh of a DTensor)."""

    value: Any

    def key(self) -> Hashable:
        """Equal for equal values."""
        return self.value if isinstance(self.value, Hashable) else repr(self.value)


@dataclass(frozen=True, slots=True)
class WrapperLayout:
    """How a wrapper is made of others. parts: attribute, and what is there: None for a plain tensor.

    context: what the class hands to its `__tensor_unflatten__`. size, stride: of the wrapper.
    """

    cls: type
    parts: tuple[tuple[str, WrapperLayout | Held | None], ...]
    context: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def key(self) -> Hashable:
        """Equal for layouts that are made alike."""
        context = self.context if isinstance(self.context, Hashable) else repr(self.context)
        inner = tuple((name, None if part is None else part.key()) for name, part in self.parts)
        return (self.cls, inner, context, self.size, self.stride)


AnyLayout: TypeAlias = WrapperLayout | Form | PairsForm
"""How a tensor is made of others."""


def is_wrapper(tensor: object) -> bool:
    """Whether a tensor is made of others that it can be taken apart into (`__tensor_flatten__`, a sparse matrix)."""
    return is_traceable_wrapper_subclass(tensor) or form_of(tensor) is not None


def is_wrapper_type(cls: type) -> bool:
    """`is_wrapper` for a class."""
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def decides_operators(cls: type[torch.Tensor]) -> bool:
    """Whether a class of tensors has a say in what functions of torch do with them, or in the class of their results.

    A class under `Tensor` does (`__torch_function__`, `__torch_dispatch__`), but for those that switch that off, as
    `Parameter` does.
    """
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return False
    is_plain = torch._C._disabled_torch_function_impl, torch.Tensor.__torch_dispatch__
    return (cls.__torch_function__, cls.__torch_dispatch__) != is_plain


def take_apart(tensor: torch.Tensor) -> tuple[list[torch.Tensor], AnyLayout]:
    """The plain tensors that a tensor is made of, depth first, and how."""
    form = form_of(tensor)
    return _take_apart(tensor) if form is None else (list(parts_of(tensor).values()), form)


def _take_apart(tensor: torch.Tensor) -> tuple[list[torch.Tensor], WrapperLayout]:
    wrapper: Any = tensor
    attributes, context = wrapper.__tensor_flatten__()
    tensors: list[torch.Tensor] = []
    parts: list[tuple[str, WrapperLayout | Held | None]] = []
    for name in attributes:
        inner = getattr(wrapper, name)
        part: WrapperLayout | Held | None = None
        if isinstance(inner, torch.Tensor) and is_traceable_wrapper_subclass(inner):
            found, part = _take_apart(inner)
            tensors += found
        elif isinstance(inner, torch.Tensor):
            tensors.append(inner)
        else:
            part = Held(inner)
        parts.append((name, part))
    return tensors, WrapperLayout(type(tensor), tuple(parts), context, tuple(tensor.shape), tuple(tensor.stride()))


def put_together(layout: AnyLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor made of other plain tensors, in the order of `take_apart`; it requires no gradient."""
    if not isinstance(layout, WrapperLayout):
        with torch.no_grad():
            return layout.made_of(tensors)
    remaining = list(tensors)
    made = _put_together(layout, remaining)
    assert not remaining, "as many tensors as the layout has"
    return made


def _put_together(layout: WrapperLayout, remaining: list[torch.Tensor]) -> torch.Tensor:
    inner: dict[str, Any] = {}
    for name, part in layout.parts:
        if part is None:
            inner[name] = remaining.pop(0)
        else:
            inner[name] = part.value if isinstance(part, Held) else _put_together(part, remaining)
    cls: Any = layout.cls
    with torch.no_grad():
        made: torch.Tensor = cls.__tensor_unflatten__(inner, layout.context, layout.size, layout.stride)
    return made.requires_grad_(False)


def as_parameter(wrapper: torch.Tensor) -> torch.Tensor:
    """The same object, as a leaf that passes for a `torch.nn.Parameter`."""
    wrapper._is_param = True
    return wrapper.requires_grad_()
