"""How a call of a compiled function maps to a run of its program.

A `CallPlan` says, for each object the user gets back, where it comes from (an output of the program, an input, or a
view of one of them that is made again so that it shares memory as in eager), and which inputs receive new contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dovetail.ir.program import Operand, Target
from dovetail.ir.signature import WriteKind


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One view: `target(base, *args, **kwargs)`, item `index` of it when the target returns several."""

    target: Target
    args: tuple[Operand, ...]
    kwargs: tuple[tuple[str, Operand], ...] = ()
    index: int | None = None


@dataclass(frozen=True, slots=True)
class FromConstant:
    """Not a tensor: the same object in each call."""

    value: object


@dataclass(frozen=True, slots=True)
class FromSlot:
    """Forward output number `slot`, as it is."""

    slot: int


@dataclass(frozen=True, slots=True)
class FromInput:
    """The input itself."""

    input: int


@dataclass(frozen=True, slots=True)
class FromView:
    """A view of an input (`of_input`) or of a forward output, made again by `steps`.

    detach: eager's result carries no gradient although the base does.
    """

    base: int
    of_input: bool
    steps: tuple[ReplayStep, ...]
    detach: bool


@dataclass(frozen=True, slots=True)
class FromOutput:
    """The same object as an earlier result."""

    output: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A view that lies where eager's result lies, with the gradient path (and numbers) of forward output number `slot`.

    For a result whose memory is shared with a tensor that does not lead to it in autograd: a tracked write through
    `x.detach()`, say.
    """

    view: FromView
    slot: int


@dataclass(frozen=True, slots=True)
class AsLeaf:
    """The tensor of another rule, cut off from the program's gradients and requiring its own."""

    of: OutputRule


LIKE_OUTPUT = "like output"
Arrival: TypeAlias = "str | tuple[int, ...] | None"
Pattern: TypeAlias = "tuple[Arrival, ...]"
"""Which gradients arrive, per forward output: None, `LIKE_OUTPUT` (laid out like the output), or strides."""

OutputRule: TypeAlias = "FromConstant | FromSlot | FromInput | FromView | FromOutput | Rewritten | AsLeaf"


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Forward output number `slot` becomes the contents of input `input`."""

    input: int
    slot: int
    kind: WriteKind


@dataclass(frozen=True, slots=True)
class CallPlan:
    """outputs: one rule per object returned. writes: in the order they are carried out, before outputs are built.

    differentiable: for each forward output, whether a gradient can arrive for it.
    """

    outputs: tuple[OutputRule, ...]
    writes: tuple[WriteBack, ...]
    differentiable: tuple[bool, ...]
