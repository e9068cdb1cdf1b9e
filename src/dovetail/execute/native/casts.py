"""Rows that convert elements to another dtype: each by itself, rounded once. Sizes are known.

Numbers with a fraction are not made whole ones: what becomes of those that are too large depends on the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.claims import layout_of
from dovetail.execute.native.llvm_function import Function
from dovetail.execute.native.machine import driver, function_of
from dovetail.execute.native.probes import Refused
from dovetail.execute.native.rows import Address, Addresses, ReadyRow, Storages, table_row
from dovetail.execute.native.scratch import scratch
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, Value
from dovetail.ops.arguments import arguments_of
from dovetail.torch_compat.dispatch import Overload, schema_of

_FLOATS = {torch.float32: "float", torch.float64: "double"}
_WHOLE = {torch.bool: "i8", torch.int32: "i32", torch.int64: "i64"}
_KINDS = {**_FLOATS, **_WHOLE}
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in _KINDS}
_COUNT = 3001  # elements of a trial: vectors, and what is left of them


@dataclass(frozen=True, slots=True)
class CastQuestion:
    """Whether elements of one dtype are converted as torch converts them."""

    target: Overload
    of: torch.dtype
    to: torch.dtype

    @property
    def function(self) -> int | None:
        """The row's function."""
        return cast_function(self.of, self.to)


@dataclass(frozen=True, slots=True)
class CastClaim(PlacedBase):
    """See `rows.RowClaim`."""

    node: Node
    question: CastQuestion
    operands: tuple[Operand, ...]
    into: Value | None
    result: Value
    layout: None = None
    element: str = "i8"

    def is_proven(self) -> bool:
        """Whether a row gives torch's bits."""
        question = self.question
        return answered(question, question.target, lambda: _tried(question))


def cast_claim(node: Node) -> CastClaim | None:
    """The claim on a node, as far as descriptions say."""
    if not isinstance(node.target, Overload) or len(node.results()) != 1:
        return None
    find = {"aten::_to_copy": _to_copy, "aten::copy_": _copy}.get(_name(node.target))
    found = None if find is None else find(node)
    if found is None:
        return None
    source, into = found
    (result,) = node.results()
    if not source.is_tensor or not result.is_tensor or (into is not None and not into.is_tensor):
        return None
    meta, written = source.tensor, (result if into is None else into).tensor
    is_known = {meta.dtype, written.dtype} <= _KINDS.keys() and meta.dtype is not written.dtype
    if not is_known or (meta.dtype in _FLOATS and written.dtype in _WHOLE and written.dtype is not torch.bool):
        return None
    layout = layout_of(meta) if isinstance(meta.numel(), int) else None
    is_alike = meta.shape == written.shape and layout is not None and layout == layout_of(written)
    if not is_alike or meta.storage == written.storage or {meta.device.type, written.device.type} != {"cpu"}:
        return None
    return CastClaim(node, CastQuestion(node.target, meta.dtype, written.dtype), (source,), into, result)


def _name(target: Overload) -> str:
    schema = schema_of(target)
    return f"{schema.namespace}::{schema.name}"


def _to_copy(node: Node) -> tuple[Value, None] | None:
    """What is converted, if nothing is asked for but a dtype."""
    arguments = arguments_of(node)
    source, dtype = arguments.get("self"), arguments.get("dtype")
    others = [x for name, x in arguments.items() if name not in ("self", "dtype", "memory_format", "device", "layout")]
    is_plain = arguments.get("memory_format") in (None, torch.preserve_format) and not any(others)
    is_plain = is_plain and arguments.get("layout") in (None, torch.strided)
    return (source, None) if is_plain and isinstance(source, Value) and dtype is not None else None


def _copy(node: Node) -> tuple[Value, Value] | None:
    """What is converted, and where it goes."""
    arguments = arguments_of(node)
    source, into = arguments.get("src"), arguments.get("self")
    return (source, into) if isinstance(source, Value) and isinstance(into, Value) else None


