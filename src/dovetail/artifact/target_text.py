"""What a node calls, as text and back: `torch.ops.aten.add.Tensor`, `operator.mul`, `prims.view_scatter(...)`.

Anything not on a list is refused: overloads of torch's (`operators.txt`), functions of numbers (`number_functions`),
primitives, and what makes primitives of an operator, which is checked against the same list. Operators of other
packages are read where the caller names them. A text is matched, never evaluated, and nothing is looked up unless it is
on a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dovetail.artifact.number_functions import NUMBER_FUNCTIONS
from dovetail.deferred import deferred
from dovetail.errors import BadOptionValue
from dovetail.ir.prim import FlatResults, Prim, flat_results
from dovetail.ir.program import Target
from dovetail.ir.text import operator_text
from dovetail.ops import prims
from dovetail.ops.facts import is_recurrent_layer, runs_in_grad_mode
from dovetail.ops.packed import ACTIVATIONS, packed_conv, packed_linear
from dovetail.ops.panels import GATES, panel_linear, recurrent_layer
from dovetail.ops.quantized import int8_linear
from dovetail.torch_compat.dispatch import HigherOrder, Overload, schema_of
from dovetail.torch_compat.symbols import number_function_text

if TYPE_CHECKING:
    from dovetail.ops import packed_sequences
else:  # few programs need it
    packed_sequences = deferred("dovetail.ops.packed_sequences")

_MAX_TEXT = 20_000
_OPERATOR = re.compile(r'(?:torch\.ops\.(\w+)\.(\w+)\.(\w+)|getattr\(torch\.ops\.(\w+)\.(\w+), "(\w+)"\))', re.ASCII)
_MADE = re.compile(r"prims\.(\w+)\((.+)\)", re.ASCII)
# Namespaces that torch registers itself: a caller cannot allow more of them.
_OF_TORCH = frozenset(
    (
        *("aten", "prim", "prims", "profiler", "inductor", "quantized", "quantized_decomposed", "mkldnn", "mkl"),
        *("mkldnn_prepacked", "sparse", "debugprims", "rngprims", "higher_order", "onednn", "xnnpack", "prepacked"),
        *("static_runtime", "torch_attn", "c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"),
        *("symm_mem", "_dtensor", "bundled", "export", "streams", "fsdp", "rpc", "cuda"),
    )
)
PRIMS: Mapping[str, Prim] = {
    name: found
    for name in (
        *("GET_RNG_STATE", "SET_RNG_STATE", "MANUAL_SEED", "EXPECT", "GUARD", "GUARD_NUMBER", "REACHED"),
        *("COPY_TO_LAYOUT", "TIMES_IN_FLOAT64", "PACK_LINEAR", "PACK_CONV", "PACK_PANELS", "TENSOR_OF"),
        *("ROW_RANGES", "ROW_SCALES", "QUANTIZE_ROWS", "QUANTIZE_WEIGHT", "WEIGHT_SUMS", "PACK_INT8"),
        *("SPILL", "SPILLED", "FETCH", "FETCHED"),
    )
    if isinstance(found := getattr(prims, name), Prim)
}
# Operators of dovetail's own over packed sequences, and their names in that module.
_PACKED = {
    "dovetail.pack.default": "PACK",
    "dovetail.padded.default": "PADDED",
    "dovetail.packed_layer.default": "PACKED_LAYER",
}
# Running statistics that the schema does not say are written.
_HIDDEN_WRITES: Mapping[str, tuple[int, ...]] = {"native_batch_norm": (3, 4)}
# For `target_text`: what the reader says of operators of other packages is for the reader's caller to decide.
_ANY = re.compile(r"\w+::\w+(\.\w+)?", re.ASCII)


class Allowed:
    """Which operators of other packages a file may name: "space::name", "space::name.overload". None: all of them."""

    def __init__(self, names: Iterable[str] | None = ()) -> None:
        """Raises: BadOptionValue for what is no such name, and for operators of torch's own."""
        self._names = None if names is None else frozenset([names] if isinstance(names, str) else names)
        for name in self._names or ():
            if not isinstance(name, str) or not _ANY.fullmatch(name):
                reason = "it names no operator"
            elif name.partition("::")[0] in _OF_TORCH:
                reason = "the list of torch's operators that a file can name is fixed"
            else:
                continue
            expected = 'operators of other packages: "torchvision::nms"'
            raise BadOptionValue(option="allow", value=name, reason=reason, expected=expected)

    def allows(self, space: str, name: str, overload: str) -> bool:
        """Whether a file may name this operator."""
        if space in _OF_TORCH:
            return False
        return self._names is None or not self._names.isdisjoint(
            (f"{space}::{name}", f"{space}::{name}.{overload or 'default'}")
        )


