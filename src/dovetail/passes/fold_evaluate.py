"""Evaluate the expressions of a folding plan, one stored value after the other.

The sources of a stored value are computed right before it, and everything is freed as soon as no further evaluation
reads it and no program needs it, the constants that were given, too. So the extra memory is about that of
one stored value and its sources.

A stored view that shows a part of a storage with no other holder becomes a copy of that part, with the same strides.

Cost: one run of each expression that a stored value needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from dovetail.errors import FoldedOtherwise
from dovetail.ir.program import Operand, TensorMeta, Value
from dovetail.ops.facts import leaves_contents_open
from dovetail.ops.preconditions import checked
from dovetail.passes.fold_graph import Expression
from dovetail.passes.fold_plan import FoldingPlan, span_bytes
from dovetail.torch_compat.autograd import below_autograd
from dovetail.torch_compat.dispatch import storage_key, without_modes


class Evaluation:
    """One evaluation of a plan over a pool of tensors, which it changes.

    After `run`: runs says which expressions run at each call, names what the stored values are called, moved where
    those lie that were copied, failed what could not be computed: (name, reason).
    """

    def __init__(self, plan: FoldingPlan, tensors: dict[str, torch.Tensor]) -> None:
        pool = self.pool = plan.pool
        self.tensors = tensors
        self.names = dict(plan.names)
        self.runs = list(plan.runs)
        self.needed = set(plan.kept)
        self.failed: list[tuple[str, str]] = []
        self.failing: set[int] = set()
        self.moved: dict[int, int] = {}
        self.fixed = set(plan.whole)  # storages of which no part may be copied
        self._held: dict[int, torch.Tensor] = {}
        self._alias_counts: dict[int, int] = {}
        for tensor in tensors.values():
            self._count(tensor, 1)
        self._stored: dict[int, list[int]] = {}
        for value in self.names:
            self._stored.setdefault(pool.storage_of(value), []).append(value)
        self._leaves = {facts.name: v for v, facts in enumerate(pool.values) if facts.maker < 0}
        self._ordered = self._order(list(self.names))
        self._waiting: set[int] = set(self._ordered)
        self._reads = [0] * len(pool.values)  # evaluations to come that read a value
        self._busy: dict[int, int] = {}  # by storage: evaluations to come that read or make a value there
        for number in self._ordered:
            self._note(pool.expressions[number], 1)

    def run(self) -> None:
        """Evaluate all."""
        with _plainly():
            for name, leaf in self._leaves.items():
                if name in self.tensors:
                    self._release(leaf)
            for number in self._ordered:
                if number not in self._waiting:
                    continue  # it needs what could not be computed
                self._waiting.discard(number)
                self._evaluate(number)
                self._settle(number)

    # --- order --------------------------------------------------------------------------------------------------

    def _order(self, stored: list[int]) -> list[int]:
        """The expressions that the stored values need: those of one value before those of the next."""
        pool = self.pool
        found: dict[int, None] = {}
        for value in stored:
            stack = [(pool.values[value].maker, False)]
            while stack:
                number, is_ready = stack.pop()
                if number < 0 or number in found:
                    continue
                if is_ready:
                    found[number] = None
                    continue
                stack.append((number, True))
                makers = [pool.values[operand].maker for operand in pool.expressions[number].operands]
                stack += [(maker, False) for maker in reversed(makers)]
        return list(found)

    def _note(self, expression: Expression, by: int) -> None:
        for operand in set(expression.operands):
            self._reads[operand] += by
        for storage in self._storages(expression):
            self._busy[storage] = self._busy.get(storage, 0) + by

    def _storages(self, expression: Expression) -> set[int]:
        values = (*expression.operands, *(output for output in expression.outputs if output is not None))
        return {self.pool.storage_of(value) for value in values}

    # --- one expression -----------------------------------------------------------------------------------------

    def _evaluate(self, number: int) -> None:
        expression = self.pool.expressions[number]
        try:
            result = self._result(expression)
        except FoldedOtherwise:
            raise
        except Exception as error:
            self._fail(number, error)
            return
        items = list(result) if expression.node.unpack else [result]
        if len(items) != len(expression.outputs):
            raise self._otherwise(expression, f"{len(items)} results", f"{len(expression.outputs)} results")
        for value, item in zip(expression.outputs, items, strict=True):
            if value is None or (not self._reads[value] and value not in self.names):
                continue
            tensor = self._as_described(expression, value, item)
            self._held[value] = tensor
            if value in self.names:
                self._store(value, tensor)

    def _result(self, expression: Expression) -> Any:
        """What the operator gives; the operands are no longer held here when this returns."""
        node = expression.node
        numbers = dict(zip(node.operands(), expression.operands, strict=True))

        def real(operand: Operand) -> Any:
            if isinstance(operand, Value):
                return self._tensor(numbers[operand])
            if isinstance(operand, tuple | list):
                return type(operand)(map(real, operand))
            return operand

        made: Any = (checked(node.target) or node.target)(
            *map(real, node.args), **{name: real(operand) for name, operand in node.kwargs}
        )
        if leaves_contents_open(node.target) and not torch.are_deterministic_algorithms_enabled():
            made.zero_()  # or a constant holds what happened to be in memory
        return made

    def _tensor(self, value: int) -> torch.Tensor:
        known = self._held.get(value)
        if known is None:
            facts = self.pool.values[value]
            assert facts.maker < 0, "operands are evaluated first, and held while they are read"
            known = self.tensors[facts.name].data  # no view of a parameter: the parameter can die
            self._held[value] = known
            found = _layout(known)
            if found != facts.meta.layout():
                raise FoldedOtherwise(
                    value=facts.name, found=found, expected=facts.meta.layout(), node=facts.name, origin=""
                )
        return known

    def _as_described(self, expression: Expression, value: int, item: Any) -> torch.Tensor:
        meta = self.pool.values[value].meta
        if not isinstance(item, torch.Tensor):
            raise self._otherwise(expression, type(item).__name__, "a tensor")
        if item.layout is not torch.strided:  # packed for a library: it has no strides
            if (tuple(item.shape), item.dtype, item.device) != (meta.shape, meta.dtype, meta.device):
                raise self._otherwise(expression, f"{item.layout} {tuple(item.shape)} {item.dtype}", meta)
            return item
        if value in self.names and (item.is_conj() or item.is_neg()):
            item = item.resolve_conj().resolve_neg()
        tensor: torch.Tensor = item.data
        if _layout(tensor) == meta.layout():
            return tensor
        if _layout(tensor)[0] == meta.shape and _layout(tensor)[2:] == meta.layout()[2:] and _lie_alike(tensor, meta):
            placed: torch.Tensor = tensor.as_strided(_ints(meta.shape), _ints(meta.stride))
            return placed
        raise self._otherwise(expression, _layout(tensor), meta.layout())

    def _otherwise(self, expression: Expression, found: object, expected: object) -> FoldedOtherwise:
        node = expression.node
        name = next((value.name for value in node.results()), str(node.target))
        return FoldedOtherwise(value=name, found=found, expected=expected, node=node.target, origin=str(node.origin))

    def _store(self, value: int, tensor: torch.Tensor) -> None:
        self.tensors[self.names[value]] = tensor
        self._count(tensor, 1)

    # --- afterwards ---------------------------------------------------------------------------------------------

    def _settle(self, number: int) -> None:
        """The evaluation is over: let go of what nobody needs, and copy what is a small part."""
        expression = self.pool.expressions[number]
        self._note(expression, -1)
        for value in (*expression.operands, *(output for output in expression.outputs if output is not None)):
            self._release(value)
        for storage in self._storages(expression):
            if not self._busy[storage]:
                self._compact(storage)

    def _release(self, value: int) -> None:
        if self._reads[value]:
            return
        self._held.pop(value, None)
        facts = self.pool.values[value]
        if facts.maker < 0 and facts.name not in self.needed and facts.name in self.tensors:
            self._count(self.tensors.pop(facts.name), -1)

    def _count(self, tensor: torch.Tensor, by: int) -> None:
        key = place_of(tensor)
        self._alias_counts[key] = self._alias_counts.get(key, 0) + by

    def _compact(self, storage: int) -> None:
        """Copy the parts of a storage that are stored, if that is all which is held of it."""
        if storage in self.fixed:
            return
        by_key: dict[int, list[int]] = {}
        for value in self._stored.get(storage, []):
            if value in self.names:
                by_key.setdefault(place_of(self.tensors[self.names[value]]), []).append(value)
        for key, values in by_key.items():
            if self._alias_counts[key] == len(values) and all(self._is_strided(value) for value in values):
                self._copy_parts(values)

    def _is_strided(self, value: int) -> bool:
        return self.tensors[self.names[value]].layout is torch.strided

    def _copy_parts(self, values: list[int]) -> None:
        tensors = {value: self.tensors[self.names[value]] for value in values}
        whole = next(iter(tensors.values())).untyped_storage()
        parts: list[tuple[int, int, list[int]]] = []
        for first, last, value in sorted((*_span_of(tensor), value) for value, tensor in tensors.items()):
            if parts and first < parts[-1][1]:
                begin, end, members = parts.pop()
                parts.append((begin, max(end, last), [*members, value]))
            else:
                parts.append((first, last, [value]))
        if sum(last - first for first, last, _ in parts) >= whole.nbytes():
            return
        for first, last, members in parts:
            device = tensors[members[0]].device
            flat = torch.empty(0, dtype=torch.uint8, device=device).set_(whole, first, (last - first,), (1,))
            part = flat.clone().untyped_storage()
            for value in members:
                old = tensors[value]
                offset = int(old.storage_offset()) - first // old.dtype.itemsize if old.numel() else 0
                new = torch.empty(0, dtype=old.dtype, device=device).set_(part, offset, old.shape, old.stride())
                self._count(old, -1)
                self._count(new, 1)
                self.moved[value] = offset
                self.tensors[self.names[value]] = new

    # --- failures -----------------------------------------------------------------------------------------------

    def _fail(self, number: int, error: Exception) -> None:
        """Leave the expression, and what is computed from it, to the programs, with all that they need for it."""
        pool = self.pool
        first = str(error).strip().partition("\n")[0]
        name = next((value.name for value in pool.expressions[number].node.results()), "nothing")
        self.failed.append((name, f"RAISES: {type(error).__name__}: {first}"))
        gone = {number}
        for other in self._ordered:
            if other in self._waiting and any(pool.values[o].maker in gone for o in pool.expressions[other].operands):
                gone.add(other)
        self.failing |= gone
        for other in gone:
            self.runs[other] = True
            for output in pool.expressions[other].outputs:
                if output is not None:
                    self.names.pop(output, None)
        for other in gone:
            self.fixed |= self._storages(pool.expressions[other])
            for operand in pool.expressions[other].operands:
                self._provide(operand)
        for other in gone - {number}:
            self._waiting.discard(other)
            self._settle(other)

    def _provide(self, value: int) -> None:
        """Let the programs have a value at each call."""
        pool = self.pool
        facts = pool.values[value]
        if facts.maker < 0:
            self.needed.add(facts.name)
        elif self.runs[facts.maker] or value in self.names:
            return
        elif pool.expressions[facts.maker].is_lazy:
            self.runs[facts.maker] = True
            self.fixed |= self._storages(pool.expressions[facts.maker])
            for operand in pool.expressions[facts.maker].operands:
                self._provide(operand)
        else:
            self.names[value] = f"stored_{facts.digest[:16]}_{facts.digest.partition('.')[2]}"
            self._stored.setdefault(pool.storage_of(value), []).append(value)
            if value in self._held:
                self._store(value, self._held[value])


@contextmanager
def _plainly() -> Iterator[None]:
    """While active, operators do what is written, whatever modes are entered, and autograd does not see them."""
    with ExitStack() as stack:
        stack.enter_context(without_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(below_autograd())
        yield


def described_at(meta: TensorMeta, offset: int | None, storage: int) -> TensorMeta:
    """The description of a value that is stored. offset: where it is now, if it has been moved."""
    return replace(meta, storage=storage) if offset is None else replace(meta, storage=storage, offset=offset)


def place_of(tensor: torch.Tensor) -> int:
    """A number for the memory of a tensor, equal for those that share it."""
    return storage_key(tensor) if tensor.layout is torch.strided else -id(tensor)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


def _ints(sizes: tuple[object, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if isinstance(size, int))


def _lie_alike(tensor: torch.Tensor, meta: TensorMeta) -> bool:
    """Whether strides differ only where nobody can tell: there is one element in that direction, or none at all."""
    steps = zip(tensor.shape, tensor.stride(), meta.stride, strict=True)
    return tensor.numel() == 0 or all(size == 1 or mine == described for size, mine, described in steps)


def _span_of(tensor: torch.Tensor) -> tuple[int, int]:
    return span_bytes(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype.itemsize)