def cast_row(claims: Sequence[CastClaim], _: Storages, addresses: Addresses) -> ReadyRow | None:
    """The row of a claim."""
    (claim,) = claims
    function, (source,) = claim.question.function, claim.operands
    if function is None or not isinstance(source, Value):
        return None
    pointers = tuple(addresses.get(value, Address(value)) for value in (claim.written, source))
    count = source.tensor.numel()
    assert isinstance(count, int), "others are not claimed"
    return ReadyRow(function, count, pointers)


@cache
def cast_function(of: torch.dtype, to: torch.dtype) -> int | None:
    """The address of the function of such rows."""
    name = f"cast_{_NAMES[of]}_to_{_NAMES[to]}"
    out = Function(f"define void @{name}(ptr %row, i64 %from, i64 %to)")
    into, source = out.slot("%row", 1, "ptr"), out.slot("%row", 2, "ptr")
    with out.loop("%from", "%to") as at:
        value = out.load(_KINDS[of], out.element(_KINDS[of], source, at), 1)
        made = _converted(out, value, of, to)
        out.line(f"store {_KINDS[to]} {made}, ptr {out.element(_KINDS[to], into, at)}, align 1")
    return function_of(out.finished(), name, ())


def _converted(out: Function, value: str, of: torch.dtype, to: torch.dtype) -> str:
    kind, wanted = _KINDS[of], _KINDS[to]
    if to is torch.bool:
        test = f"fcmp une {kind} {value}, 0.0" if of in _FLOATS else f"icmp ne {kind} {value}, 0"
        return out.set(f"zext i1 {out.set(test)} to i8")
    if of in _FLOATS:
        return out.set(f"{'fpext' if of is torch.float32 else 'fptrunc'} {kind} {value} to {wanted}")
    if of is torch.bool:
        truth = out.set(f"icmp ne i8 {value}, 0")
        return out.set(f"{'uitofp' if to in _FLOATS else 'zext'} i1 {truth} to {wanted}")
    if to in _FLOATS:
        return out.set(f"sitofp {kind} {value} to {wanted}")
    return out.set(f"{'sext' if of is torch.int32 else 'trunc'} {kind} {value} to {wanted}")


def _tried(question: CastQuestion) -> bool:
    """Whether a row gives what torch gives: of all magnitudes, at two addresses."""
    function = question.function
    if function is None:
        return False
    for start in (0, 1):
        given = scratch((_COUNT + start,), question.of).copy_(_drawn(question.of, _COUNT + start))[start:]
        made, wanted = (scratch((_COUNT,), question.to) for _ in range(2))
        wanted.copy_(given)
        if driver()(table_row(function, _COUNT, [made.data_ptr(), given.data_ptr()], ()), 1, 1, 0):
            raise Refused
        if not torch.equal(_bits(made), _bits(wanted)):
            return False
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of elements, with one pattern for all that are not numbers."""
    if tensor.dtype not in _FLOATS:
        return tensor
    whole = torch.int32 if tensor.dtype is torch.float32 else torch.int64
    return torch.where(tensor.isnan(), -1, tensor.view(whole))


def _drawn(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Numbers of all magnitudes, with special ones."""
    generator = torch.Generator().manual_seed(count)
    if dtype not in _FLOATS:
        drawn = scratch((count,), torch.int64).random_(generator=generator)
        drawn[::2] >>= 40
        drawn[::3] *= -1
        drawn[::7] = 0
        return drawn.to(dtype)
    drawn = scratch((count,), torch.float64).normal_(generator=generator)
    drawn *= 10.0 ** scratch((count,), torch.int64).random_(-50, 50, generator=generator)
    drawn[::5] = drawn[::5].sign() * scratch(drawn[::5].shape, torch.int64).random_(generator=generator)
    for place, number in enumerate((0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-310)):
        drawn[place::97] = number
    return drawn
