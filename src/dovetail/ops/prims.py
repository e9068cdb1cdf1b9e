"""dovetail's own primitives: the few things a program needs that no ATen overload says.

A primitive is called like an operator. Its facts are attributes, because it has no schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import GuardMiss, UnexpectedSize
from dovetail.ir.prim import Prim, draws_numbers, flat_results, is_opaque  # noqa: F401, one is for the text of programs
from dovetail.ir.text import operator_text
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, packed_conv, packed_linear  # noqa: F401, as above
from dovetail.ops.panels import (  # noqa: F401, as above
    PACK_PANELS,
    panel_linear,
    recurrent_layer,
)
from dovetail.ops.quantized import (  # noqa: F401, as above
    PACK_INT8,
    QUANTIZE_ROWS,
    QUANTIZE_WEIGHT,
    ROW_RANGES,
    ROW_SCALES,
    WEIGHT_SUMS,
    int8_linear,
)
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED  # noqa: F401, as above
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.dispatch import HigherOrder, Overload, schema_of
from dovetail.torch_compat.rng import default_generator

# --- generator state ------------------------------------------------------------------------------------------------


def _get_rng_state(gpu: int | None = None) -> torch.Tensor:
    return default_generator(gpu).get_state()


def _set_rng_state(state: torch.Tensor, gpu: int | None = None) -> None:
    default_generator(gpu).set_state(state)


def _manual_seed(seed: int, gpu: int | None = None) -> None:
    default_generator(gpu).manual_seed(seed)


GET_RNG_STATE = Prim("get_rng_state", _get_rng_state, "prims.GET_RNG_STATE", reads_generator=True)
SET_RNG_STATE = Prim("set_rng_state", _set_rng_state, "prims.SET_RNG_STATE", draws=True, effect=True)
MANUAL_SEED = Prim("manual_seed", _manual_seed, "prims.MANUAL_SEED", draws=True, effect=True)


# --- tensors of Python's numbers --------------------------------------------------------------------------------------


def _tensor_of(numbers: list[Any], shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).reshape(shape)


TENSOR_OF = Prim("tensor_of", _tensor_of, "prims.TENSOR_OF")


def below_autograd_of(op: HigherOrder) -> Callable[..., object]:
    """`op` as programs run it: below autograd."""

    def run(*args: object) -> object:
        with below_autograd():
            return op(*args)

    return run


# --- sizes that depend on data ----------------------------------------------------------------------------------------


def _expect(holds: bool, fact: str) -> None:
    if not holds:
        raise UnexpectedSize(fact=fact)


EXPECT = Prim("expect", _expect, "prims.EXPECT", effect=True, checks=True)


# --- questions about numbers ------------------------------------------------------------------------------------------


def _guard(number: bool | int | float, answer: bool, which: int) -> None:
    if bool(number) is not answer:
        raise GuardMiss(which)


def _guard_number(number: bool | int | float, expected: bool | int | float, which: int) -> None:
    if type(number) is not type(expected) or repr(number) != repr(expected):
        raise GuardMiss(which)


# Whether a number is true is what it was when the program was recorded; it is the same number.
GUARD = Prim("guard", _guard, "prims.GUARD", effect=True, checks=True)
GUARD_NUMBER = Prim("guard_number", _guard_number, "prims.GUARD_NUMBER", effect=True, checks=True)


def _reached(value: object, what: str) -> None:
    """Nothing: whoever made the value would have failed."""


# Stands behind what may fail, so that it counts as a check: nothing is written before it.
REACHED = Prim("reached", _reached, "prims.REACHED", effect=True, checks=True, marks=True)


# --- layouts ----------------------------------------------------------------------------------------------------------


def _copy_to_layout(
    source: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    result = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device)
    return copy_into(result, source)


def copy_into(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`target.copy_(source)`, also where elements of the target share bytes (the source has equal numbers there)."""
    if not _may_share_bytes(target):
        return target.copy_(source)
    source = source.expand(target.shape)
    dim = min(range(target.dim()), key=lambda d: (target.shape[d] == 1, target.stride(d)))
    for index in range(1 if target.stride(dim) == 0 else target.size(dim)):
        copy_into(target.select(dim, index), source.select(dim, index))
    return target


