"""Which nodes can be machine code: what each computes, from which values, and where its result goes.

The first look is at descriptions alone: an operator with a rule, float32 or float64 tensors of the CPU whose elements
lie densely and alike, single elements, numbers. The second is a probe, asked only where the first finds a run of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dovetail.execute.native.claim_base import ELEMENTS, ClaimBase
from dovetail.execute.native.driver import THREADED
from dovetail.execute.native.formula import TRUTHS, Formula, calls_nothing, reads_place, substituted
from dovetail.execute.native.grids import Grid, Pitch, grid_of
from dovetail.execute.native.loop import COLUMN, ROW
from dovetail.execute.native.machine import has_pool
from dovetail.execute.native.probes import (
    ARRAY,
    NUMBER,
    REPEATED,
    SINGLE,
    TRUTH,
    TRUTH_COLUMN,
    TRUTH_ROW,
    Question,
    formula_of,
    is_near,
)
from dovetail.execute.native.repeats import ENDLESS, Repeat, repeat_of
from dovetail.execute.native.row_loop import EACH, WHOLE, Part, Read, Rows, RowStep, Span, whole
from dovetail.execute.native.row_loop import SINGLE as OF_ALL
from dovetail.execute.native.rows import Access, Layout
from dovetail.execute.native.rule import TWO_BY_COUNT, Rule
from dovetail.execute.native.rules import RULES, TRUTH_OPERANDS
from dovetail.ir.program import Node, Operand, TensorMeta, Value
from dovetail.ir.sizes import Size
from dovetail.ops.arguments import arguments_of
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import Overload, schema_of

_UNREAD = (None, False, torch.preserve_format, torch.strided)
_DESCRIBING = frozenset({"self", "size", "dtype", "device", "memory_format"})  # the result is known
_WHOLE = 2**53

How = bool | Repeat | Pitch
"""How a loop reads an operand: whether that is one element; how it is read again and again; or where its rows lie."""


@dataclass(frozen=True, slots=True)
class Claim(ClaimBase):
    """A pointwise node that may be machine code: see `rows.RowClaim`.

    operands: what the formula reads, in its order. hows: how each is read. into: the value whose memory the result is
    written to; None where the node makes new memory. result: what the node gives, if anything. grid: the rows of the
    result, if there are gaps between those of an operand or of the result. touched: accesses, once they were asked
    for.
    """

    node: Node
    question: Question
    operands: tuple[Operand, ...]
    hows: tuple[How, ...]
    into: Value | None
    result: Value
    layout: Layout
    grid: Grid | None = None
    touched: list[Access] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def how_written(self) -> How:
        """How the elements of the result lie."""
        return Pitch(self.grid.pitches[0]) if self.grid is not None else False

    def accesses(self) -> list[Access]:
        """What it touches."""
        if not self.touched:
            self.touched.extend(self._found_accesses())
        return self.touched

    def _found_accesses(self) -> list[Access]:
        found = [Access(self.written.tensor, is_written=True, pitch=_pitch(self.how_written))]
        for operand, how in zip(self.operands, self.hows, strict=True):
            if isinstance(operand, Value) and operand.is_tensor:
                is_single = how is True or isinstance(how, Repeat)
                found.append(Access(operand.tensor, is_single=is_single, pitch=_pitch(how)))
        return found

    def is_proven(self) -> bool:
        """Whether a formula was found that gives the operator's bits, however many threads torch gets later."""
        formula = self.formula()
        if formula is None or not reads_place(formula):
            return formula is not None
        if any(isinstance(how, Repeat) for how in self.hows):
            return False  # eager's last elements are those of each row then
        count = self.written.tensor.numel()
        most = THREADED - 1 if self.question.most is None else self.question.most
        return (has_pool() and self.question.most is None) or (isinstance(count, int) and count <= most)

    def in_rows(self, rows: Rows) -> tuple[RowStep, ...] | None:
        """What it does in a loop over rows; None where it cannot be part of it."""
        formula, grid = self.formula(), self.grid
        if self.question.dtype is not torch.float32 or formula is None or not calls_nothing(formula):
            return None
        if grid is not None and (grid.rows, grid.inner) != (rows.rows, rows.columns):
            return None
        is_whole = grid is not None or self.layout == ("in order", rows.elements)
        if not is_whole and self.layout != ("in order", rows.rows):
            return None
        reads: list[Read] = []
        avoided = dict(self.question.avoided)
        for operand, (name, kind), how in zip(self.operands, self.question.operands, self.hows, strict=True):
            part = avoided.get(name) if kind == NUMBER else _part(how, rows.columns if is_whole else None)
            if part is None and kind != NUMBER:
                return None
            reads.append((operand, part))
        part = EACH if not is_whole else _part(self.how_written, rows.columns)
        return None if part is None else (RowStep(formula, tuple(reads), self.written, part),)

    def formula(self) -> Formula | None:
        """What was found to give the operator's bits, if anything. The first time for each kind of node it is tried."""
        return formula_of(self.question)