_EVERYTHING = Allowed(None)


@cache
def listed_operators() -> frozenset[str]:
    """The overloads of torch that a file may name, as `aten.add.Tensor`."""
    lines = (Path(__file__).with_name("operators.txt")).read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def target_text(target: Target) -> str:
    """Text for `read_target`. Raises: ValueError for a target that has none, or that no file may name."""
    python = getattr(target, "python", None)
    text = python if isinstance(python, str) else None
    if isinstance(target, HigherOrder) or (text or "").startswith("torch.ops.higher_order."):
        raise ValueError(f"{text or operator_text(target)} calls subgraphs")
    if text is None and (isinstance(target, Overload) or number_function_text(target) is not None):
        text = operator_text(target)
    if text is None:
        raise ValueError(f"{target!r} is not an operator with a name")
    if read_target(text, _EVERYTHING) != target:
        raise ValueError(f"{text} is another target now")
    return text


def read_target(text: str, allowed: Allowed | None = None) -> Any:
    """What `target_text` wrote. allowed: operators of other packages.

    Raises: ValueError for every other text, and for a name that this torch does not have.
    """
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise ValueError("the name of an operator is a short text")
    if text in NUMBER_FUNCTIONS:
        return NUMBER_FUNCTIONS[text][0]
    if text.startswith("prims."):
        found = PRIMS.get(text.removeprefix("prims."))
        return found if found is not None else _made(text, allowed or Allowed())
    return _operator(text, allowed or Allowed())


def _operator(text: str, allowed: Allowed) -> Overload:
    match = _OPERATOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an operator that a file can name")
    space, name, overload = [part for part in match.groups() if part is not None]
    if own := _PACKED.get(f"{space}.{name}.{overload}"):
        packed: Overload = getattr(packed_sequences, own)
        return packed
    is_listed = f"{space}.{name}.{overload}" in listed_operators()
    if not is_listed and not allowed.allows(space, name, overload):
        hint = "" if space in _OF_TORCH else f'; if you trust it, pass allow=("{space}::{name}",)'
        raise ValueError(f"{text!r} is not an operator that a file can name{hint}")
    if name.startswith("__") and not is_listed:
        raise ValueError(f"{text!r} names no operator")
    packet = getattr(getattr(torch.ops, space), name, None)
    found = getattr(packet, overload, None) if packet is not None and overload in packet.overloads() else None
    if not isinstance(found, Overload) or operator_text(found) != text:
        raise ValueError(f"this torch has no operator {text}")
    return found


def _made(text: str, allowed: Allowed) -> Prim:
    match = _MADE.fullmatch(text)
    maker = _MAKERS.get(match[1]) if match is not None else None
    if match is None or maker is None:
        raise ValueError(f"{text!r} is not a primitive that a file can name")
    made = maker(match[2], allowed)
    if made.python != text:
        raise ValueError(f"{text!r} is not written as dovetail writes it")
    return made


