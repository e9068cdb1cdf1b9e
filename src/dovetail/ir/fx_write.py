"""Write a program as a `torch.fx` graph.

One `call_function` node per node, `operator.getitem` for items of a sequence, `meta["val"]` with fakes in which storage
sharing shows, and `meta["dovetail_origin"]` with the user's line. `to_graph_module` does it for any program;
`ir.fx_lower` for one that was lifted from a graph module, of which it keeps what it can.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from dovetail.errors import InvalidProgram
from dovetail.ir.fx_samples import fakes_running
from dovetail.ir.fx_sizes import SizeNodes, fold_expression
from dovetail.ir.prim import Prim
from dovetail.ir.program import Meta, Node, Operand, Program, ScalarMeta, TensorMeta, Value
from dovetail.ir.provenance import ORIGIN_KEY
from dovetail.ir.sizes import Number, Scalar, SizeExpr, evaluate
from dovetail.ir.text import identifier
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.fakes import (
    FakeMode,
    Layout,
    blank_fake,
    has_plain_bytes,
    new_fake_mode,
    view_of_fake,
)
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES


def to_graph_module(
    program: Program, hints: Mapping[str, Number] | None = None, described: DescribedFakes | None = None
) -> fx.GraphModule:
    """The program as a graph module with the same inputs and a tuple of the same outputs.

    hints: a number for each size symbol, for the fakes in `meta["val"]`. The sizes themselves are read off the inputs.
    described: makes those fakes, in place of the hints. Raises: KeyError for a symbol without a hint.
    """
    described = described or DescribedFakes(new_fake_mode(), dict(hints or {}))
    writer = PlainWriter(program, described)
    is_symbolic = any(isinstance(number, SYMBOLIC_TYPES) for number in described.numbers.values())
    with fakes_running(described.mode, is_symbolic):
        for value in program.inputs:
            writer.placeholder(value)
        for node in program.nodes:
            writer.write(node)
        writer.graph.output(tuple(writer.operand(o) for o in program.outputs))
    root = torch.nn.Module()
    for holder, generator in writer.generators.items():
        setattr(root, str(holder.target), generator)
    return fx.GraphModule(root, writer.graph, class_name=identifier(program.name))


class DescribedFakes:
    """Fakes made from descriptions: values of one storage get fakes of one storage.

    numbers: what each size symbol is, a number or a symbolic one. bases: by storage, a fake tensor that lies there.
    """

    def __init__(
        self, mode: FakeMode, numbers: Mapping[str, Any], bases: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        self.mode = mode
        self.numbers = numbers
        self._bases = dict(bases or {})

    def number(self, size: Scalar) -> Any:
        """A size as a number. Raises: KeyError for an unknown symbol."""
        if not isinstance(size, SizeExpr):
            return size
        return fold_expression(
            size,
            lambda part: self.numbers[str(part.args[0])] if part.op == "symbol" else None,
            lambda function, args: function(*args),
        )

    def of(self, meta: Meta) -> Any:
        """The number, or the fake tensor, of this description."""
        if isinstance(meta, ScalarMeta):
            return self.number(meta.expr)
        if all(type(number) is int for number in (*meta.shape, *meta.stride, meta.offset)):
            found = self._plain(meta)
            if found is not None:
                return found
        shape, stride = ([self.number(d) for d in dims] for dims in (meta.shape, meta.stride))
        offset = self.number(meta.offset)
        with torch.no_grad(), self.mode:
            base = self._bases.get(meta.storage)
            if base is None:
                last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
                extent = 0 if 0 in meta.shape else offset + last + 1
                base = torch.empty(extent, dtype=meta.dtype, device=meta.device)
                self._bases[meta.storage] = base
            if base.dtype != meta.dtype:
                return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
            return base.as_strided(shape, stride, offset)

    def _plain(self, meta: TensorMeta) -> torch.Tensor | None:
        """The fake where sizes are numbers and torch's own operators have nothing to add."""
        layout, base = plain_layout(meta), self._bases.get(meta.storage)
        if meta.device.type not in ("cpu", "cuda") or meta.dtype.is_complex:
            return None
        if base is None and layout.offset == 0:
            self._bases[meta.storage] = blank_fake(self.mode, layout)
            return self._bases[meta.storage]
        if base is None:
            return None
        is_plain = has_plain_bytes(base) and base.dtype is meta.dtype
        return view_of_fake(self.mode, base, layout) if is_plain else None