def _may_share_bytes(tensor: torch.Tensor) -> bool:
    """Whether two elements of the tensor may be one; may say yes wrongly."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


COPY_TO_LAYOUT = Prim("copy_to_layout", _copy_to_layout, "prims.COPY_TO_LAYOUT")

_ELEMENTS_AT_ONCE = 1 << 17


def _times_in_float64(weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype, device=weight.device)
    rows = max(1, _ELEMENTS_AT_ONCE * weight.shape[0] // max(1, weight.numel()))
    for first in range(0, weight.shape[0], rows):
        part = slice(first, first + rows)
        by = factor if factor.shape[0] == 1 else factor[part]
        made[part] = weight[part].double() * by.double()
    return made


# A weight times a factor, computed in float64 and rounded once, some rows at a time: no copy in float64 is made of it.
TIMES_IN_FLOAT64 = Prim("times_in_float64", _times_in_float64, "prims.TIMES_IN_FLOAT64")


def clone_with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; expanded (stride 0) dimensions stay expanded."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((0 if tensor.numel() == 0 else last + 1,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


# --- operators that look at the grad mode ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InGradMode:
    """Runs an operator below autograd with the grad mode on, as a forward pass in eager does."""

    op: Overload

    def __call__(self, *args: object, **kwargs: object) -> object:
        with torch.enable_grad(), below_autograd():
            return self.op(*args, **kwargs)


def in_grad_mode(op: Overload) -> Prim:
    """The primitive that is `op` with the grad mode on; see `InGradMode`."""
    known = _IN_GRAD_MODE.get(op)
    if known is None:
        python = f"prims.in_grad_mode({operator_text(op)})"
        known = Prim(
            schema_of(op).name,
            InGradMode(op),
            python,
            draws=draws_numbers(op),
            gives_tuple=len(schema_of(op).returns) > 1,
        )
        _IN_GRAD_MODE[op] = known
    return known


_IN_GRAD_MODE: dict[Overload, Prim] = {}


# --- operators that ask whether weights require gradients -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class OverParameters:
    """Runs a recurrent layer whose weights require gradients, as those of a model do, without computing any.

    For a sequence that is not contiguous, `at::matmul` asks weights whether they require gradients, even under
    `no_grad`, and multiplies in another way.
    """

    op: Overload

    def __call__(self, *args: Any) -> object:
        sequence, states, weights, *others = args
        with torch.no_grad():
            marked = [weight.detach().requires_grad_() for weight in weights]
            with below_autograd():
                return self.op(sequence, states, marked, *others)


def over_parameters(op: Overload) -> Prim:
    """The primitive that is `op` over weights that require gradients; see `OverParameters`."""
    known = _OVER_PARAMETERS.get(op)
    if known is None:
        python = f"prims.over_parameters({operator_text(op)})"
        known = _OVER_PARAMETERS[op] = Prim(schema_of(op).name, OverParameters(op), python, gives_tuple=True)
    return known


_OVER_PARAMETERS: dict[Overload, Prim] = {}


# --- functional forms ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionalForm:
    """Runs a writing operator on copies of what it writes and returns the copies too.

    Result: the operator's own fresh results, then the new contents of each written tensor, in argument order
    (tensor lists flattened).
    """

    op: Overload
    writes: tuple[int, ...]

    def __call__(self, *args: object, **kwargs: object) -> list[torch.Tensor | None]:
        names = [argument.name for argument in schema_of(self.op).arguments]
        positional = list(args)
        keywords = dict(kwargs)
        written: list[torch.Tensor] = []
        for position in self.writes:
            held = positional[position] if position < len(positional) else keywords.get(names[position])
            copies = _clone_all(held, written)
            if position < len(positional):
                positional[position] = copies
            elif names[position] in keywords:
                keywords[names[position]] = copies
        returned = self.op(*positional, **keywords)
        return [*fresh_results(self.op, returned), *written]


def _clone_all(held: object, written: list[torch.Tensor]) -> object:
    if isinstance(held, torch.Tensor):
        written.append(clone_with_strides(held))
        return written[-1]
    if isinstance(held, list | tuple):
        return [_clone_all(item, written) for item in held]
    return held


def fresh_results(op: Overload, returned: object) -> list[torch.Tensor | None]:
    """The results of an operator call that are not one of its written arguments handed back."""
    items: list[Any] = list(returned) if isinstance(returned, tuple | list) else [returned]
    declared = schema_of(op).returns
    if len(declared) == 1 and declared[0][0].startswith("List"):
        return [] if declared[0][2] else items
    return [item for item, (_, _, is_write) in zip(items, declared, strict=False) if not is_write]


def functional_form(op: Overload, writes: tuple[int, ...]) -> Prim:
    """The primitive that is `op` without its writes; see `FunctionalForm`."""
    schema = schema_of(op)
    if any(type(place) is not int for place in writes):
        raise ValueError(f"{writes!r} are not places of arguments")  # 0 == False == 0.0 would be one key
    known = _FORMS.get((op, writes))
    if known is None:
        name = "_".join(filter(None, ("functional", schema.namespace, schema.name.strip("_"), schema.overload)))
        python = f"prims.functional_form({operator_text(op)}, {writes})"
        known = Prim(name, FunctionalForm(op, writes), python, draws=draws_numbers(op), effect=is_opaque(op))
        _FORMS[(op, writes)] = known
    return known


_FORMS: dict[tuple[Overload, tuple[int, ...]], Prim] = {}


# --- writing through a view ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewScatter:
    """`base` with the part that `view` selects replaced: for views that have no scatter operator of their own."""

    view: Overload
    index: int | None

    def __call__(self, base: torch.Tensor, source: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        result = clone_with_strides(base)
        selected = self.view(result, *args, **kwargs)
        part = selected if self.index is None else selected[self.index]
        copy_into(part, source)
        return result


def view_scatter(view: Overload, index: int | None) -> Prim:
    """The primitive `(base, source, *view arguments) -> new base`; see `ViewScatter`."""
    if index is not None and type(index) is not int:
        raise ValueError(f"{index!r} is not a place of a result")  # 0 == False == 0.0 would be one key
    known = _SCATTERS.get((view, index))
    if known is None:
        schema = schema_of(view)
        suffix = "" if index is None else f"_{index}"
        python = f"prims.view_scatter({operator_text(view)}, {index})"
        known = Prim(f"scatter_{schema.name.strip('_')}_{schema.overload}{suffix}", ViewScatter(view, index), python)
        _SCATTERS[(view, index)] = known
    return known


_SCATTERS: dict[tuple[Overload, int | None], Prim] = {}
