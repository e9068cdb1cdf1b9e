"""A program for some sizes of those that it is for: numbers stand for its symbols.

with_sizes(program, {"s0": 8})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from dovetail.ir.program import Meta, Node, Operand, Program, ScalarMeta, TensorMeta, Value, map_leaves, map_operands
from dovetail.ir.sizes import Number, SizeExpr, evaluate

_Described = TypeVar("_Described")


def with_sizes(program: Program, sizes: Mapping[str, Number]) -> Program:
    """The program with a number for each of its symbols. Names stay. Raises: KeyError for a symbol without a number."""
    made: dict[Value, Value] = {}

    def fixed(value: Value) -> Value:
        if value not in made:
            made[value] = Value(value.name, _fixed_meta(value.meta, sizes))
        return made[value]

    def operand(given: Operand) -> Operand:
        return map_leaves(map_operands(given, fixed), lambda leaf: cast(Operand, _number(leaf, sizes)))

    def node(old: Node) -> Node:
        args = tuple(operand(each) for each in old.args)
        kwargs = tuple((name, operand(each)) for name, each in old.kwargs)
        outputs = tuple(None if value is None else fixed(value) for value in old.outputs)
        return old.applying(old.target, args, kwargs, outputs)

    return replace(
        program,
        inputs=tuple(map(fixed, program.inputs)),
        nodes=tuple(map(node, program.nodes)),
        outputs=tuple(map(operand, program.outputs)),
    )


def described_with_sizes(given: _Described, sizes: Mapping[str, Number]) -> _Described:
    """A description, such as a plan of a call, with numbers for symbols wherever it has some."""
    return cast(_Described, _replaced(given, sizes))


def _replaced(given: Any, sizes: Mapping[str, Number]) -> Any:
    if isinstance(given, SizeExpr):
        return evaluate(given, sizes)
    if isinstance(given, tuple | list):
        items = [_replaced(item, sizes) for item in given]
        if all(new is old for new, old in zip(items, given, strict=True)):
            return given
        return items if isinstance(given, list) else tuple(items)
    if is_dataclass(given) and not isinstance(given, type):
        old = {field.name: getattr(given, field.name) for field in fields(given) if field.init}
        new = {name: _replaced(value, sizes) for name, value in old.items()}
        return given if all(new[name] is value for name, value in old.items()) else replace(given, **new)
    return given


def _fixed_meta(meta: Meta, sizes: Mapping[str, Number]) -> Meta:
    if isinstance(meta, ScalarMeta):
        return ScalarMeta(_number(meta.expr, sizes))
    shape, stride = (tuple(int(evaluate(size, sizes)) for size in given) for given in (meta.shape, meta.stride))
    return TensorMeta(shape, stride, int(evaluate(meta.offset, sizes)), meta.dtype, meta.device, meta.storage)


def _number(given: Any, sizes: Mapping[str, Number]) -> Any:
    return evaluate(given, sizes) if isinstance(given, SizeExpr) else given
