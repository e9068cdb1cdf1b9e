"""Between programs and `torch.fx.GraphModule`, at the edges of the package.

`to_graph_module` gives a plain module of ATen overloads for tools that work on fx: one `call_function` node per node,
`operator.getitem` for items of a sequence, `meta["val"]` with a fake tensor of the described layout (storage sharing of
views kept), `meta["dovetail_origin"]` with the user's line. `from_graph_module` reads such a module back; it needs
`meta["val"]` on every node, as export, make_fx and `to_graph_module` leave it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from dovetail.errors import InvalidGraphModule
from dovetail.ir.convert import describe, scalar_of
from dovetail.ir.program import Meta, Node, Operand, Program, ScalarMeta, Stage, Value
from dovetail.ir.signature import Constant, Signature, SizeInput, UserInput, UserOutput
from dovetail.ir.sizes import Number, SizeExpr, evaluate
from dovetail.ir.text import identifier
from dovetail.torch_compat.dispatch import Overload, schema_of, storage_key
from dovetail.torch_compat.fakes import FakeMode, new_fake_mode
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES


def to_graph_module(program: Program, hints: Mapping[str, Number] | None = None) -> fx.GraphModule:
    """The program as a graph module with the same inputs and a tuple of the same outputs.

    hints: a number for each size symbol, for the fakes in `meta["val"]`; sizes in arguments are given by these numbers,
    so a symbolic program becomes a module for one size. Raises: KeyError for a symbol without a hint.
    """
    return _Writer(program, dict(hints or {})).write()


class _Writer:
    def __init__(self, program: Program, hints: dict[str, Number]) -> None:
        self.program = program
        self.hints = hints
        self.graph = fx.Graph()
        self.nodes: dict[Value, fx.Node] = {}
        self.mode: FakeMode = new_fake_mode()
        self.storages: dict[int, torch.Tensor] = {}

    def write(self) -> fx.GraphModule:
        for value in self.program.inputs:
            self._bind(value, self.graph.placeholder(value.name))
        for node in self.program.nodes:
            self._write_node(node)
        self.graph.output(tuple(self._operand(o) for o in self.program.outputs))
        module = fx.GraphModule(torch.nn.Module(), self.graph, class_name=identifier(self.program.name))
        module.graph.lint()
        return module

    def _write_node(self, node: Node) -> None:
        kwargs = {name: self._operand(operand) for name, operand in node.kwargs}
        made = self.graph.call_function(node.target, tuple(map(self._operand, node.args)), kwargs)
        made.meta["dovetail_origin"] = str(node.origin)
        if not node.unpack:
            for value in node.results():
                self._bind(value, made)
            return
        made.meta["val"] = [None if value is None else self._fake(value.meta) for value in node.outputs]
        for index, item in enumerate(node.outputs):
            if item is not None:
                self._bind(item, self.graph.call_function(operator.getitem, (made, index)))

    def _bind(self, value: Value, node: fx.Node) -> None:
        self.nodes[value] = node
        node.meta["val"] = self._fake(value.meta)

    def _operand(self, operand: Operand) -> Any:
        if isinstance(operand, Value):
            return self.nodes[operand]
        if isinstance(operand, SizeExpr):
            return evaluate(operand, self.hints)
        if isinstance(operand, tuple | list):
            return type(operand)(self._operand(item) for item in operand)
        return operand

    def _fake(self, meta: Meta) -> Any:
        if isinstance(meta, ScalarMeta):
            return evaluate(meta.expr, self.hints)
        shape, stride = ([int(evaluate(d, self.hints)) for d in dims] for dims in (meta.shape, meta.stride))
        offset = int(evaluate(meta.offset, self.hints))
        with self.mode:
            base = self.storages.get(meta.storage)
            if base is None:
                last = sum(max(size - 1, 0) * step for size, step in zip(shape, stride, strict=True))
                base = torch.empty(offset + last + 1, dtype=meta.dtype, device=meta.device)
                self.storages[meta.storage] = base
            if base.dtype != meta.dtype:
                return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
            return base.as_strided(shape, stride, offset)


def from_graph_module(module: fx.GraphModule, name: str = "graph") -> Program:
    """The program that a graph module of ATen overloads stands for; module attributes become constant inputs.

    Raises: InvalidGraphModule for a node that is no operator call, or that lacks `meta["val"]`.
    """
    return _Reader(module, name).read()


class _Reader:
    def __init__(self, module: fx.GraphModule, name: str) -> None:
        self.module = module
        self.name = name
        self.values: dict[fx.Node, Value] = {}
        self.items: dict[fx.Node, tuple[Value | None, ...]] = {}
        self.storages: dict[int, int] = {}
        self.alive: list[object] = []
        self.nodes: list[Node] = []

    def read(self) -> Program:
        inputs: list[Value] = []
        roles: list[Any] = []
        outputs: tuple[Operand, ...] = ()
        for node in self.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                value = self._value(node, node.meta.get("val", self._attribute(node)))
                self.values[node] = value
                inputs.append(value)
                roles.append(_input_role(node, value, len(inputs) - 1))
            elif node.op == "call_function":
                self._read_call(node)
            elif node.op == "output":
                held = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
                outputs = tuple(self._operand(item) for item in held)
            else:
                raise InvalidGraphModule(node=node.name, reason=f"it is a {node.op}, not an operator call")
        signature = Signature(tuple(roles), tuple(UserOutput(i) for i in range(len(outputs))))
        return Program(self.name, Stage.IMPURE, tuple(inputs), tuple(self.nodes), outputs, signature)

    def _attribute(self, node: fx.Node) -> Any:
        if node.op != "get_attr":
            return None
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        return held

    def _read_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int), "items of sequences of tensors"
            item = self.items[source][index]
            if item is not None:
                self.values[node] = item
            return
        assert callable(node.target), "call_function calls something"
        val = node.meta.get("val")
        unpack = isinstance(val, tuple | list)
        items = list(val) if isinstance(val, tuple | list) else [val]
        outputs = tuple(
            None
            if item is None
            else self._value(node, item, f"_{i}" if unpack else "", self._viewed(node, i if unpack else None))
            for i, item in enumerate(items)
        )
        if unpack:
            self.items[node] = outputs
        elif outputs[0] is not None:
            self.values[node] = outputs[0]
        kwargs = tuple((key, self._operand(a)) for key, a in node.kwargs.items())
        args = tuple(self._operand(a) for a in node.args)
        made = outputs if any(o is not None for o in outputs) else ()
        self.nodes.append(Node(node.target, args, kwargs, made, unpack))

    def _viewed(self, node: fx.Node, index: int | None) -> int | None:
        """The storage of the operand that the schema says a result is a view of (the fakes need not say so)."""
        if not isinstance(node.target, Overload):
            return None
        schema = schema_of(node.target)
        alias = schema.returns[index if index is not None and len(schema.returns) > 1 else 0][1]
        for position, argument in enumerate(schema.arguments):
            if alias and argument.alias == alias and position < len(node.args):
                operand = self._operand(node.args[position])
                return operand.tensor.storage if isinstance(operand, Value) else None
        return None

    def _value(self, node: fx.Node, val: Any, suffix: str = "", storage: int | None = None) -> Value:
        name = identifier(node.name) + suffix
        if isinstance(val, torch.Tensor) and storage is not None:
            return Value(name, describe(val, storage))
        if isinstance(val, torch.Tensor):
            key = storage_key(val)
            if key not in self.storages:
                self.storages[key] = len(self.storages)
                self.alive.append(val.untyped_storage())
            return Value(name, describe(val, self.storages[key]))
        if isinstance(val, (bool, int, float, *SYMBOLIC_TYPES)):
            return Value(name, ScalarMeta(scalar_of(val)))
        raise InvalidGraphModule(node=node.name, reason='its meta["val"] is missing')

    def _operand(self, argument: Any) -> Operand:
        if isinstance(argument, fx.Node):
            if argument not in self.values:
                raise InvalidGraphModule(node=argument.name, reason="it is used as a tensor but gives none")
            value = self.values[argument]
            return value if value.is_tensor else value.meta.expr if isinstance(value.meta, ScalarMeta) else value
        if isinstance(argument, tuple | list):
            items = [self._operand(item) for item in argument]
            return tuple(items) if isinstance(argument, tuple) else items
        return argument


def _input_role(node: fx.Node, value: Value, index: int) -> Any:
    if isinstance(value.meta, ScalarMeta):
        return SizeInput(str(value.meta.expr))
    return Constant(str(node.target)) if node.op == "get_attr" else UserInput(index)
