"""What re-inplacing decides, node by node, and why: made by `analysis.inplace`, obeyed by `passes.inplace`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

from dovetail.analysis.buffers import Buffer
from dovetail.ir.program import Node, Operand, Program, TensorMeta, Value
from dovetail.ir.sizes import Size
from dovetail.ops.writing_forms import Part, WritingForm
from dovetail.torch_compat.dispatch import Overload


class Reason(enum.Enum):
    """Why something is not done in place."""

    READ_LATER = "the old contents are read later"
    RETURNED = "the old contents are returned to the caller"
    CALLERS_MEMORY = "the memory belongs to the caller, who did not donate it"
    TWO_TENSORS = "result and operand are returned to the caller as two tensors"
    OVERLAPS_ITSELF = "elements of the operand share bytes"
    OPERAND_OVERLAPS = "another operand overlaps the bytes partly"
    LAYOUT = "the result's layout differs from that of the memory"
    ROUNDING = "the operator rounds differently in place"
    IS_NEW = "the new contents are an input or are kept by the caller"
    COMMIT = "inputs are not written before the last check"
    MAY_OVERLAP = "it is not known whether a value that is read later shares bytes"
    NO_FORM = "the operator has no form that writes into given memory"
    KEPT_ELSEWHERE = "an operator of another library has read it, and may have kept it"
    UNKNOWN_MEMORY = "an operator of another library allocated the memory: what else shares it is not known"
    READ_OTHERWISE = "a conjugate or negative view reads the memory differently"
    ADDRESSED = "a strided view addresses the memory by its absolute offset"
    KEEPS_MORE = "it would keep a larger buffer alive"
    ELSEWHERE = "the new contents are computed before the memory is allocated, or in other memory"
    UNKNOWN_PLACE = "the position of the part is not known before the program runs"

    @property
    def code(self) -> str:
        """The short name that reports use: `READ-LATER`."""
        return self.name.replace("_", "-")

    @property
    def proves_need(self) -> bool:
        """Whether a copy is needed: no order and no choice of places could avoid it."""
        return self in _PROOFS


_PROOFS = frozenset(
    {
        Reason.READ_LATER,
        Reason.RETURNED,
        Reason.CALLERS_MEMORY,
        Reason.TWO_TENSORS,
        Reason.OVERLAPS_ITSELF,
        Reason.OPERAND_OVERLAPS,
        Reason.LAYOUT,
        Reason.ROUNDING,
        Reason.IS_NEW,
        Reason.COMMIT,
    }
)


@dataclass(frozen=True, slots=True)
class Kept:
    """The node stays as it is. blocker: the value or node that stands in the way, "" if there is none."""

    reason: Reason
    blocker: str = ""

    def __str__(self) -> str:
        return self.reason.value + (f" ({self.blocker})" if self.blocker else "")


@dataclass(frozen=True, slots=True)
class WriteOperands:
    """Run the writing form. slots: for each written operand, None if it is written itself, or why a copy of it is.

    first_copy: other operands that are copied first, because they lie partly on what is written. stride: of the result,
    where it is not as it was: it lies as its operand does, with gaps.
    """

    form: WritingForm
    slots: tuple[Kept | None, ...]
    first_copy: tuple[Value, ...] = ()
    stride: tuple[Size, ...] | None = None


@dataclass(frozen=True, slots=True)
class WritePart:
    """Write the source into the part of the base that the view shows; the result is the base.

    meta: of the part, on the storage of the base. is_there: the source lies there already. first_copy: as above.
    """

    part: Part
    args: tuple[Operand, ...]
    meta: TensorMeta
    is_there: bool
    first_copy: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteInCopy:
    """Copy the base, laid out as the result, and write the source into the part of the copy (`meta`) that is replaced.

    For a base that is a part of other memory now, all of which the operator would copy. why: it is not written itself.
    """

    part: Part
    args: tuple[Operand, ...]
    meta: TensorMeta
    why: Kept


@dataclass(frozen=True, slots=True)
class Share:
    """The result is not copied: it is `source`, or the view of it with `args`, which has these strides."""

    source: Value
    view: Overload | None = None
    args: tuple[Operand, ...] = ()
    stride: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteOut:
    """Run `form` with `out=`: a value, or the part of one that a view with `args` shows (`meta`: on its storage)."""

    form: Overload
    out: Value
    part: Part | None = None
    args: tuple[Operand, ...] = ()
    meta: TensorMeta | None = None


@dataclass(frozen=True, slots=True)
class WriteCast:
    """Write the result of the later node `cast` over the first operand: the in-place operator converts it itself.

    first_copy: as above.
    """

    form: WritingForm
    cast: Node
    first_copy: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Absorb:
    """Done by an earlier node."""


@dataclass(frozen=True, slots=True)
class DropCopyBack:
    """The new contents of the input are in its memory already."""


Action: TypeAlias = "WriteOperands | WritePart | WriteInCopy | Share | WriteOut | WriteCast | Absorb | DropCopyBack"


@dataclass(frozen=True, slots=True)
class InplacePlan:
    """Decisions for a functional program.

    order: the nodes as they are to run. actions: what to do with a node instead of running it as it is. kept: why a
    node that could have been rewritten is not. places: buffer and shift in bytes of each storage. sunk: nodes that
    run later than they stood. moved: for nodes that replace a part, why the source was not made in its place. regrets:
    copies left out, whose memory larger copies now have to leave alone.
    """

    program: Program
    order: tuple[Node, ...]
    actions: dict[Node, Action]
    kept: dict[Node, Kept]
    places: dict[int, tuple[Buffer, Size]]
    sunk: tuple[Node, ...] = ()
    moved: dict[Node, Kept] = field(default_factory=dict)
    regrets: frozenset[Node] = frozenset()
