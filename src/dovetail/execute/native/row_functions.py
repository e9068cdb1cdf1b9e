"""Functions of rows as parts of loops, where results may differ by rounding: softmax, norms, sums over the last
dimensions. Pointwise nodes around them share the loop (`row_loop`): a row is in the cache from its first use on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from dovetail.execute.native.bounds import Bounds, check_row
from dovetail.execute.native.claim_base import PlacedBase
from dovetail.execute.native.claims import is_number
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.row_loop import Read, Rows, RowStep, Span, matrix, part_of
from dovetail.execute.native.row_rules import ROW_RULES, Arguments, RowRule
from dovetail.execute.native.row_trials import RowQuestion, of_matrix, tried
from dovetail.execute.native.rows import Access, Address, Addresses, ReadyRow
from dovetail.execute.native.trials import answered
from dovetail.ir.program import Node, Operand, Value
from dovetail.ir.sizes import Size, product
from dovetail.ops.arguments import arguments_of
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import Overload, schema_of

_FEW = 4  # rows, of which one thread does all


@dataclass(frozen=True, slots=True)
class RowFunctionClaim(PlacedBase):
    """See `rows.RowClaim`. operands: tensors, then numbers. results: all of the node's, None for those that nobody
    reads. rows: the matrix. besides: what whole numbers may be that name no element of a row.
    """

    node: Node
    question: RowQuestion
    operands: tuple[Operand, ...]
    results: tuple[Value | None, ...]
    into: Value | None
    result: Value
    rows: Rows
    besides: int = 0
    element: str = "float"

    @property
    def layout(self) -> tuple[object, ...]:
        """No other node works on elements like this one by one."""
        return ("rows of a matrix", self.rows)

    @property
    def made(self) -> tuple[Value, ...]:
        """The results that get new memory."""
        return () if self.into is not None else tuple(value for value in self.results if value is not None)

    @property
    def tensors(self) -> tuple[Value, ...]:
        """The operands that are tensors."""
        return tuple(each for each in self.operands if isinstance(each, Value) and each.is_tensor)

    @property
    def checked(self) -> tuple[Value, ...]:
        """What a check reads before all rows run."""
        pairs = zip(self.question.operands, self.tensors, strict=True)
        return tuple(value for (name, _), value in pairs if name == self.question.index)

    def checks(self, addresses: Addresses) -> list[ReadyRow]:
        """The rows that check it."""
        bounds, count = Bounds(self.question.index, self.rows.columns, self.besides), self.rows.rows
        known = [(value, count) for value in self.checked if isinstance(count, int)]  # others are not claimed
        return [check_row(bounds, addresses.get(value, Address(value)), count) for value, count in known]

    def accesses(self) -> list[Access]:
        """What it touches."""
        written = [Access(value.tensor, is_written=True) for value in (self.made or (self.written,))]
        return written + [Access(value.tensor) for value in self.tensors]

    def in_rows(self, rows: Rows) -> tuple[RowStep, ...] | None:
        """What it does in a loop over rows; None where they are others."""
        if rows != self.rows:
            return None
        spans = [span for _, span in self.question.operands]
        reads: list[Read] = [(v, part_of(span, rows.columns)) for v, span in zip(self.tensors, spans, strict=True)]
        reads += [(number, None) for number in self.operands[len(spans) :]]
        given = (self.written,) if self.into is not None else self.results
        return tuple(
            RowStep(formula, tuple(reads), value, part_of(span, rows.columns))
            for value, (span, formula) in zip(given, self.question.results, strict=True)
            if value is not None
        )

    def is_proven(self) -> bool:
        """Whether results are near those of torch."""
        question = self.question
        return answered(question, question.target, lambda: tried(question))


def row_function_claim(node: Node) -> RowFunctionClaim | None:
    """The claim on a node, as far as descriptions say."""
    target, results = node.target, node.outputs
    if not isinstance(target, Overload) or schema_of(target).namespace != "aten":
        return None
    rule, arguments, writes = ROW_RULES.get(schema_of(target).name), arguments_of(node), facts_of(target).writes
    formulas = rule.results(arguments) if rule is not None else None
    if rule is None or formulas is None or len(writes) > 1 or not any(results):
        return None
    into_name = schema_of(target).arguments[writes[0]].name if writes else ""
    into, whole = arguments.get(into_name), arguments.get(rule.of)
    lead = _lead_of(rule, arguments, whole) if isinstance(whole, Value) and whole.is_tensor else None
    if lead is None or not isinstance(whole, Value) or not (into is None or isinstance(into, Value)):
        return None
    rows = matrix(lead, prod(map(int, whole.tensor.shape[len(lead) :])))  # type: ignore[arg-type]
    given = {name: each for name in rule.operands if isinstance(each := arguments.get(name), Value)}
    numbers, tensors = tuple(arguments[name] for name in rule.numbers), tuple(given.values())
    named = tuple((name, rule.operands[name]) for name in given)
    made = [(value, span) for value, (span, _) in zip(results, formulas, strict=False) if value is not None]
    if into is not None:
        made = [(into, formulas[0][0])]
    parts = [*((each, span, name == rule.index) for (name, span), each in zip(named, tensors, strict=True))]
    parts += [(value, span, False) for value, span in made]
    if not all(_lies_in(*part, lead, rows) for part in parts) or not _are_apart(tensors, into):
        return None
    if not all(map(is_number, numbers)):
        return None
    kept = [name for name in arguments if name not in given and name not in (into_name, rule.of, *rule.numbers)]
    others = tuple((name, of_matrix(name, arguments[name])) for name in kept)
    question = RowQuestion(target, named, formulas, others, into_name, rule.of, rule.index, rule.numbers)
    first, besides = next(value for value in results if value is not None), arguments.get("ignore_index", 0)
    return RowFunctionClaim(node, question, (*tensors, *numbers), tuple(results), into, first, rows, int(besides))  # type: ignore[call-overload]


def _lead_of(rule: RowRule, arguments: Arguments, whole: Value) -> tuple[Size, ...] | None:
    """The sizes of the dimensions before those of a row, if that has several elements, whose number is known."""
    shape, count = whole.tensor.shape, len(whole.tensor.shape)
    dims = rule.dims(arguments, count) if count else None
    if dims is None or list(dims) != list(range(count - len(dims), count)):
        return None
    split = count - len(dims)
    lead, row = tuple(shape[:split]), [size for size in shape[split:] if isinstance(size, int)]
    rows, columns = product(lead), prod(row)
    if len(row) < len(dims) or columns < 2 or 0 in lead:
        return None
    is_for_threads = not isinstance(rows, int) or rows >= _FEW or rows * columns < THREADED
    is_checkable = isinstance(rows, int) or not rule.index
    return lead if is_for_threads and is_checkable else None


def _lies_in(value: Operand, span: Span, is_index: bool, lead: Sequence[Size], rows: Rows) -> bool:
    """Whether a tensor is the matrix, or numbers for its rows, or one row, or a number, whose elements lie in order."""
    if not isinstance(value, Value) or not value.is_tensor:
        return False
    meta = value.tensor
    count = {Span.WHOLE: rows.elements, Span.EACH: rows.rows, Span.PIECE: rows.columns, Span.SINGLE: 1}[span]
    is_plain = meta.dtype is (torch.int64 if is_index else torch.float32) and meta.device.type == "cpu"
    if not is_plain or not meta.is_contiguous() or meta.numel() != count:
        return False
    return span is not Span.EACH or tuple(meta.shape[: len(lead)]) == tuple(lead)


def _are_apart(operands: Sequence[Value], into: Value | None) -> bool:
    """Whether what is written is an operand, or no part of one."""
    if into is None:
        return True
    shared = [value.tensor for value in operands if value.tensor.storage == into.tensor.storage]
    return all((meta.offset, meta.shape) == (into.tensor.offset, into.tensor.shape) for meta in shared)