def claim_of(node: Node) -> Claim | None:
    """The claim on a node, as far as descriptions say."""
    target = node.target
    result = node.outputs[0] if len(node.outputs) == 1 and not node.unpack else None
    if not isinstance(target, Overload) or schema_of(target).namespace != "aten":
        return None
    rule = RULES.get(schema_of(target).name.removesuffix("_"))
    if rule is None:
        return None
    arguments, writes = arguments_of(node), facts_of(target).writes
    into = schema_of(target).arguments[writes[0]].name if writes else ""
    written = arguments.get(into)
    if result is None and not node.outputs and isinstance(written, Value):
        result = written  # a copy into an input: what it gives is not read
    if result is None or not result.is_tensor or len(writes) > 1 or not (written is None or isinstance(written, Value)):
        return None
    claim: Claim | None = None
    while claim is None and rule is not None:
        claim = _with_operands(node, rule, arguments, into, written, result)
        rule = rule.or_else
    return claim


def _with_operands(
    node: Node, rule: Rule, arguments: Mapping[str, Operand], into: str, written: Value | None, result: Value
) -> Claim | None:
    meta = result.tensor
    if meta.device.type != "cpu":
        return None
    name = schema_of(node.target).name.removesuffix("_")  # type: ignore[arg-type]
    given = {**arguments, TWO_BY_COUNT: _two_by(meta.numel())}
    found = [(each, given.get(each)) for each in rule.operands]
    tensors = [x for each, x in found if isinstance(x, Value) and x.is_tensor and not _is_truth(name, each)]
    dtype = tensors[0].tensor.dtype if tensors else meta.dtype
    candidates = _candidates(rule, arguments)
    if dtype not in ELEMENTS or not candidates or meta.dtype is not _result_dtype(candidates[0], dtype):
        return None
    rest = {each: x for each, x in arguments.items() if each not in rule.operands and each != into}
    if any(is_near(x, rule.avoided[each]) for each, x in found if each in rule.avoided and isinstance(x, int | float)):
        return None
    if not all(_may_be_left_out(rule, each, x) for each, x in rest.items()):
        return None
    dtypes = [torch.bool if _is_truth(name, each) else dtype for each in rule.operands]
    operands = [x for _, x in found]
    form = _dense_form(rule, operands, dtypes, written, meta) or _form_in_rows(rule, operands, dtypes, written, meta)
    if form is None:
        return None
    ones = {place: 1.0 for place, (_, x) in enumerate(found) if type(x) is int and x == 1 and place >= 2}
    kept = [place for place in range(len(found)) if place not in ones]
    others = [*({} if rule.is_fill else rest).items(), *(found[place] for place in ones)]
    question = Question(
        node.target,  # type: ignore[arg-type]
        tuple(substituted(candidate, ones) for candidate in candidates),
        dtype,
        tuple((found[place][0], form.kinds[place]) for place in kept),
        tuple((each, x) for each, x in others if x is not None),
        into,
        tuple(rule.avoided.items()),
        repr(others),
        rule.is_fill,
        form.grid is not None,
        rule.most,
    )
    hows = tuple(form.hows[place] for place in kept)
    return Claim(node, question, tuple(operands[p] for p in kept), hows, written, result, form.layout, form.grid)


