"""From a program back to the kind of `torch.fx.GraphModule` it was lifted from, on the way out of a pass.

What the pass left alone is as it was: placeholders, attributes (by reference), names, meta data, nested outputs and the
calling convention. What it added gets a name of its own, a fake tensor, and the provenance of its origin. Sizes are
read off the inputs, so a module with symbolic sizes becomes one. Nothing is removed that the program holds.

Cost: about 50 us a node, and twice that for torch to write and compile the module's code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from dovetail.ir.draft import free_name
from dovetail.ir.fx_attributes import attribute_of, share_tensors
from dovetail.ir.fx_lift import Lifted
from dovetail.ir.fx_samples import fakes_running
from dovetail.ir.fx_targets import is_primitive, moves_tensors
from dovetail.ir.fx_write import DescribedFakes, PlainWriter, plain_layout
from dovetail.ir.prim import FlatResults, Prim
from dovetail.ir.program import Node, Operand, Origin, Program, Target, Value, meta_symbols
from dovetail.ir.provenance import ORIGIN_KEY, origin_of
from dovetail.ir.signature import Constant
from dovetail.ir.text import identifier
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.fakes import has_plain_bytes, view_of_fake
from dovetail.torch_compat.fx_graphs import copy_calling_convention

Attributes = Mapping[str, torch.Tensor]

_PROVENANCE = ("stack_trace", "nn_module_stack")


def lower(
    lifted: Lifted, program: Program, attributes: Attributes | None = None, unwanted: Collection[str] = ()
) -> fx.GraphModule:
    """The program, made of `lifted.program`, as a new graph module that is called as `lifted.module` is.

    program: with the inputs of `lifted.program`, perhaps without some constants, and as many outputs. attributes: the
    tensor of each input of role `Constant` that the program has in addition, by the role's name. unwanted: attributes
    that the new module does not hold unless a node reads them; nor does it hold the same tensors under other names.
    Raises: InvalidProgram for an operand that nothing gives.
    """
    source = lifted.module

    def finish(writer: _Writer) -> None:
        (output,) = source.graph.find_nodes(op="output")
        leaves = iter([writer.operand(o) for o in program.outputs])
        made = writer.graph.output(map_aggregate(lifted.result, lambda _: next(leaves)), output.type)
        writer.keep(made, output)

    def holders(writer: _Writer) -> None:
        kept = set(program.inputs)
        by_node = {lifted.made_by[value]: value for value in lifted.program.inputs}
        for node in source.graph.nodes:
            if node.op == "placeholder":
                writer.keep_placeholder(node, by_node.get(node))
            elif node in by_node and by_node[node] in kept:
                writer.attribute(by_node[node], str(node.target))

    writer = _Writer(lifted, program, attributes or {})
    copy_calling_convention(source.graph, writer.graph)
    made = writer.write_all(holders, finish)
    made.meta = dict(source.meta)
    share_tensors(source, made, unwanted)
    return made


def lower_part(lifted: Lifted, part: Program, attributes: Attributes | None = None) -> fx.GraphModule:
    """As `lower`, for a program with other inputs: a placeholder for each that is no constant, a tuple of outputs."""

    def holders(writer: _Writer) -> None:
        for value, role in zip(part.inputs, part.signature.inputs, strict=True):
            node = lifted.made_by.get(value)
            if node is not None and node.op == "placeholder":
                writer.keep_placeholder(node, value)
            elif not isinstance(role, Constant):
                writer.placeholder(value)

    return _Writer(lifted, part, attributes or {}).write_all(
        holders, lambda writer: writer.graph.output(tuple(writer.operand(o) for o in part.outputs))
    )


class _Writer(PlainWriter):
    """Writes what the pass left alone as it was in the source."""

    def __init__(self, lifted: Lifted, program: Program, attributes: Attributes) -> None:
        super().__init__(program, DescribedFakes(lifted.mode, *_numbers_and_bases(lifted)))
        self.lifted = lifted
        self.attributes = attributes
        self.held: dict[str, Any] = {}  # attributes of the new module, by target
        self.held_by: dict[fx.Node, object] = {}  # those that are not values
        self.used = program.use_counts()
        survivors: list[Any] = [*program.inputs, *program.nodes, *(v for node in program.nodes for v in node.results())]
        self.reserved = {by[key].name for key in survivors for by in (lifted.made_by, lifted.called_by) if key in by}
        self.sizes.taken = self.reserved
        self.by_origin: dict[Origin, fx.Node] | None = None
        self.kept: set[fx.Node] = set()
        self.ran: tuple[fx.Node | None, list[Any]] = (None, [])

    def write_all(self, holders: Callable[[_Writer], object], finish: Callable[[_Writer], object]) -> fx.GraphModule:
        """The new module. holders: adds the placeholders. finish: adds the output."""
        with fakes_running(self.lifted.mode, any(True for v in self.program.inputs for _ in meta_symbols(v.meta))):
            holders(self)
            for value, role in zip(self.program.inputs, self.program.signature.inputs, strict=True):
                if value not in self.nodes and isinstance(role, Constant):
                    self.attribute(value, role.name)
            for node in self.program.nodes:
                self.write(node)
            finish(self)
        made = fx.GraphModule(self.held, self.graph, class_name=type(self.lifted.module).__name__)
        made.training = self.lifted.module.training
        return made

    # --- what the source has ------------------------------------------------------------------------------------

    def keep_placeholder(self, source: fx.Node, value: Value | None) -> None:
        """Add a placeholder of the source, which is this value, or no value (it is None, say)."""
        made = self.graph.create_node("placeholder", source.target, source.args, {}, source.name, source.type)
        self.keep(made, source)
        if value is None:
            made.meta["val"] = self.lifted.others[source]
            return
        made.meta["val"] = self.lifted.fakes[value]
        self.bind(value, made, is_input=True)

    def keep(self, made: fx.Node, source: fx.Node) -> None:
        """Name and describe a node as in the source, but for fakes, which may be of other sizes."""
        if source not in self.kept:
            self.kept.add(source)
            made.name = source.name  # export gives names that fx would not (`input`)
        stale = {"val"} if self.lifted.is_traced else {"val", "tensor_meta"}
        made.meta.update({key: held for key, held in source.meta.items() if key not in stale})

    def attribute(self, value: Value, target: str) -> None:
        """Add the tensor that a constant input stands for."""
        self.held[target] = (
            self.attributes[target] if target in self.attributes else attribute_of(self.lifted.module, target)
        )
        made = self._get_attr(target, self.lifted.made_by.get(value))
        known = self.lifted.fakes.get(value)
        made.meta["val"] = self.described.of(value.meta) if known is None else known
        self.bind(value, made, is_input=True)

    def _object(self, held: object) -> fx.Node:
        """The node that gives an operand which is not a value: a graph module, say."""
        for node, other in self.held_by.items():
            if other is held:
                return node
        target = self.lifted.objects.get(id(held))
        count = 0
        while target is None or self.held.get(target, held) is not held:
            wish, count = f"sub_graph_{count}", count + 1
            target = None if hasattr(self.lifted.module, wish) else wish
        self.held[target] = held
        source = next((n for n in self.lifted.module.graph.nodes if n.op == "get_attr" and n.target == target), None)
        made = self._get_attr(target, source)
        self.held_by[made] = held
        return made

    def _get_attr(self, target: str, source: fx.Node | None) -> fx.Node:
        name = free_name(identifier(target), self.reserved) if source is None else source.name
        made = self.graph.create_node("get_attr", target, (), {}, name)
        if source is not None:
            self.keep(made, source)
        return made

    # --- what PlainWriter leaves open ---------------------------------------------------------------------------

    def operand(self, operand: Operand) -> Any:
        """An operand as the argument of an fx node; graph modules become attributes."""
        if isinstance(operand, nn.Module | torch.Generator) or id(operand) in self.lifted.objects:
            return self._object(operand)
        return super().operand(operand)

    def call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """A new fx node for a call, named and described as in the source if it was there."""
        first = next(iter(node.results()), None)
        source = self.lifted.called_by.get(node if first is None else first)
        if source is not None:
            target = _nesting(node) or node.target
            made = self.graph.create_node("call_function", target, args, kwargs, source.name, source.type)
            self.keep(made, source)
            return made
        name = identifier(target_name(node.target)) if first is None or node.unpack else first.name
        made = self.graph.create_node("call_function", node.target, args, kwargs, free_name(name, self.reserved))
        if node.origin != Origin():
            made.meta.update(self._provenance(node.origin))
        return made

    def _provenance(self, origin: Origin) -> dict[str, Any]:
        if self.by_origin is None:
            calls = (node for node in self.lifted.module.graph.nodes if node.op == "call_function")
            self.by_origin = {origin_of(node): node for node in calls}
        known = self.by_origin.get(origin)
        kept = {} if known is None else {key: known.meta[key] for key in _PROVENANCE if key in known.meta}
        return {**kept, ORIGIN_KEY: str(origin)}

    def item(self, value: Value, call: fx.Node, index: int) -> fx.Node:
        """A new fx node for an item of a call's results."""
        source = self._item_source(value)
        if value in self.lifted.places and isinstance(call.target, Overload):
            *outer, index = self.lifted.places[value]
            call = self._sequence_in(call, outer, source)
        name = free_name(value.name, self.reserved) if source is None else source.name
        made = self.graph.create_node("call_function", operator.getitem, (call, index), {}, name)
        if source is not None:
            self.keep(made, source)
        return made

    def _sequence_in(self, call: fx.Node, place: Sequence[int], source: fx.Node | None) -> fx.Node:
        """The fx node for a sequence among the results of a call. source: the node of an item of it."""
        if not place:
            return call
        *outer, index = place
        holder = source.args[0] if source is not None and source.target is operator.getitem else None
        holder = holder if isinstance(holder, fx.Node) and holder.target is operator.getitem else None
        call = self._sequence_in(call, outer, holder)
        for user in call.users:
            if user.target is operator.getitem and user.args[1] == index:
                return user
        name = free_name("getitem", self.reserved) if holder is None else holder.name
        made = self.graph.create_node("call_function", operator.getitem, (call, index), {}, name)
        made.meta["val"] = call.meta["val"][index]
        if holder is not None:
            self.keep(made, holder)
        return made

    def _item_source(self, value: Value) -> fx.Node | None:
        made_by = self.lifted.made_by.get(value)
        return None if made_by is self.lifted.called_by.get(value) else made_by

    def is_wanted(self, value: Value) -> bool:
        """Whether somebody reads the item, or it had a node in the source."""
        return value in self.used or self._item_source(value) is not None

    def fake(self, node: Node, value: Value, made: fx.Node) -> Any:
        """What describes a result: as before, or found by running the call."""
        known = self.lifted.fakes.get(value)
        if known is not None:
            return known
        if is_primitive(node.target) or moves_tensors(node.target):
            return self.described.of(value.meta)
        given, is_written = _shown(node.target, made, node.outputs.index(value))
        if is_written:
            return given
        if given is not None and has_plain_bytes(given) and not any(True for _ in meta_symbols(value.meta)):
            return view_of_fake(self.lifted.mode, given, plain_layout(value.tensor))
        if self.ran[0] is not made:
            self.ran = (made, self._run(node, made))
        return self.ran[1][node.outputs.index(value)]

    def _run(self, node: Node, made: fx.Node) -> list[Any]:
        def fake_of(arg: Any) -> Any:
            return self.held_by.get(arg, arg.meta.get("val")) if isinstance(arg, fx.Node) else arg

        try:
            result: Any = node.target(*map_aggregate(made.args, fake_of), **map_aggregate(made.kwargs, fake_of))
        except Exception as error:
            raise self.broken("every call runs on fake tensors", f"{made.format_node()} raised {error}") from error
        return list(result) if node.unpack else [result]

    def sequence(self, node: Node, fakes: list[Any]) -> Any:
        """What describes the results of a call that gives a sequence."""
        if _nesting(node) is None:
            return tuple(fakes)
        made = [(value, fake) for value, fake in zip(node.outputs, fakes, strict=True) if value is not None]
        return _nested([(self.lifted.places[value], fake) for value, fake in made])