def plain_layout(meta: TensorMeta) -> Layout:
    """What a fake of a tensor of known sizes looks like."""
    shape, stride = (tuple([int(evaluate(number, {})) for number in sizes]) for sizes in (meta.shape, meta.stride))
    return Layout(shape, stride, int(evaluate(meta.offset, {})), meta.dtype, meta.device)


class PlainWriter:
    """Adds the nodes of a program to a graph, one at a time. Others override how one is named and described."""

    def __init__(self, program: Program, described: DescribedFakes) -> None:
        self.program = program
        self.described = described
        self.graph = fx.Graph()
        self.sizes = SizeNodes(self.graph)
        self.nodes: dict[Value, fx.Node] = {}
        self.generators: dict[fx.Node, torch.Generator] = {}

    def placeholder(self, value: Value) -> fx.Node:
        """Add an input."""
        made = self.graph.placeholder(value.name)
        made.meta["val"] = self.described.of(value.meta)
        self.bind(value, made, is_input=True)
        return made

    def bind(self, value: Value, node: fx.Node, is_input: bool = False) -> None:
        """From here on the value is what this fx node gives."""
        self.nodes[value] = node
        self.sizes.note(value, node, is_input)

    def write(self, node: Node) -> None:
        """Add a call, and a node for each item of its results that somebody may want."""
        args = tuple(map(self.operand, node.args))
        kwargs = {name: self.operand(operand) for name, operand in node.kwargs}
        made = self.call(node, args, kwargs)
        if not node.unpack:
            made.meta["val"] = None
            for value in node.results():
                made.meta["val"] = self.fake(node, value, made)
                self.bind(value, made)
            return
        fakes = [None if value is None else self.fake(node, value, made) for value in node.outputs]
        made.meta["val"] = self.sequence(node, fakes)
        for index, output in enumerate(node.outputs):
            if output is not None and self.is_wanted(output):
                item = self.item(output, made, index)
                item.meta["val"] = fakes[index]
                self.bind(output, item)

    def operand(self, operand: Operand) -> Any:
        """An operand as the argument of an fx node."""
        if isinstance(operand, Value):
            if operand not in self.nodes:
                raise self.broken("operands are computed before they are read", operand.name)
            return self.nodes[operand]
        if isinstance(operand, SizeExpr):
            try:
                return self.sizes.node(operand)
            except KeyError as error:
                raise self.broken("every size symbol is bound", str(error.args[0])) from error
        if isinstance(operand, tuple | list):
            return type(operand)(self.operand(item) for item in operand)
        if isinstance(operand, torch.Generator):
            return self.generator(operand)
        return operand

    def generator(self, held: torch.Generator) -> fx.Node:
        """A random generator, which the module holds: code cannot name it."""
        known = next((node for node, other in self.generators.items() if other is held), None)
        if known is None:
            known = self.graph.get_attr(f"generator_{len(self.generators)}")
            self.generators[known] = held
        return known

    def broken(self, rule: str, detail: str) -> InvalidProgram:
        """The error for a program that breaks a rule."""
        return InvalidProgram(program=self.program.name, stage=self.program.stage.value, rule=rule, detail=detail)

    # --- what may be done otherwise -----------------------------------------------------------------------------

    def call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """A new fx node for a call."""
        made = self.graph.call_function(node.target, args, kwargs)
        made.meta[ORIGIN_KEY] = str(node.origin)
        if isinstance(node.target, Prim) and (node.target.draws or node.target.effect):
            fx.has_side_effect(node.target)  # so that torch's own dead code elimination leaves it
        return made

    def item(self, value: Value, call: fx.Node, index: int) -> fx.Node:
        """A new fx node for an item of a call's results."""
        return self.graph.call_function(operator.getitem, (call, index))

    def is_wanted(self, value: Value) -> bool:
        """Whether an item of a sequence gets a node."""
        return True

    def fake(self, node: Node, value: Value, made: fx.Node) -> Any:
        """What describes a result."""
        return self.described.of(value.meta)

    def sequence(self, node: Node, fakes: list[Any]) -> Any:
        """What describes the results of a call that gives a sequence."""
        target = node.target
        several = isinstance(target, Overload) and len(schema_of(target).returns) > 1
        gives_tuple = several or (isinstance(target, Prim) and target.gives_tuple)
        return tuple(fakes) if gives_tuple else fakes