@dataclass(frozen=True, slots=True)
class _Form:
    """How operands are read: kinds, as probes name them, and hows, of each. layout, grid: of what is written."""

    kinds: Sequence[str]
    hows: Sequence[How]
    layout: Layout
    grid: Grid | None = None


def _dense_form(
    rule: Rule, operands: Sequence[Operand], dtypes: Sequence[torch.dtype], written: Value | None, meta: TensorMeta
) -> _Form | None:
    """Elements of the result lie without gaps, those of operands alike, or operands are broadcast."""
    layout = layout_of(meta)
    if layout is None or not (written is None or _is_like(written.tensor, meta)):
        return None
    kinds = [_kind(operand, meta, dtype) for operand, dtype in zip(operands, dtypes, strict=True)]
    if "" in kinds or (written is None and not _is_described(rule, operands, kinds, meta)):
        return None
    repeats = [_repeat(x, meta) if kind in REPEATED else None for x, kind in zip(operands, kinds, strict=True)]
    hows = [repeat or kind == SINGLE for repeat, kind in zip(repeats, kinds, strict=True)]
    return _Form(kinds, hows, layout)


def _form_in_rows(
    rule: Rule, operands: Sequence[Operand], dtypes: Sequence[torch.dtype], written: Value | None, meta: TensorMeta
) -> _Form | None:
    """There are gaps between rows of elements. One truth value for all of them is a column, which rows do not read."""
    kinds = [_kind_in_rows(operand, meta, dtype) for operand, dtype in zip(operands, dtypes, strict=True)]
    if (
        "" in kinds
        or not REPEATED.isdisjoint(kinds)
        or rule.is_fill
        or not (written is None or written.tensor.shape == meta.shape)
    ):
        return None
    read = [x for x, kind in zip(operands, kinds, strict=True) if isinstance(x, Value) and kind in (ARRAY, TRUTH)]
    grid = grid_of([meta if written is None else written.tensor, *(value.tensor for value in read)]) if read else None
    if grid is None:
        return None
    pitches = dict(zip(read, grid.pitches[1:], strict=True))
    hows = [Pitch(pitches[x]) if x in pitches else kind == SINGLE for x, kind in zip(operands, kinds, strict=True)]
    return _Form(kinds, hows, ("rows", grid.rows, grid.inner), grid)


def _kind_in_rows(operand: Operand, like: TensorMeta, dtype: torch.dtype) -> str:
    """The kind of an operand, wherever its rows lie."""
    if not (isinstance(operand, Value) and operand.is_tensor and operand.tensor.shape):
        return _kind(operand, like, dtype)
    meta = operand.tensor
    if meta.dtype is not dtype or meta.device != like.device:
        return ""
    return TRUTH if dtype is torch.bool else ARRAY


