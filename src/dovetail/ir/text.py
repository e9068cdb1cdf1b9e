"""The text of a program: Python source that runs, diffs, and reads top to bottom.

One emitter serves the dumps (each operator by its full name) and the executors (each operator by the cheapest call that
does the same): they differ in the `call` they hand in.

    def forward(args):
        x, w = args
        args.clear()
        t = torch.ops.aten.t.default(w)                                   # f32[4, 8]
        mm = torch.ops.aten.mm.default(x, t)                              # f32[2, 8]   model.py:7 in forward
        del w, t, x
        return (mm,)
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MappingProxyType
from typing import TypeAlias

import torch

from dovetail.errors import InvalidProgram
from dovetail.ir.draft import free_name
from dovetail.ir.node_groups import NodeGroup, forgotten_within, with_later_reads
from dovetail.ir.program import Node, Operand, Program, ScalarMeta, Target, Value, symbols_in
from dovetail.ir.sizes import SizeExpr, symbol
from dovetail.ir.sub_programs import SubProgram, WithSubPrograms
from dovetail.ir.symbol_sources import size_source, symbol_source
from dovetail.ir.written_names import any_number_text, check_names, one_line
from dovetail.torch_compat.dispatch import HigherOrder
from dovetail.torch_compat.symbols import number_function_text

CallWriter: TypeAlias = Callable[["Names", Node], str]

_OWN_NAMES = frozenset({"torch", "math", "operator", "args", "prims", "aten", "record_function"})
_WRAPPER_NAMES = frozenset(
    {
        "run",
        "outs",
        "copy_into",
        "flat_bytes",
        "followed",
        "graft",
        "viewed_tensor",
        "withdraw_announcement",
        "change_layout",
        "increment_version",
        "put_together",
        "as_seen",
        "drop_gradients",
    }
)
_RESERVED = _OWN_NAMES | _WRAPPER_NAMES | {*dir(builtins), *keyword.kwlist, *keyword.softkwlist}
_COMMENT_COLUMN = 88


_NUMBERS = (int, float, complex)


@dataclass(slots=True)
class Names:
    """Objects that the source mentions by a name of its own. taken: names that values have."""

    taken: frozenset[str] = frozenset()
    globals: dict[str, object] = field(default_factory=dict)
    functions: dict[str, SubProgram] = field(default_factory=dict)
    within: str = "run"

    def function(self, sub_program: SubProgram, wish: str) -> str:
        """The name of a function that is written before the source, for a subgraph."""
        name = f"{self.within}_{wish}"
        count = 1
        while name in self.functions or name in self.taken or name in self.globals:
            count += 1
            name = f"{self.within}_{wish}_{count}"
        self.functions[name] = sub_program
        return name

    def constant(self, value: object, wish: str) -> str:
        """A global name for an object that has no literal."""
        for name, known in self.globals.items():
            if known is value:
                return name
        name = free_name(wish, {*self.globals, *self.taken}, first=2)
        self.globals[name] = value
        return name

    def text(self, operand: Operand) -> str:
        """An operand as Python source."""
        if isinstance(operand, Value):
            return operand.name
        if isinstance(operand, bool | str | SizeExpr) or operand is None:
            return repr(operand)
        if isinstance(operand, int | float | complex):
            return any_number_text(operand) if type(operand) in _NUMBERS else self.constant(operand, "number")
        if isinstance(operand, tuple | list):
            items = ", ".join(map(self.text, operand))
            if isinstance(operand, list):
                return f"[{items}]"
            return f"({items},)" if len(operand) == 1 else f"({items})"
        if isinstance(operand, torch.dtype | torch.layout | torch.memory_format):
            return str(operand)
        if isinstance(operand, torch.device):
            return self.constant(operand, f"_{str(operand).replace(':', '_')}")
        return self.constant(operand, f"_{type(operand).__name__.lower()}")

    def arguments(self, node: Node, skip: int = 0) -> str:
        """The operands of a node as an argument list, from position `skip`."""
        texts = [self.text(a) for a in node.args[skip:]]
        texts += [f"{name}={self.text(a)}" for name, a in node.kwargs]
        return ", ".join(texts)


def identifier(text: str) -> str:
    """A valid Python name close to `text` that shadows nothing the source uses."""
    is_plain = text.isascii() and text.isidentifier()
    name = text if is_plain else "".join([c if c.isascii() and c.isalnum() else "_" for c in text]) or "value"
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if name in _RESERVED else name


@dataclass(frozen=True, slots=True)
class ProgramText:
    """Python source of a program. lines: the 1-based line of each node. globals: what it mentions by name."""

    text: str
    lines: tuple[int, ...]
    globals: dict[str, object]


_NO_GROUPS: Mapping[int, NodeGroup] = MappingProxyType({})


@dataclass(slots=True)
class _Writer:
    program: Program
    call: CallWriter
    dying: Mapping[int, tuple[Value, ...]]
    comments: bool
    names: Names
    groups: Mapping[int, NodeGroup] = field(default_factory=dict)
    out: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    unbound: dict[str, None] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    restored: frozenset[Node] = frozenset()

    def line(self, text: str, indent: int = 1) -> None:
        self.out.append("    " * indent + text)


def emit(
    program: Program,
    call: CallWriter,
    dying: Mapping[int, tuple[Value, ...]],
    *,
    comments: bool = True,
    ranges: Callable[[Node], str] | None = None,
    function: str = "run",
    groups: Mapping[int, NodeGroup] = _NO_GROUPS,
) -> ProgramText:
    """The source of a function `run(args)` that takes a list of inputs, empties it, and returns a tuple.

    call: the text of the call expression of a node. dying: for each node index, the values to forget after it (-1:
    before the first node). ranges: name of the profiler range of a node ("" for none). groups: by the number of the
    first node, nodes that run together. Subgraphs that calls mention are functions before it.
    """
    writer = _new_writer(program, call, dying, comments, function)
    writer.groups = groups
    writer.restored = frozenset(node for group in groups.values() for node in group.restored)
    writer.dying = with_later_reads(dying, groups, writer.restored)
    writer.line(f"def {function}(args):", 0)
    if program.inputs:
        writer.line(f"{', '.join(value.name for value in program.inputs)}{',' * (len(program.inputs) == 1)} = args")
    writer.line("args.clear()")
    _write_body(writer, ranges)
    outputs = ", ".join(writer.names.text(operand) for operand in program.outputs)
    writer.line(f"return ({outputs}{',' if len(program.outputs) == 1 else ''})")
    return _with_functions(writer)


def _emit_sub_program(
    sub: SubProgram, call: CallWriter, comments: bool, function: str, named: dict[str, object]
) -> ProgramText:
    """The source of a function that takes the inputs of a subgraph. named: what the source around mentions by name."""
    writer = _new_writer(sub.program, call, {}, comments, function)
    writer.names.globals = named
    writer.line(f"def {function}({', '.join(value.name for value in sub.program.inputs)}):", 0)
    _write_body(writer, None)
    outputs = ", ".join(writer.names.text(operand) for operand in sub.program.outputs)
    if not sub.is_bare:
        outputs = f"({outputs}{',' if len(sub.program.outputs) == 1 else ''})"
    writer.line(f"return {outputs}")
    return _with_functions(writer)


def _new_writer(
    program: Program, call: CallWriter, dying: Mapping[int, tuple[Value, ...]], comments: bool, function: str
) -> _Writer:
    check_names(program)
    names = Names(frozenset(value.name for value in program.values()), within=function)
    return _Writer(program, call, dying, comments, names)


def _with_functions(writer: _Writer) -> ProgramText:
    """The source, after the functions that it calls."""
    before: list[str] = []
    for name, sub in writer.names.functions.items():
        made = _emit_sub_program(sub, writer.call, writer.comments, name, writer.names.globals)
        before += [*made.text.splitlines(), "", ""]
    lines = tuple(line + len(before) for line in writer.lines)
    return ProgramText("\n".join([*before, *writer.out]) + "\n", lines, dict(writer.names.globals))


def _write_body(writer: _Writer, ranges: Callable[[Node], str] | None) -> None:
    """Everything between the inputs and the outputs."""
    program = writer.program
    _bind_symbols(writer)
    _forget(writer, writer.dying.get(-1, ()), 1)
    at = 0
    while at < len(program.nodes):
        group = writer.groups.get(at)
        if group is not None:
            _write_group(writer, group, ranges)
            at = group.last + 1
        else:
            end = next((n for n in range(at, len(program.nodes)) if n in writer.groups), len(program.nodes))
            _write_nodes(writer, at, end, ranges, 1)
            at = end
    for name in writer.unbound:
        rule, stage = "every size symbol is bound", program.stage.value
        raise InvalidProgram(program=program.name, stage=stage, rule=rule, detail=name)


def _write_nodes(
    writer: _Writer,
    first: int,
    end: int,
    ranges: Callable[[Node], str] | None,
    indent: int,
    extra: Mapping[int, tuple[Value, ...]] | None = None,
) -> None:
    """Some nodes, one by one. extra: restored values, by the node after which they go; None: none is made."""
    current = ""
    for index in range(first, end):
        node = writer.program.nodes[index]
        if extra is None and node in writer.restored:
            writer.lines.append(0)
            continue
        wanted = ranges(node) if ranges else ""
        if wanted != current and wanted:
            writer.line(f"with record_function({wanted!r}):", indent)
        current = wanted
        _write_node(writer, node, indent + 1 if wanted else indent)
        forgotten = (*writer.dying.get(index, ()), *(extra or {}).get(index, ()))
        _forget(writer, forgotten, indent + 1 if wanted else indent)


def _write_group(writer: _Writer, group: NodeGroup, ranges: Callable[[Node], str] | None) -> None:
    """The code that runs a group, and the nodes one by one for where it does not."""
    done = free_name("group_ran", {*writer.names.taken, *writer.needed})
    unbound, lines = dict(writer.unbound), list(writer.lines)
    writer.line(f"{done} = {group.condition(writer.names)}")
    writer.line(f"if {done}:")
    writer.line("try:", 2)
    indent = 3 if ranges is None else 4
    if ranges:
        writer.line(f"with record_function({_range_of(writer, group, ranges)!r}):", 3)
    for node in group.before:
        _write_node(writer, node, indent)
    for statement in group.run(writer.names):
        writer.line(statement, indent)
    if group.fatal is not None:
        writer.line(f"except {group.fatal(writer.names)}:", 2)
        writer.line("raise", 3)
    writer.line("except Exception:", 2)
    writer.line(f"{done} = False", 3)
    writer.line(f"if {done}:")
    for statement in group.then(writer.names):
        writer.line(statement, 2)
    for step in group.after:
        if isinstance(step, Node):
            _write_node(writer, step, 2)
        else:
            writer.line(f"{step[0].name} = {step[1].name}", 2)
    writer.unbound, writer.lines = unbound, lines
    dying = (v for at in range(group.first, group.last + 1) for v in writer.dying.get(at, ()))
    _forget(writer, tuple(v for v in dying if v not in group.unbound), 2)
    writer.line("pass", 2)
    writer.line("else:")
    lines = list(writer.lines)
    for node in group.restored:
        _write_node(writer, node, 2)
    writer.lines = lines
    _write_nodes(
        writer, group.first, group.last + 1, ranges, 2, forgotten_within(writer.program, group, writer.restored)
    )


def _range_of(writer: _Writer, group: NodeGroup, ranges: Callable[[Node], str]) -> str:
    """What a profiler calls a group: after the ranges of its nodes."""
    nodes = writer.program.nodes[group.first : group.last + 1]
    named = dict.fromkeys(name for node in nodes if (name := ranges(node)))
    return f"cluster: {', '.join(named)}" if named else "cluster"


def _bind_symbols(writer: _Writer) -> None:
    """Assign each size symbol that the program reads from an input number or an input's shape.

    The others are numbers that nodes make, or sizes of what they make: `writer.unbound`.
    """
    program = writer.program
    needed = dict.fromkeys(name for node in program.nodes for name in node.symbols())
    needed.update(dict.fromkeys(symbols_in(program.outputs)))
    writer.needed = frozenset(needed)
    made = {v.meta.expr for n in program.nodes for v in n.results() if isinstance(v.meta, ScalarMeta)}
    for name in needed:
        expr = SizeExpr("symbol", (name,))
        source = symbol_source(program, expr)
        if source is None and expr not in made:
            writer.unbound[name] = None
        if source is not None and source != name:
            writer.line(f"{name} = {source}")


def _write_node(writer: _Writer, node: Node, indent: int) -> None:
    writer.lines.append(len(writer.out) + 1)
    expression = writer.call(writer.names, node)
    targets = [value.name if value is not None else "_" for value in node.outputs]
    if not any(value is not None for value in node.outputs):
        text = expression
    elif node.unpack:
        text = f"{', '.join(targets)}{',' * (len(targets) == 1)} = {expression}"
    else:
        text = f"{targets[0]} = {expression}"
    if writer.comments:
        remarks = ", ".join(str(value.meta) for value in node.results())
        where = str(node.origin)
        remarks += f"   {where}" if where else ""
        text = f"{text:<{_COMMENT_COLUMN}}  # {one_line(remarks)}"
    writer.line(text, indent)
    for value in node.results():
        expr = value.meta.expr if isinstance(value.meta, ScalarMeta) else None
        if isinstance(expr, SizeExpr) and expr.op == "symbol" and value.name != str(expr) in writer.needed:
            writer.line(f"{expr} = {value.name}", indent)
        for name in list(writer.unbound):
            source = size_source(value, symbol(name))
            if source is not None:
                writer.line(f"{name} = {source}", indent)
                del writer.unbound[name]


def _forget(writer: _Writer, values: tuple[Value, ...], indent: int) -> None:
    names = [value.name for value in values if value.is_tensor]
    if names:
        writer.line(f"del {', '.join(names)}", indent)


def operator_text(op: Target) -> str:
    """Python that gives an operator overload, `torch.ops.aten.add.Tensor`, or a function of numbers, `operator.mul`."""
    if isinstance(op, HigherOrder):
        return f"torch.ops.higher_order.{op.name()}"
    number_function = number_function_text(op)
    if number_function is not None:
        return number_function
    packet, _, overload = str(op).rpartition(".")
    if keyword.iskeyword(overload):
        return f'getattr(torch.ops.{packet}, "{overload}")'
    return f"torch.ops.{op}"


@dataclass(frozen=True, slots=True)
class _Named:
    """A function in the source."""

    name: str


def plain_call(names: Names, node: Node) -> str:
    """The call of a node by its operator's full name; with functions for subgraphs that are known."""
    run = getattr(node.target, "run", None)
    if isinstance(run, WithSubPrograms) and run.told is None:
        return f"{names.constant(node.target, run.operator.name())}({names.arguments(node)})"
    if isinstance(run, WithSubPrograms) and run.told is not None:
        wish = next((value.name for value in node.results()), run.operator.name())
        functions = [names.function(sub, f"{wish}_{place}") for place, sub in enumerate(run.told)]
        args, _ = run.arguments(node.args, lambda number: _Named(functions[number]))
        texts = [arg.name if isinstance(arg, _Named) else names.text(arg) for arg in args]
        return f"prims.below_autograd_of({operator_text(run.operator)})({', '.join(texts)})"
    if isinstance(node.target, FunctionType) and number_function_text(node.target) is None:
        return f"{names.constant(node.target, identifier(node.target.__name__))}({names.arguments(node)})"
    python = getattr(node.target, "python", None)
    callee = python if isinstance(python, str) else operator_text(node.target)
    return f"{callee}({names.arguments(node)})"