def _shown(target: Target, call: fx.Node, place: int) -> tuple[Any, bool]:
    """The fake of the operand whose memory this result of a call shows, and whether the call writes it."""
    schema = schema_of(target) if isinstance(target, Overload) else None
    alias, is_written = schema.returns[place][1:] if schema is not None and place < len(schema.returns) else ("", False)
    if schema is None or not alias:
        return None, False
    for position, argument in enumerate(schema.arguments):
        if argument.alias == alias:
            given = call.args[position] if position < len(call.args) else call.kwargs.get(argument.name)
            shown = given.meta["val"] if isinstance(given, fx.Node) else None
            return (shown, is_written) if isinstance(shown, torch.Tensor) else (None, False)
    return None, False


def _nesting(node: Node) -> Overload | None:
    """The operator of a node that gives in one list what that gives in several."""
    run = node.target.run if isinstance(node.target, Prim) else None
    return run.op if isinstance(run, FlatResults) else None


def _nested(items: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """The items in nested sequences, each at its place."""
    if len(items) == 1 and not items[0][0]:
        return items[0][1]
    parts: dict[int, list[tuple[Sequence[int], Any]]] = {}
    for (index, *rest), item in items:
        parts.setdefault(index, []).append((rest, item))
    return tuple(_nested(parts.get(index, [])) for index in range(max(parts, default=-1) + 1))


def target_name(target: Target) -> str:
    """A short name for what a node calls."""
    return str(getattr(target, "__name__", "call")).partition(".")[0]


def _numbers_and_bases(lifted: Lifted) -> tuple[dict[str, Any], dict[int, torch.Tensor]]:
    """What each size symbol is, and a fake on each storage."""
    bases: dict[int, torch.Tensor] = {}
    for value, fake in lifted.fakes.items():
        if value.is_tensor:
            bases.setdefault(value.tensor.storage, fake)
    return lifted.numbers(), bases
