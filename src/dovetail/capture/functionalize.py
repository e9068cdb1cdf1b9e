"""Turn a recorded, impure program into a functional one: a graph problem on storages and views.

State, per storage of the recorded program: a version, which a write moves. Per recorded value: the functional value
that holds its contents, and the version at which that is true. A value whose version is old is a view (everything else
is the root of its storage, and roots are always current) and is made again from its parent when somebody reads it. A
write computes new contents with the operator's functional variant, carries them up the chain of views to the root
(`ops.views.write_through`), and moves the version. No autograd is left at this point: the recorded program contains
what autograd did.

    t = add(x, 1); v = t[0]; v.mul_(2); return t
    ->  t = add(x, 1); v = select(t, 0); v2 = mul(v, 2); t2 = select_scatter(t, v2, 0); return t2

Every new value has the strides and dtype that the written tensor has in eager, so that everything after it sees the
same layout. Source: the storage/view formulation is our own; compare the rewrite of destination-passing programs to
static single assignment, Cytron et al. (1991). Cost: O(nodes + views made again).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import torch

from dovetail.analysis.region import extent_bytes
from dovetail.capture.operators import short_name
from dovetail.capture.placing import moved_view, on_storage
from dovetail.errors import DtypeChangingWrite
from dovetail.ir.prim import Prim
from dovetail.ir.program import Meta, Node, Operand, Origin, Phase, Target, TensorMeta, Value, map_operands
from dovetail.ir.sizes import difference
from dovetail.ir.text import identifier
from dovetail.ops.facts import overwrites, writes_of, written_values
from dovetail.ops.functional_variants import FunctionalVariant, exact_variant, spell_out_defaults
from dovetail.ops.prims import COPY_TO_LAYOUT
from dovetail.ops.views import BASE, SOURCE, addresses_storage, replayed_args, write_through
from dovetail.torch_compat.dispatch import Overload, schema_of

Keywords: TypeAlias = tuple[tuple[str, Operand], ...]
Infer: TypeAlias = "Callable[[Target, tuple[Operand, ...], Keywords], list[Meta | None]]"


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view on the way from a storage's root to a value: `node` applied to `parent`, item `index` of it."""

    node: Node
    parent: Value
    index: int | None


