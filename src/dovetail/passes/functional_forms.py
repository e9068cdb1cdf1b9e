"""Rewrite torch's forms of operators that write as applications of functional forms.

torch turns custom operators that write into `auto_functionalized`, and its own operators that write several lists into
operators whose results are lists:

    a = auto_functionalized(op, x=b, y=c)                            ->   a, d = functional_form(op)(b, c)
    a = auto_functionalized_v2(op, y=c, _x_base_index=0,             ->   v = slice(b, 0, 2, 4)
            _x_slice_dim=0, _x_slice_start=2, _x_slice_end=4,             w = functional_form(op)(v, c)
            _all_bases=[b])                                               a = view_scatter(slice)(b, w, 0, 2, 4)

    a, b, c = _fused_sgd([p], [g], [m], ...)                         ->   [d, e, f] = functional_form(_fused_sgd_)(
                                                                                  [p], [g], [m], ...)

So it is known which bytes the operator reads and writes. Left as they are: operators whose written arguments may share
bytes, `out=` operators, and arguments whose place in memory is given absolutely while their base begins elsewhere.
Cost: O(nodes), and one overlap question for each pair of parts of one base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import torch

from dovetail.analysis.pairs import may_overlap
from dovetail.ir.draft import Draft
from dovetail.ir.prim import FlatResults, Prim
from dovetail.ir.program import Node, Operand, Program, Value
from dovetail.ir.sizes import Size, difference
from dovetail.ops.functional_variants import form_of_lists
from dovetail.ops.prims import functional_form, view_scatter
from dovetail.ops.views import addresses_storage, viewed_meta
from dovetail.torch_compat.dispatch import HigherOrder, Overload, Schema, schema_of

aten = torch.ops.aten


def write_as_functional_forms(program: Program) -> Program:
    """The program without such applications, as far as possible; itself if it has none."""
    program = program.replace_nodes(tuple(map(_of_lists, program.nodes)))
    if not any(_version(node) for node in program.nodes):
        return program
    return _Rewriter(program).run()


def _of_lists(node: Node) -> Node:
    """The node, as an application of a functional form if its results are lists that are new contents of operands."""
    run = node.target.run if isinstance(node.target, Prim) else None
    form = form_of_lists(run.op) if isinstance(run, FlatResults) else None
    return node if form is None else replace(node, target=form)


def _version(node: Node) -> int:
    name = node.target.name() if isinstance(node.target, HigherOrder) else ""
    return {"auto_functionalized": 1, "auto_functionalized_v2": 2}.get(name, 0)


@dataclass(frozen=True, slots=True)
class _Part:
    """The part `view(base, *args)` that is an argument; the whole base where there is no view."""

    base: int
    view: Overload | None = None
    args: tuple[Operand, ...] = ()


@dataclass
class _Rewriter:
    program: Program
    moved: dict[int, Size] = field(default_factory=dict)  # storage -> by how much its values begin earlier now

    def __post_init__(self) -> None:
        program, self.draft = self.program, Draft(self.program)
        addressing = [
            n for n in program.nodes if isinstance(n.target, Overload) and addresses_storage(n.target, n.args)
        ]
        self.addressed = {value.tensor.storage for node in addressing for value in node.results() if value.is_tensor}

    def run(self) -> Program:
        """Rewrite every node, and describe the results where they lie now."""
        for node in self.program.nodes:
            version = _version(node)
            made = (self._first if version == 1 else self._second)(node) if version else None
            self.draft.nodes += [node] if made is None else made
        if self.moved:
            self.draft.nodes = [self._with_offsets(node) for node in self.draft.nodes]
        return self.draft.finish()

    def _with_offsets(self, node: Node) -> Node:
        for value in node.results():
            shift = self.moved.get(value.tensor.storage, 0) if value.is_tensor else 0
            if shift != 0:
                meta = replace(value.tensor, offset=difference(value.tensor.offset, shift))
                self.draft.substitute(value, Value(value.name, meta))
        return self.draft.rewritten(node)

    # --- the first version: each written argument is copied

    def _first(self, node: Node) -> list[Node] | None:
        op, given = node.args[0], dict(node.kwargs)
        if not isinstance(op, Overload) or not _is_plain(schema_of(op)):
            return None
        written = [given.get(a.name) for a in schema_of(op).arguments if a.is_write]
        results = node.outputs[max(len(schema_of(op).returns), 1) :]
        operands = [value for value in written if isinstance(value, Value)]
        made = [value for value in results if value is not None]
        if len(operands) != len(written) or len(made) != len(written) or not self._may_begin_at_0(made):
            return None
        return [self._form(node, op, given, tuple(made))]

    # --- the second version: each base of written arguments is copied

    def _second(self, node: Node) -> list[Node] | None:
        op, given = node.args[0], dict(node.kwargs)
        bases = given.pop("_all_bases", [])
        if not isinstance(op, Overload) or not _is_plain(schema_of(op)) or not isinstance(bases, list):
            return None
        held: dict[str, Operand] = {}
        parts: list[tuple[_Part, Value]] = []
        before: list[Node] = []
        for argument in schema_of(op).arguments:
            if not argument.is_write:
                continue
            is_list = argument.type.startswith("List")
            prefixes = [f"_{argument.name}"]
            if is_list:
                length = given.pop(f"_{argument.name}_length", None)
                prefixes = [f"_{argument.name}_{i}" for i in range(length)] if isinstance(length, int) else []
            shown: list[Operand] = []
            for prefix in prefixes:
                part = _part(given, prefix, bases)
                value = self._shown(node, part, bases, before) if part is not None else None
                if part is None or value is None:
                    return None
                parts.append((part, value))
                shown.append(value)
            if not shown:
                return None
            held[argument.name] = shown if is_list else shown[0]
        results = node.outputs[max(len(schema_of(op).returns), 1) :]
        if not _lie_apart(parts) or len(results) != len(bases) or not self._may_begin_at_0(results):
            return None
        contents = [self._contents(part, value, results) for part, value in parts]
        after = self._put_back(node, bases, list(zip((part for part, _ in parts), contents, strict=True)), results)
        given = {
            name: operand for name, operand in given.items() if any(a.name == name for a in schema_of(op).arguments)
        }
        return [*before, self._form(node, op, {**given, **held}, tuple(contents)), *after]

    def _shown(self, node: Node, part: _Part, bases: Sequence[Operand], before: list[Node]) -> Value | None:
        base = bases[part.base]
        if not isinstance(base, Value) or part.view is None:
            return base if isinstance(base, Value) else None
        meta = viewed_meta(part.view, None, part.args, base.tensor, None)
        if meta is None or (part.view is aten.as_strided.default and base.tensor.offset != 0):
            return None
        made = Value(self.draft.name(f"{base.name}_part"), meta)
        before.append(
            replace(node, target=part.view, args=(base, *part.args), kwargs=(), outputs=(made,), unpack=False)
        )
        return made

    def _contents(self, part: _Part, value: Value, results: Sequence[Value | None]) -> Value:
        result = results[part.base]
        return result if part.view is None and result is not None else self.draft.value("contents", value.tensor)

    def _put_back(
        self,
        node: Node,
        bases: Sequence[Operand],
        parts: Sequence[tuple[_Part, Value]],
        results: Sequence[Value | None],
    ) -> list[Node]:
        made: list[Node] = []
        for number, (base, result) in enumerate(zip(bases, results, strict=True)):
            mine = [(part, contents) for part, contents in parts if part.base == number and part.view is not None]
            current = base
            for place, (part, contents) in enumerate(mine):
                assert isinstance(current, Value), "bases are tensors"
                assert part.view is not None, "it has been asked for"
                new = result if place == len(mine) - 1 else None
                new = new if new is not None else self.draft.value(f"{current.name}_with", current.tensor)
                args = (current, contents, *part.args)
                target = view_scatter(part.view, None)
                made.append(replace(node, target=target, args=args, kwargs=(), outputs=(new,), unpack=False))
                current = new
        return made

    # --- both

    def _form(self, node: Node, op: Overload, given: dict[str, Operand], contents: tuple[Value, ...]) -> Node:
        schema = schema_of(op)
        writes = tuple(i for i, argument in enumerate(schema.arguments) if argument.is_write)
        positional = tuple(given.get(a.name, a.default) for a in schema.arguments if not a.kwarg_only)
        keywords = tuple((a.name, given[a.name]) for a in schema.arguments if a.kwarg_only and a.name in given)
        outputs = (*node.outputs[: len(schema.returns)], *contents)
        return replace(
            node, target=functional_form(op, writes), args=positional, kwargs=keywords, outputs=outputs, unpack=True
        )

    def _may_begin_at_0(self, results: Sequence[Value | None]) -> bool:
        """Note that new contents begin where their memory does; False where somebody names places in it."""
        for result in results:
            if result is not None and result.tensor.offset != 0:
                if result.tensor.storage in self.addressed:
                    return False
                self.moved[result.tensor.storage] = result.tensor.offset
        return True


def _is_plain(schema: Schema) -> bool:
    """Whether the operator gives new tensors, if anything, and writes tensors that it is given by position."""
    if any(type_ != "Tensor" or alias for type_, alias, _ in schema.returns):
        return False
    return not any(a.is_out or (a.is_write and a.kwarg_only) for a in schema.arguments)


def _part(given: dict[str, Operand], prefix: str, bases: Sequence[Operand]) -> _Part | None:
    """Which part of which base an argument is; None where it is none."""
    base = given.get(f"{prefix}_base_index")
    if not isinstance(base, int):
        return None
    if f"{prefix}_alias" in given:
        return _Part(base, aten.alias.default)
    if f"{prefix}_storage_offset" in given:
        names = ("size", "stride", "storage_offset")
        args = [given[f"{prefix}_{name}"] for name in names]
        args = [list(a) if isinstance(a, tuple) else a for a in args]
        return _selected(base, bases[base], *args) or _Part(base, aten.as_strided.default, tuple(args))
    if f"{prefix}_slice_dim" in given:
        names = ("dim", "start", "end")
        return _Part(base, aten.slice.Tensor, tuple(given[f"{prefix}_slice_{name}"] for name in names))
    return _Part(base)


def _selected(number: int, base: Operand, size: Operand, stride: Operand, offset: Operand) -> _Part | None:
    """The part as one entry along a dimension of its base, if it is that: a place that moves with the base."""
    if not isinstance(base, Value) or not isinstance(offset, int) or not isinstance(base.tensor.offset, int):
        return None
    shape, steps = list(base.tensor.shape), list(base.tensor.stride)
    for dim, (count, step) in enumerate(zip(shape, steps, strict=True)):
        if [*shape[:dim], *shape[dim + 1 :]] != size or [*steps[:dim], *steps[dim + 1 :]] != stride:
            continue
        if isinstance(count, int) and isinstance(step, int) and step > 0:
            index, rest = divmod(offset - base.tensor.offset, step)
            if rest == 0 and 0 <= index < count:
                return _Part(number, aten.select.int, (dim, index))
    return None


def _lie_apart(parts: Sequence[tuple[_Part, Value]]) -> bool:
    return not any(a.base == b.base and may_overlap(u.tensor, v.tensor) for (a, u), (b, v) in combinations(parts, 2))
