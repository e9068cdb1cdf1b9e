"""The rules for each call in a file: it matches the operator's schema, with every operand of exactly its type.

An operand that is checked here reaches torch as what it is: no text where a number belongs (`int("9" * 10**6)`), no
tensor where Python would ask it for its truth, no number that is too long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from dovetail.artifact.limits import (
    MAX_OPERANDS,
    MAX_TEXT,
    bits_of,
    check_bits,
    check_count,
    check_integer,
)
from dovetail.artifact.number_functions import result_bits
from dovetail.artifact.target_text import wrapped_operator
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, ScalarMeta, Value
from dovetail.ir.sizes import SizeExpr
from dovetail.ir.sub_programs import WithSubPrograms
from dovetail.ops import prims
from dovetail.ops.packed import PACK_CONV, PACK_LINEAR, PackedConv, PackedLinear
from dovetail.ops.panels import PACK_PANELS, PanelLinear, RecurrentLayer
from dovetail.ops.quantized import (
    PACK_INT8,
    QUANTIZE_ROWS,
    QUANTIZE_WEIGHT,
    ROW_RANGES,
    ROW_SCALES,
    WEIGHT_SUMS,
    Int8Linear,
)
from dovetail.ops.transfers import FETCH, FETCHED, SPILL, SPILLED
from dovetail.torch_compat.dispatch import Argument, Overload, schema_of, tags_of
from dovetail.torch_compat.sized_fakes import SIZED_FAKES
from dovetail.torch_compat.symbols import number_function_text

_WRAPPED = re.compile(r"(Optional|List)\[(.*)\]")
_NUMBERS: Mapping[str, type] = {"int": int, "SymInt": int, "float": float, "number": complex}
_TYPES: Mapping[str, type] = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Device": torch.device,
}


def _arguments(*pairs: str, optional: int = 0) -> tuple[Argument, ...]:
    """Arguments of a primitive from `name: kind`; the last `optional` ones may be left out."""
    made = []
    for place, pair in enumerate(pairs):
        name, _, kind = pair.partition(": ")
        made.append(Argument(name, kind, False, "", False, False, place >= len(pairs) - optional, None, kind))
    return tuple(made)


_LINEAR = _arguments("x: Tensor", "weight: Tensor", "bias: Optional[Tensor]", optional=1)
_PANELS = _arguments("x: Tensor", "weight: Tensor", "outputs: int", "bias: Optional[Tensor]", optional=1)
_RECURRENT = _arguments("x: Tensor", "weights: List[Tensor]", "biases: List[Tensor]", "states: List[Tensor]")
_CONV_SIZES = ("padding: List[int]", "stride: List[int]", "dilation: List[int]", "groups: int")
_CONV = _arguments(
    "x: Tensor", "weight: Tensor", "bias: Optional[Tensor]", *_CONV_SIZES, "addend: Optional[Tensor]", optional=1
)
_INT8 = _arguments(
    *("x: Tensor", "weight: Tensor", "ranges: Tensor", "scales: Tensor", "sums: Tensor", "bias: Optional[Tensor]"),
    optional=1,
)
_OF_KINDS: Mapping[type, tuple[Argument, ...]] = {
    PackedLinear: _LINEAR,
    PackedConv: _CONV,
    PanelLinear: _PANELS,
    Int8Linear: _INT8,
    RecurrentLayer: _RECURRENT,
}
_OF_PRIMS: Mapping[Prim, tuple[Argument, ...]] = {
    prims.GET_RNG_STATE: (),
    prims.SET_RNG_STATE: _arguments("state: Tensor"),
    prims.MANUAL_SEED: _arguments("seed: int"),
    prims.EXPECT: _arguments("holds: number", "fact: str"),
    prims.GUARD: _arguments("number: number", "answer: bool", "which: int"),
    prims.GUARD_NUMBER: _arguments("number: number", "expected: number", "which: int"),
    prims.REACHED: _arguments("value: any", "what: str"),
    prims.COPY_TO_LAYOUT: _arguments(
        "source: Tensor", "shape: List[int]", "stride: List[int]", "dtype: ScalarType", "device: Device"
    ),
    prims.TENSOR_OF: _arguments("numbers: List[number]", "shape: List[int]", "dtype: ScalarType"),
    prims.TIMES_IN_FLOAT64: _arguments("weight: Tensor", "factor: Tensor"),
    SPILL: _arguments("x: Tensor"),
    SPILLED: _arguments("x: Tensor", "token: Tensor"),
    FETCH: _arguments("token: Tensor", "shape: List[int]", "stride: List[int]", "dtype: ScalarType"),
    FETCHED: _arguments("y: Tensor", "token: Tensor"),
    PACK_LINEAR: _arguments("weight: Tensor", "rows: Optional[int]", optional=1),
    PACK_PANELS: _arguments("weight: Tensor", "rows: Optional[int]", optional=1),
    PACK_INT8: _arguments("weight: Tensor", "rows: Optional[int]", optional=1),
    ROW_SCALES: _arguments("weight: Tensor"),
    ROW_RANGES: _arguments("x: Tensor"),
    QUANTIZE_ROWS: _arguments("x: Tensor", "ranges: Tensor"),
    WEIGHT_SUMS: _arguments("levels: Tensor", "scales: Tensor"),
    QUANTIZE_WEIGHT: _arguments("weight: Tensor", "scales: Tensor"),
    PACK_CONV: _arguments("weight: Tensor", *_CONV_SIZES, "input_size: Optional[List[int]]", optional=1),
}


class Calls:
    """Checks the calls of one program, in order: it keeps how long the numbers may be that they make."""

    def __init__(self, inputs: Sequence[Value], *, of_subgraph: bool = False) -> None:
        self._of_subgraph = of_subgraph
        self._bits: dict[str, int] = {}
        for value in inputs:
            if isinstance(value.meta, ScalarMeta):
                self._bits[value.name] = bits_of(value.meta.expr)

    def check(self, node: Node) -> None:
        """Raise ValueError unless the node calls its target as that may be called."""
        target = node.target
        check_count(len(node.args) + len(node.kwargs), MAX_OPERANDS, "operands")
        if isinstance(target, Overload):
            if torch.Tag.inplace_view in tags_of(target):
                raise ValueError(f"{target} changes the shape of its operand, which no node of a program does")
            takes_sizes = target in SIZED_FAKES  # whose results are described for sizes that are symbols
            arguments = schema_of(target).arguments
            self._check_arguments(str(target), arguments, node.args, node.kwargs, takes_sizes=takes_sizes)
            self._check_results(node, schema_of(target).returns)
            _check_devices(node)
        elif isinstance(target, Prim) and isinstance(target.run, WithSubPrograms):
            self._note(node, 64)  # `subgraph_rules` has checked the call; no longer number leaves a subgraph
        elif isinstance(target, Prim):
            if target is prims.TENSOR_OF and not self._of_subgraph:
                raise ValueError(f"{target.python} is called outside subgraphs")
            self._check_arguments(target.python, self._of_prim(target), node.args, node.kwargs)
            self._note(node, 64)
        else:
            self._check_function(node)

    def check_view(self, op: Overload, args: Sequence[Operand], kwargs: Sequence[tuple[str, Operand]]) -> None:
        """Raise ValueError unless an operator may be called with these operands after a tensor."""
        self._check_arguments(str(op), schema_of(op).arguments[1:], args, kwargs)

    def _of_prim(self, prim: Prim) -> tuple[Argument, ...]:
        op = wrapped_operator(prim)
        if op is None:
            return _OF_KINDS[type(prim.run)] if type(prim.run) in _OF_KINDS else _OF_PRIMS[prim]
        arguments = schema_of(op).arguments
        if isinstance(prim.run, prims.ViewScatter):
            return (arguments[0], *_arguments("source: Tensor"), *arguments[1:])
        return arguments

    def _check_arguments(
        self,
        text: str,
        arguments: Sequence[Argument],
        args: Sequence[Operand],
        kwargs: Sequence[tuple[str, Operand]],
        *,
        takes_sizes: bool = False,
    ) -> None:
        positional = [argument for argument in arguments if not argument.kwarg_only]
        if len(args) > len(positional):
            raise ValueError(f"{text} is called with {len(args)} operands, and takes {len(positional)}")
        given = [(argument, operand) for argument, operand in zip(positional, args, strict=False)]
        left = {argument.name: argument for argument in (*positional[len(args) :], *arguments)}
        for argument in positional[: len(args)]:
            del left[argument.name]
        for name, operand in kwargs:
            if name not in left:
                raise ValueError(f"{text} has no keyword operand {name!r}")
            given.append((left.pop(name), operand))
        missing = next((argument.name for argument in left.values() if not argument.has_default), None)
        if missing is not None:
            raise ValueError(f"{text} is called without its operand {missing!r}")
        for argument, operand in given:
            if not self._fits(operand, argument.kind):
                raise ValueError(f"operand {argument.name!r} of {text} is not a valid {argument.kind}")
            if argument.is_fixed and not takes_sizes and not _is_fixed(operand):
                raise ValueError(f"operand {argument.name!r} of {text} is not a number that is known beforehand")

    def _fits(self, operand: Operand, kind: str) -> bool:
        """Whether an operand is of a kind. Raises: ValueError for numbers that may be too long."""
        match = _WRAPPED.fullmatch(kind)
        if match is not None and match[1] == "Optional":
            return operand is None or self._fits(operand, match[2])
        if match is not None:
            if type(operand) in (list, tuple, torch.Size):
                check_count(len(operand), MAX_OPERANDS, "operands")  # type: ignore[arg-type]
                return all(self._fits(item, match[2]) for item in operand)  # type: ignore[attr-defined]
            return match[2] != "Tensor" and self._fits(operand, match[2])  # one number for each dimension
        return self._is_one(operand, kind)

    def _is_one(self, operand: Operand, kind: str) -> bool:
        if kind in _NUMBERS:
            return self._is_number(operand, _NUMBERS[kind])
        if kind == "Tensor":  # or a number, of which torch makes one
            return (isinstance(operand, Value) and operand.is_tensor) or self._is_number(operand, complex)
        if kind == "bool":
            return type(operand) is bool or self._is_symbolic(operand)
        if kind == "str":
            return type(operand) is str and len(operand) <= MAX_TEXT
        if kind == "any":
            return operand is None or isinstance(operand, Value) or self._is_number(operand, complex)
        return type(operand) is _TYPES.get(kind)

    def _is_number(self, operand: Operand, widest: type) -> bool:
        if type(operand) is int:
            check_integer(operand)
            return True
        is_plain = type(operand) is bool or (type(operand) is float and widest is not int)
        return is_plain or (type(operand) is complex and widest is complex) or self._is_symbolic(operand)

    def _is_symbolic(self, operand: Operand) -> bool:
        if isinstance(operand, SizeExpr):
            bits_of(operand, self._bits)
            return True
        return isinstance(operand, Value) and not operand.is_tensor

    def _check_function(self, node: Node) -> None:
        text = number_function_text(node.target) or ""
        if node.kwargs or node.unpack or len(node.outputs) != 1:
            raise ValueError(f"{text} is called with keywords, or does not return one number")
        if not all(self._is_number(operand, float) for operand in node.args):
            raise ValueError(f"{text} is called with an operand that is not a number")
        self._note(node, result_bits(text, node.args, tuple(map(self._operand_bits, node.args))))
        if any(value.is_tensor for value in node.results()):
            raise ValueError(f"{text} gives a number, not a tensor")

    def _operand_bits(self, operand: Operand) -> int:
        if isinstance(operand, Value):
            return self._bits.get(operand.name, 64)
        assert isinstance(operand, int | float | SizeExpr), "checked by the caller"
        return bits_of(operand, self._bits)

    def _check_results(self, node: Node, returns: Sequence[tuple[str, str, bool]]) -> None:
        is_sequence = len(returns) > 1 or any(kind.startswith("List") for kind, _, _ in returns)
        if node.results() and node.unpack is not is_sequence:
            raise ValueError(f"{node.target} gives {'several results' if is_sequence else 'one result'}")
        if len(returns) > 1 and len(node.outputs) > len(returns):
            raise ValueError(f"{node.target} gives {len(returns)} results, not {len(node.outputs)}")
        kinds = [kind for kind, _, _ in returns]
        for place, value in enumerate(node.outputs):
            kind = kinds[place] if len(kinds) > 1 else (kinds or [""])[0]
            if value is not None and value.is_tensor is not ("Tensor" in kind):
                raise ValueError(f"{value.name} is not a result of {node.target}")
        self._note(node, 64)

    def _note(self, node: Node, bits: int) -> None:
        for value in node.results():
            if isinstance(value.meta, ScalarMeta):
                expr = value.meta.expr
                self._bits[value.name] = check_bits(bits, value.name)
                if isinstance(expr, SizeExpr) and expr.op == "symbol":
                    self._bits[str(expr.args[0])] = bits
                elif isinstance(expr, SizeExpr):
                    bits_of(expr, self._bits)


def _is_fixed(operand: Operand) -> bool:
    items = operand if isinstance(operand, list | tuple) else (operand,)
    return not any(isinstance(item, SizeExpr | Value) for item in items)


def _check_devices(node: Node) -> None:
    """Results of torch's operators are on the device that is an operand, or else on that of an operand, or the CPU."""
    if schema_of(node.target).namespace not in ("aten", "prims"):  # type: ignore[arg-type]
        return
    given = [operand for _, operand in node.kwargs] + list(node.args)
    found = {operand.type for operand in given if isinstance(operand, torch.device)}
    found = found or {operand.tensor.device.type for operand in node.operands() if operand.is_tensor}
    for value in node.results():
        if value.is_tensor and value.tensor.device.type not in (found or {"cpu"}):
            raise ValueError(f"{value.name} is described on the device {value.tensor.device}, where no operand is")