class Functionalizer:
    """Consumes recorded nodes in order, emits functional ones.

    new_storage: gives a number that no storage of the recording has. infer: gives the descriptions of an operator's
    results (by running it on fakes); asked only for operators that the recorder did not see itself. shown: for inputs
    that show their bytes otherwise (conjugate, negative), the views that do so.
    Attributes: nodes, what was emitted; outside, views that leave the region of what they are views of, with that.
    """

    def __init__(
        self,
        inputs: Sequence[Value],
        infer: Infer,
        new_storage: Callable[[], int],
        shown: Mapping[Value, Sequence[Overload]],
    ) -> None:
        self.nodes: list[Node] = []
        self.outside: list[tuple[Value, Value]] = []
        self._infer = infer
        self._current: dict[Value, Value] = {}
        self._made_at: dict[Value, int] = {}
        self._version: dict[int, int] = {}
        self._steps: dict[Value, ViewStep] = {}
        self._writes: dict[Value, int] = {}
        self._outer: set[int] = set()
        self._shown = shown
        self._new_storage = new_storage
        self._names: dict[str, int] = {}
        self._source: Node | None = None
        for value in inputs:
            self.declare(value)

    # --- reading --------------------------------------------------------------------------------------------

    def declare(self, value: Value) -> None:
        """An input (or a tangent, or a constant): it holds its own contents."""
        self._names.setdefault(value.name, 1)
        self._current[value] = value
        if value.is_tensor:
            self._outer.add(value.tensor.storage)
            self._made_at[value] = self._version.setdefault(value.tensor.storage, 0)

    def read(self, value: Value) -> Value:
        """The functional value that holds the present contents of a recorded value."""
        current = self._current[value]
        if not value.is_tensor or self._made_at[value] == self._version[value.tensor.storage]:
            return current
        step = self._steps.get(value)
        if step is None:
            return current
        current = self._replay(step, value)
        self._current[value] = current
        self._made_at[value] = self._version[value.tensor.storage]
        return current

    def _replay(self, step: ViewStep, value: Value) -> Value:
        parent = self.read(step.parent)
        node = step.node
        assert isinstance(node.target, Overload), "views are operators"
        moved = difference(parent.tensor.offset, step.parent.tensor.offset)
        args = replayed_args(node.target, (parent, *node.args[1:]), moved)
        if step.index is None:
            return self._emit_view(node.target, args, node.kwargs, value, parent)
        metas: list[Meta | None] = [
            moved_view(output.tensor, parent.tensor, moved) if output is not None else None for output in node.outputs
        ]
        outputs = self._emit(node.target, args, node.kwargs, metas, unpack=True)
        for sibling, output in zip(node.outputs, outputs, strict=True):
            if sibling is not None and output is not None:
                self._current[sibling] = output
                self._made_at[sibling] = self._version[sibling.tensor.storage]
        result = outputs[step.index]
        assert result is not None, "the item was a tensor when it was recorded"
        return result

    def _emit_view(
        self,
        target: Overload,
        args: tuple[Operand, ...],
        kwargs: tuple[tuple[str, Operand], ...],
        like: Value,
        parent: Value,
    ) -> Value:
        moved = difference(parent.tensor.offset, self._steps[like].parent.tensor.offset)
        meta = moved_view(like.tensor, parent.tensor, moved)
        (result,) = self._emit(target, args, kwargs, [meta])
        assert result is not None, "a view has a result"
        return result

    # --- consuming ------------------------------------------------------------------------------------------

    def consume(self, node: Node) -> None:
        """Append the functional counterpart of one recorded node."""
        self._source = node
        writes = writes_of(node)
        if writes:
            self._consume_write(node, writes)
        else:
            self._consume_pure(node)
        self._source = None

    def _consume_pure(self, node: Node) -> None:
        swapped = node.with_operands(self.read)
        parents = {v.tensor.storage: v for v in reversed(list(node.operands())) if v.is_tensor}
        metas: list[Meta | None] = []
        for index, output in enumerate(node.outputs):
            if output is None or not output.is_tensor:
                metas.append(None if output is None else output.meta)
                continue
            parent = parents.get(output.tensor.storage)
            if parent is None:
                metas.append(on_storage(output.tensor, self._new_storage()))
                continue
            if isinstance(node.target, Overload) and addresses_storage(node.target, node.args):
                parent = self._addressed(parent, output)
            self._steps[output] = ViewStep(node, parent, index if node.unpack else None)
            current = self.read(parent)
            moved = difference(current.tensor.offset, parent.tensor.offset)
            metas.append(moved_view(output.tensor, current.tensor, moved))
            if moved != 0 and isinstance(node.target, Overload):
                swapped = node.with_operands(self.read)
                swapped = replace(swapped, args=replayed_args(node.target, swapped.args, moved))
        outputs = self._emit(swapped.target, swapped.args, swapped.kwargs, metas, node.unpack)
        for output, made in zip(node.outputs, outputs, strict=True):
            if output is not None and made is not None:
                self._register(output, made)

    def _addressed(self, parent: Value, view: Value) -> Value:
        """What a view by absolute address is a view of: the first value on the way to the root that has it inside."""
        inside = extent_bytes(view.tensor)
        candidate, step = parent, self._steps.get(parent)
        while inside is not None:
            around = extent_bytes(candidate.tensor)
            if around is None or candidate.tensor.dtype != parent.tensor.dtype:
                break
            if around[0] <= inside[0] and inside[1] <= around[1]:
                return candidate
            if step is None:
                break
            candidate, step = step.parent, self._steps.get(step.parent)
        if inside is not None:
            self.outside.append((view, parent))
        return parent

    def _register(self, value: Value, made: Value) -> None:
        self._current[value] = made
        if value.is_tensor:
            self._made_at[value] = self._version.setdefault(value.tensor.storage, 0)

    def _consume_write(self, node: Node, writes: tuple[int, ...]) -> None:
        assert isinstance(node.target, Overload), "only operators write"
        written = written_values(node)
        if overwrites(node.target):
            self._write(written[0], self._copied(written[0], map_operands(node.args[1], self.read)))
            return
        variant = exact_variant(node.target, writes, [value.tensor for value in written])
        args, kwargs = self._variant_arguments(node, variant)
        metas = self._variant_metas(node, variant, args, kwargs, written)
        results = self._emit(variant.target, args, kwargs, metas, variant.returns_list)
        fresh = [output for output in node.outputs if output is not None]
        positions = [i for i, output in enumerate(node.outputs) if output is not None]
        for output, position in zip(fresh, positions, strict=True):
            made = results[position]
            assert made is not None, "a fresh result exists"
            self._register(output, made)
        contents = results[len(results) - len(written) :]
        for value, content in zip(written, contents, strict=True):
            assert content is not None, "a written tensor has contents"
            if not torch.can_cast(content.tensor.dtype, value.tensor.dtype):
                raise DtypeChangingWrite(
                    operator=str(node.target),
                    origin=node.origin,
                    made=content.tensor.dtype,
                    wanted=value.tensor.dtype,
                )
            self._write(value, content)

    def _variant_arguments(self, node: Node, variant: FunctionalVariant) -> tuple[tuple[Operand, ...], Keywords]:
        assert isinstance(node.target, Overload), "only operators write"
        outs = {a.name for a in schema_of(node.target).arguments if a.is_out} if variant.drops_out else set()
        swapped = node.with_operands(self.read)
        args, kwargs = swapped.args, [(name, operand) for name, operand in swapped.kwargs if name not in outs]
        if isinstance(variant.target, Overload) and not variant.drops_out:
            args = spell_out_defaults(node.target, variant.target, args)
        return args, tuple(kwargs)

    def _variant_metas(
        self,
        node: Node,
        variant: FunctionalVariant,
        args: tuple[Operand, ...],
        kwargs: Keywords,
        written: list[Value],
    ) -> list[Meta | None]:
        if isinstance(variant.target, Prim):
            fresh: list[Meta | None] = [None if o is None else o.meta for o in node.outputs[: variant.fresh]]
            metas = [*fresh, *(on_storage(value.tensor, value.tensor.storage, offset=0) for value in written)]
        else:
            metas = self._infer(variant.target, args, kwargs)
        return [on_storage(m, self._new_storage()) if isinstance(m, TensorMeta) else m for m in metas]

    # --- writing --------------------------------------------------------------------------------------------

    def _write(self, value: Value, contents: Value) -> None:
        """From now on `value`, and every view of its storage, sees `contents` where `value` lies."""
        current = value
        while (step := self._steps.get(current)) is not None:
            self._writes[current] = self.write_count(current) + 1
            contents = self._write_into_parent(step, current, contents)
            current = step.parent
        self._writes[current] = self.write_count(current) + 1
        contents = self._shown_like(current, self._with_layout_of(current, contents))
        storage = current.tensor.storage
        self._version[storage] += 1
        self._current[current] = contents
        self._made_at[current] = self._version[storage]

    def _write_into_parent(self, step: ViewStep, value: Value, contents: Value) -> Value:
        node = step.node
        assert isinstance(node.target, Overload), "views are operators"
        base = self.read(step.parent)
        moved = difference(base.tensor.offset, step.parent.tensor.offset)
        rule = write_through(
            node.target,
            replayed_args(node.target, node.args, moved),
            node.kwargs,
            step.index,
            step.parent.tensor,
            view=value.tensor,
            on_copy=replayed_args(node.target, node.args, difference(0, step.parent.tensor.offset)),
            whole_storage=base.tensor.storage not in self._outer,
        )
        if rule.is_view:
            contents = self._with_layout_of(value, contents)
            meta = on_storage(step.parent.tensor, contents.tensor.storage, offset=contents.tensor.offset)
        else:
            meta = on_storage(base.tensor, self._new_storage(), offset=0 if isinstance(rule.target, Prim) else None)
        args = tuple(base if a is BASE else contents if a is SOURCE else a for a in rule.args)
        (result,) = self._emit(rule.target, args, rule.kwargs, [meta])
        assert result is not None, "writing through a view gives a tensor"
        return result

    def _with_layout_of(self, value: Value, contents: Value) -> Value:
        if contents.tensor.layout() == value.tensor.layout():
            return contents
        return self._copied(value, contents)

    def _shown_like(self, root: Value, contents: Value) -> Value:
        """The contents in bytes that show them as the root does: views of it were recorded for such bytes."""
        if root not in self._shown:
            return contents
        views = self._shown[root]
        return reduce(self._seen_by, views, self._copied(root, reduce(self._seen_by, views, contents)))

    def _seen_by(self, value: Value, view: Overload) -> Value:
        (result,) = self._emit(view, (value,), (), [value.meta])
        assert result is not None, "a view has a result"
        return result

    def _copied(self, value: Value, contents: Operand) -> Value:
        wanted = value.tensor
        args = (contents, list(wanted.shape), list(wanted.stride), wanted.dtype, wanted.device)
        meta = on_storage(wanted, self._new_storage(), offset=0)
        (result,) = self._emit(COPY_TO_LAYOUT, args, (), [meta])
        assert result is not None, "a copy gives a tensor"
        return result

    # --- emitting -------------------------------------------------------------------------------------------

    def _emit(
        self,
        target: Callable[..., object],
        args: tuple[Operand, ...],
        kwargs: tuple[tuple[str, Operand], ...],
        metas: list[Meta | None],
        unpack: bool = False,
    ) -> tuple[Value | None, ...]:
        outputs = tuple(None if meta is None else Value(self._fresh_name(short_name(target)), meta) for meta in metas)
        source = self._source
        self.nodes.append(
            Node(
                target,
                args,
                kwargs,
                outputs,
                unpack,
                phase=source.phase if source else Phase.FORWARD,
                origin=source.origin if source else Origin(),
                recomputed=source.recomputed if source else False,
            )
        )
        return outputs

    def at_phase(self, phase: Phase) -> None:
        """Stamp `phase` on what is emitted between recorded nodes."""
        self._source = Node(overwrites, (), phase=phase)

    def _fresh_name(self, base: str) -> str:
        base = identifier(base.strip("_"))
        while True:
            count = self._names.get(base, 0)
            self._names[base] = count + 1
            name = f"{base}_{count}" if count else base
            if count == 0 or name not in self._names:
                self._names.setdefault(name, 1)
                return name

    def own_copy(self, value: Value) -> Value:
        """A copy of a functional value on a storage of its own, with the same layout."""
        return self._copied(value, value)

    def chain_of(self, value: Value) -> tuple[Value, tuple[ViewStep, ...]]:
        """The root of a value's storage and the views that lead from it to the value."""
        steps: list[ViewStep] = []
        current = value
        while (step := self._steps.get(current)) is not None:
            steps.append(step)
            current = step.parent
        return current, tuple(reversed(steps))

    def fork(self) -> Functionalizer:
        """An independent copy at this point: what it consumes does not show here."""
        fork = copy.copy(self)
        for name, held in vars(self).items():
            if isinstance(held, dict | list | set):
                setattr(fork, name, held.copy())
        return fork

    def write_count(self, value: Value) -> int:
        """How often a recorded value was written so far, by itself or through a view of it."""
        return self._writes.get(value, 0)

    def step_of(self, value: Value) -> ViewStep | None:
        """The view that makes a recorded value; None for the root of a storage."""
        return self._steps.get(value)

    def is_view_of(self, value: Value, base: Value) -> bool:
        """Whether a write to `value` reaches `base` on its way up."""
        while value is not base and (step := self._steps.get(value)) is not None:
            value = step.parent
        return value is base

    def views(self) -> Iterator[tuple[Value, ViewStep]]:
        """Every recorded view, oldest first, with the step that makes it."""
        return iter(self._steps.items())