def _in_grad_mode(inner: str, allowed: Allowed) -> Prim:
    op = _operator(inner, allowed)
    if not runs_in_grad_mode(op):
        raise ValueError(f"{inner} does not depend on the grad mode")
    return prims.in_grad_mode(op)


def _over_parameters(inner: str, allowed: Allowed) -> Prim:
    op = _operator(inner, allowed)
    if not is_recurrent_layer(op):
        raise ValueError(f"{inner} is not a recurrent layer")
    return prims.over_parameters(op)


def _flat_results(inner: str, allowed: Allowed) -> Prim:
    op = _operator(inner, allowed)
    if schema_of(op).is_mutable or not any(kind.startswith("List") for kind, _, _ in schema_of(op).returns):
        raise ValueError(f"{inner} does not return lists, or writes its operands")
    return flat_results(op)


def _functional_form(inner: str, allowed: Allowed) -> Prim:
    text, _, numbers = inner.rpartition(", (")
    op = _operator(text, allowed)
    writes = tuple(place for place, argument in enumerate(schema_of(op).arguments) if argument.is_write)
    writes = writes or _HIDDEN_WRITES.get(schema_of(op).name, ())
    if not writes or f"({numbers}" != str(writes):
        raise ValueError(f"{text} does not write its operands ({numbers}")
    return prims.functional_form(op, writes)


def is_view(op: Overload) -> bool:
    """Whether an operator views its first operand, and writes nothing."""
    schema = schema_of(op)
    is_hidden = schema.namespace == "aten" and schema.name.startswith("unsafe_split")  # its schema does not say so
    return not schema.is_mutable and bool(schema.arguments) and (bool(schema.arguments[0].alias) or is_hidden)


def _view_scatter(inner: str, allowed: Allowed) -> Prim:
    text, _, index = inner.rpartition(", ")
    op = _operator(text, allowed)
    returns = schema_of(op).returns
    if not is_view(op) or len(returns) != 1 or not re.fullmatch(r"None|0|[1-9][0-9]{0,4}", index):
        raise ValueError(f"{text} is not a view, or {index} is not one of its results")
    if (index != "None") != returns[0][0].startswith("List"):
        raise ValueError(f"{index} is not a result of {text}")
    return prims.view_scatter(op, None if index == "None" else int(index))


def _packed(
    make: Callable[[str], Prim], kinds: Collection[str] = ACTIVATIONS, what: str = "activation"
) -> Callable[[str, Allowed], Prim]:
    def made(inner: str, _: Allowed) -> Prim:
        if inner[1:-1] not in kinds:
            raise ValueError(f"there is no {what} {inner}")
        return make(inner[1:-1])

    return made


_MAKERS: Mapping[str, Callable[[str, Allowed], Prim]] = {
    "in_grad_mode": _in_grad_mode,
    "over_parameters": _over_parameters,
    "flat_results": _flat_results,
    "functional_form": _functional_form,
    "view_scatter": _view_scatter,
    "packed_linear": _packed(packed_linear),
    "packed_conv": _packed(packed_conv),
    "panel_linear": _packed(panel_linear),
    "int8_linear": _packed(int8_linear),
    "recurrent_layer": _packed(recurrent_layer, GATES, "recurrent layer"),
}


def wrapped_operator(prim: Prim) -> Overload | None:
    """The operator that a primitive applies, if it applies one."""
    run = prim.run
    if isinstance(run, FlatResults | prims.InGradMode | prims.OverParameters | prims.FunctionalForm):
        return run.op
    return run.view if isinstance(run, prims.ViewScatter) else None


def other_packages(targets: Collection[Target]) -> set[str]:
    """The operators of other packages among targets, as a caller names them to read a file."""
    ops = {wrapped_operator(target) if isinstance(target, Prim) else target for target in targets}
    found = [schema_of(op) for op in ops if isinstance(op, Overload)]
    return {f"{schema.namespace}::{schema.name}" for schema in found if schema.namespace not in _OF_TORCH}