def _part(how: How, columns: int | None) -> Part | None:
    """What a row reads of an operand, if it reads some part of it. columns: None where a row is one element."""
    if how is True:
        return OF_ALL
    if isinstance(how, Pitch):
        assert columns is not None, "rows with gaps have several elements"
        return whole(how.elements, columns) if how.elements else Part(Span.PIECE, 1, columns)
    if not isinstance(how, Repeat):
        return WHOLE if columns else EACH
    if how.inner is None or not isinstance(how.size, int):
        return None
    if how.inner >= ENDLESS:
        return OF_ALL
    if columns is None:
        return Part(Span.EACH, how.inner, how.size)
    if how.is_row:
        return Part(Span.PIECE, 1, how.size) if how.size % columns == 0 else None
    return Part(Span.EACH, how.inner // columns, how.size) if how.inner % columns == 0 else None


def _pitch(how: How) -> int | None:
    return how.elements if isinstance(how, Pitch) else None


def _two_by(count: Size) -> float | None:
    """2 divided by a number of elements; None where it is not known. Of no elements nothing is computed."""
    return 2.0 / max(count, 1) if isinstance(count, int) else None


def _is_described(rule: Rule, operands: Sequence[Operand], kinds: Sequence[str], meta: TensorMeta) -> bool:
    """Whether a new result lies like an operand, or its size is known."""
    is_known = isinstance(meta.numel(), int)
    if rule.is_fill:
        return is_known
    whole = [x for x, kind in zip(operands, kinds, strict=True) if kind in (ARRAY, TRUTH)]
    if any(isinstance(x, Value) and x.tensor.shape == meta.shape for x in whole):
        return True
    return not kinds or (is_known and (bool(whole) or not REPEATED.isdisjoint(kinds)))


def _candidates(rule: Rule, arguments: Mapping[str, Operand]) -> tuple[Formula, ...]:
    if not rule.by_value:
        return rule.candidates
    value = arguments.get(rule.by_value)
    is_known = isinstance(value, int | float) and not isinstance(value, bool)
    return rule.of_value.get(float(value), ()) if is_known else ()  # type: ignore[arg-type]


def _may_be_left_out(rule: Rule, name: str, value: Operand) -> bool:
    """Whether the result is the same whatever this argument, which formulas do not read, may be."""
    if rule.is_fill and name in _DESCRIBING:
        return True
    if name in rule.fixed:
        return type(value) is type(rule.fixed[name]) and value == rule.fixed[name]
    return name == rule.by_value or any(value is unread for unread in _UNREAD)


def _result_dtype(formula: Formula, dtype: torch.dtype) -> torch.dtype:
    return torch.bool if formula.operation in TRUTHS else dtype


def _is_truth(rule: str, name: str) -> bool:
    return (rule, name) in TRUTH_OPERANDS


def _kind(operand: Operand, like: TensorMeta, dtype: torch.dtype) -> str:
    """How a kernel reads an operand; "" where it cannot."""
    if isinstance(operand, Value) and operand.is_tensor:
        meta = operand.tensor
        if meta.dtype is not dtype or meta.device != like.device:
            return ""
        if _has_elements_of(meta, like):
            return TRUTH if dtype is torch.bool else ARRAY
        repeat = repeat_of(meta, like)
        if dtype is torch.bool:
            return "" if repeat is None else TRUTH_ROW if repeat.is_row else TRUTH_COLUMN
        return SINGLE if not meta.shape else "" if repeat is None else ROW if repeat.is_row else COLUMN
    return NUMBER if isinstance(operand, Value) or (is_number(operand) and dtype is not torch.bool) else ""


def is_number(operand: Operand) -> bool:
    """Whether a row may be handed an operand as a number."""
    if isinstance(operand, Value):
        return not operand.is_tensor
    return isinstance(operand, int | float) and not isinstance(operand, bool) and is_exact(operand)


def _repeat(operand: Operand, like: TensorMeta) -> Repeat | None:
    return repeat_of(operand.tensor, like) if isinstance(operand, Value) else None


def is_exact(number: float) -> bool:
    """Whether a number is handed in as a double as it is, and torch takes it for a float32 as well."""
    if isinstance(number, int):
        return -_WHOLE <= number <= _WHOLE
    return not abs(number) > torch.finfo(torch.float32).max or number in (float("inf"), -float("inf"))


def _is_like(meta: TensorMeta, other: TensorMeta) -> bool:
    return meta.shape == other.shape and _has_elements_of(meta, other)


def _has_elements_of(meta: TensorMeta, like: TensorMeta) -> bool:
    """Whether an operand has one element for each of a result, in its order: `_is_like`, but for dimensions of 1."""
    kept, others = ([size for size in each.shape if size != 1] for each in (meta, like))
    layout = layout_of(meta)
    return layout is not None and kept == others and layout == layout_of(like)


def layout_of(meta: TensorMeta) -> Layout | None:
    """How elements lie, if densely: see `Layout`. None where there are gaps, overlaps, or that is not known."""
    if meta.is_contiguous():
        return ("in order", meta.numel())
    dims = [(stride, size) for stride, size in zip(meta.stride, meta.shape, strict=True) if size != 1]
    if not all(isinstance(stride, int) and isinstance(size, int) for stride, size in dims):
        return None
    reach: Size = 1
    for stride, size in sorted(dims, key=lambda dim: int(dim[0])):  # type: ignore[arg-type]
        if stride != reach:
            return None
        reach = int(stride) * int(size)  # type: ignore[arg-type]
    return ("dense", *dims)
