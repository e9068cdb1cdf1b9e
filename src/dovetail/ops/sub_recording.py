"""One run of a subgraph on fakes, noted as a program.

Operators are noted as the subgraph calls them, composite ones whole: how such a one takes itself apart may depend on
strides, which another turn of a loop may have otherwise. What cannot be noted (tensors that are no operands, arithmetic
of fractions that are only known when it runs) is said in words; the subgraph still runs as torch's graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.ir.convert import describe, scalar_of, unsupported_kind
from dovetail.ir.prim import Prim
from dovetail.ir.program import Meta, Node, Operand, Program, ScalarMeta, Stage, Target, Value, symbols_in
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ir.sizes import Scalar, SizeExpr, is_whole, symbol
from dovetail.ir.sub_programs import SubProgram
from dovetail.ir.symbol_sources import size_source, symbol_source
from dovetail.ir.text import identifier
from dovetail.ops.prims import TENSOR_OF
from dovetail.torch_compat.dispatch import Overload, schema_of, storage_key, tags_of, without_modes
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES

_LIKE_A_SYMBOL = re.compile(r"[a-z]+[0-9]+")
_ANSWERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "not"})
_MAX_LITERAL = 4096


class CannotBeTold(Exception):
    """Why a subgraph cannot be noted as a program."""


class SubRecording:
    """A run of a subgraph that is being noted. name: of the operator. graph: whose names its operands get."""

    def __init__(self, name: str, graph: torch.fx.GraphModule, args: Sequence[object]) -> None:
        self.reason = ""
        self._name = name
        self._nodes: list[Node] = []
        self._values: dict[int, Value] = {}
        self._storages: dict[int, int] = {}
        self._alive: list[object] = []
        self._names: set[str] = set()
        self._fractions: set[str] = set()
        holders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        self._inputs: list[Value] = []
        try:
            names = [*holders, *(f"x{place}" for place in range(len(holders), len(args)))]
            self._inputs += [self._input(item, name) for item, name in zip(args, names, strict=False)]
        except CannotBeTold as error:
            self.reason = str(error)

    def note(self, target: Overload | Prim, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
        """Note a call. A call that cannot be noted leaves the reason."""
        if self.reason:
            return
        try:
            self._note(target, args, kwargs, result)
        except CannotBeTold as error:
            self.reason = str(error)
        except Exception as error:  # the subgraph runs as torch's graph all the same
            self.reason = f"{target} could not be noted: {type(error).__name__}: {error}"

    def told(self, result: object) -> SubProgram:
        """The whole run, given what it gave. Raises: CannotBeTold."""
        if self.reason:
            raise CannotBeTold(self.reason)
        is_bare = not isinstance(result, tuple | list)
        items = [result] if is_bare else list(result)  # type: ignore[call-overload]
        if any(isinstance(item, tuple | list | dict) for item in items):
            raise CannotBeTold("a subgraph gives results in containers")
        outputs = tuple(self._operand(item) for item in items)
        roles = Signature(
            tuple(UserInput(place) for place in range(len(self._inputs))),
            tuple(UserOutput(place) for place in range(len(outputs))),
        )
        program = Program(self._name, Stage.IMPURE, tuple(self._inputs), tuple(self._nodes), outputs, roles)
        _check_symbols(program)
        return SubProgram(program, is_bare)

    # --- calls ----------------------------------------------------------------------------------------------------

    def _note(self, target: Overload | Prim, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
        if isinstance(target, Overload):
            if target is torch.ops.aten.detach_.default or _asks_for_a_size(target, result):
                return
            if torch.Tag.inplace_view in tags_of(target):
                raise CannotBeTold(f"a subgraph changes the shape of a tensor in place: {target}")
            if target is torch.ops.aten.lift_fresh.default and not is_fake(args[0]):
                target, args, kwargs = TENSOR_OF, _literal(args[0]), {}
        operands = tuple(map(self._operand, args))
        keywords = tuple((name, self._operand(item)) for name, item in kwargs.items())
        is_several = isinstance(result, tuple | list)
        items = list(result) if isinstance(result, tuple | list) else [result]
        if any(isinstance(item, tuple | list) for item in items):
            raise CannotBeTold(f"{target} gives lists among its results")
        self._follow_written(target, args, kwargs, items)
        base = target.name if isinstance(target, Prim) else schema_of(target).name
        outputs = tuple(self._result(item, base) for item in items)
        is_kept = isinstance(target, Overload) and (schema_of(target).is_mutable or not schema_of(target).returns)
        is_kept = is_kept or (isinstance(target, Prim) and target.effect)
        if is_kept or any(output is not None for output in outputs):
            given = () if result is None else outputs
            self._nodes.append(Node(target, operands, keywords, given, is_several))

    def _follow_written(
        self, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any], items: Sequence[object]
    ) -> None:
        """A written operand that is handed back is that operand, even where fakes hand back another object."""
        if not isinstance(target, Overload) or not schema_of(target).is_mutable:
            return
        arguments = schema_of(target).arguments
        for item, (_, alias, is_write) in zip(items, schema_of(target).returns, strict=False):
            if is_write and isinstance(item, torch.Tensor) and id(item) not in self._values:
                place = next(place for place, argument in enumerate(arguments) if argument.alias == alias)
                held = args[place] if place < len(args) else kwargs.get(arguments[place].name)
                if id(held) in self._values:
                    self._bind(item, self._values[id(held)])

    def _result(self, item: object, base: str) -> Value | None:
        if isinstance(item, torch.Tensor):
            if id(item) in self._values:
                return None
            return self._bind(item, Value(self._fresh(f"{base}_{len(self._nodes) + 1}"), self._described(item)))
        if isinstance(item, SYMBOLIC_TYPES):
            number = self._number(item)
            if isinstance(item, torch.SymFloat) and isinstance(number, SizeExpr):
                self._fractions.update(number.symbols())
            return Value(self._fresh(f"{base}_{len(self._nodes) + 1}"), ScalarMeta(number))
        return None

    # --- operands -------------------------------------------------------------------------------------------------

    def _input(self, item: object, name: str) -> Value:
        name = self._fresh(name)
        if isinstance(item, torch.Tensor):
            return self._bind(item, Value(name, self._described(item)))
        if not isinstance(item, bool | int | float | torch.SymInt | torch.SymBool):
            raise CannotBeTold(f"a subgraph takes a {type(item).__name__}")
        return Value(name, ScalarMeta(self._number(item)))

    def _operand(self, item: Any) -> Operand:
        if isinstance(item, torch.Tensor):
            if id(item) not in self._values:
                raise CannotBeTold("a subgraph holds a tensor that is not an operand")
            return self._values[id(item)]
        if isinstance(item, SYMBOLIC_TYPES):
            return self._number(item)
        if isinstance(item, tuple | list):
            return (type(item) if type(item) in (tuple, list) else list)(map(self._operand, item))
        return item

    def _number(self, item: Any) -> Scalar:
        try:
            number = scalar_of(item)
        except NotImplementedError as error:
            raise CannotBeTold(f"a number in a subgraph is of unknown form: {error}") from error
        if isinstance(number, SizeExpr) and number.op != "symbol":
            is_of_fractions = isinstance(item, torch.SymFloat) or not self._fractions.isdisjoint(number.symbols())
            if is_of_fractions or not _is_exact(number):
                raise CannotBeTold("a subgraph computes with fractions that are known only when it runs")
        return number

    def _described(self, tensor: torch.Tensor) -> Meta:
        refused = unsupported_kind(tensor)
        if refused is not None:
            raise CannotBeTold(f"a subgraph has {refused[0]}")
        self._alive.append(tensor.untyped_storage())
        try:
            return describe(tensor, self._storages.setdefault(storage_key(tensor), len(self._storages)))
        except NotImplementedError as error:
            raise CannotBeTold(f"a size in a subgraph is of unknown form: {error}") from error

    def _bind(self, tensor: torch.Tensor, value: Value) -> Value:
        self._values[id(tensor)] = value
        self._alive.append(tensor)
        return value

    def _fresh(self, wish: str) -> str:
        name = identifier(wish)
        while name in self._names or _LIKE_A_SYMBOL.fullmatch(name) or name == "_":
            name += "_"
        self._names.add(name)
        return name


def _asks_for_a_size(op: Overload, result: object) -> bool:
    """Whether it only says what descriptions say: a number that does not depend on data."""
    is_number = isinstance(result, (bool, int, *SYMBOLIC_TYPES))
    return is_number and not schema_of(op).is_mutable and torch.Tag.data_dependent_output not in tags_of(op)


def _is_exact(number: Scalar) -> bool:
    """Whether an expression is of whole numbers alone, which are computed without rounding in any order."""
    if isinstance(number, SizeExpr) and number.op in _ANSWERS:
        return all(_is_exact(part) for part in number.args if not isinstance(part, str))
    return type(number) is bool or is_whole(number)


def _literal(tensor: torch.Tensor) -> tuple[object, ...]:
    """The operands of `TENSOR_OF` that make a tensor. Raises: CannotBeTold."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.dtype is not torch.uint64
    if not is_plain or tensor.numel() > _MAX_LITERAL:
        raise CannotBeTold("a subgraph makes a large tensor of Python's numbers, or one that is not plain")
    with without_modes():
        operands = (tensor.flatten().tolist(), list(tensor.shape), tensor.dtype)
        again: Any = TENSOR_OF(*operands)
        bits = [made.contiguous().view(-1).view(torch.uint8) for made in (again, tensor)]
        if tensor.numel() and not torch.equal(bits[0], bits[1]):
            raise CannotBeTold("a subgraph makes a tensor whose bits no Python numbers give")
    return operands


def _check_symbols(program: Program) -> None:
    """Raise CannotBeTold for a size that the program reads, and that neither an operand nor a node tells."""
    unknown = {name for node in program.nodes for name in node.symbols()} | set(symbols_in(program.outputs))
    made = [value for node in program.nodes for value in node.results()]
    for name in sorted(unknown):
        told = [value for value in made if value.meta == ScalarMeta(symbol(name)) or size_source(value, symbol(name))]
        if not told and symbol_source(program, symbol(name)) is None:
            raise CannotBeTold(f"the size {name} is not that of an operand of the subgraph")
