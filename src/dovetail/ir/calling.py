"""How a call of a compiled function, or of a training step, maps to a run of its program.

A `CallPlan` says, for each object the user gets back, where it comes from (an output of the program, an input, or a
view of one of them that is made again so that it shares memory as in eager), which inputs receive new contents, and,
for a step, what becomes of gradients. `execute.wrapper` carries it out; `ir.plan_inputs` numbers its inputs otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dovetail.ir.program import Operand, Program, Target, Value
from dovetail.ir.signature import WriteKind
from dovetail.torch_compat.subclasses import WrapperLayout


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

    detach: autograd does not see it as a view of the base in eager mode, which made it by `detach()` or `.data`, or it
    carries no gradient although the base does.
    """

    base: int
    of_input: bool
    steps: tuple[ReplayStep, ...]
    detach: bool


class CountedAlone(FromView):
    """A view that counts its versions by itself: `.data`, or what is made of that."""

    __slots__ = ()


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

    view: FromView | Rebuilt
    slot: int


@dataclass(frozen=True, slots=True)
class AsLeaf:
    """The tensor of another rule, cut off from the program's gradients and requiring its own."""

    of: OutputRule


@dataclass(frozen=True, slots=True)
class AsParameter(AsLeaf):
    """The same as a parameter, which may require no gradients."""

    requires_grad: bool = True


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A wrapper put together of other results, outside autograd."""

    layout: WrapperLayout
    parts: tuple[OutputRule, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What a tensor of a program's is in eager mode besides its data.

    graph: the name of the node that made it where it is part of a graph of autograd, else "". is_new_leaf: it requires
    a gradient and is part of none. is_parameter: it is a parameter.
    """

    graph: str = ""
    is_new_leaf: bool = False
    is_parameter: bool = False


@dataclass(frozen=True, slots=True)
class FromLeft:
    """A number or tensor that is left for Python code outside: number `left` of the plan's."""

    left: int


@dataclass(frozen=True, slots=True)
class WithLook:
    """The tensor of another rule, itself, as eager mode would hand it out although the program knows no autograd."""

    of: FromSlot | FromView | FromLeft
    look: Look


@dataclass(frozen=True, slots=True)
class Formatted:
    """A text with parts that the program computes, or a number of another class.

    parts: texts, and numbers of values that are left for the outside, each with what makes a text, or a number, of it.
    """

    parts: tuple[str | tuple[int, Callable[[Any], Any]], ...]

    def made(self, left: Sequence[Any]) -> Any:
        """The text, or the number, of one run. left: what the program has left."""
        if len(self.parts) == 1 and not isinstance(self.parts[0], str):
            place, make = self.parts[0]
            return make(left[place])
        return "".join(part if isinstance(part, str) else part[1](left[part[0]]) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Pack:
    """Forward outputs that autograd sees as one tensor: a wrapper of tensors. Packs are numbered after the outputs."""

    layout: WrapperLayout
    slots: tuple[int, ...]


LIKE_OUTPUT = "like output"
Arrival: TypeAlias = "str | tuple[int, ...] | None"
Pattern: TypeAlias = "tuple[Arrival, ...]"
"""Which gradients arrive, per forward output: None, `LIKE_OUTPUT` (laid out like the output), or strides."""
Retained: TypeAlias = "tuple[int, ...]"
"""Forward outputs whose gradients a backward gives out, because the caller keeps them."""

OutputRule: TypeAlias = (
    "FromConstant | FromSlot | FromInput | FromView | FromOutput | Rewritten | AsLeaf | Rebuilt | WithLook | Formatted"
)


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Forward output number `slot` becomes the contents of input `input`, or of the view of it that `steps` make.

    A write that autograd follows has no steps.
    """

    input: int
    slot: int
    kind: WriteKind
    steps: tuple[ReplayStep, ...] = ()


def is_carried_out(program: Program, write: WriteBack) -> bool:
    """Whether the program writes the input itself: what it returns as new contents lies there."""
    new, target = program.outputs[write.slot], program.inputs[write.input]
    return isinstance(new, Value) and new.is_tensor and new.tensor.storage == target.tensor.storage


@dataclass(frozen=True, slots=True)
class FlatBytes:
    """A flat tensor over the memory that several inputs share.

    It has `length` elements of `dtype`, and begins `back` of them before the first element of input `leader`.
    """

    leader: int
    dtype: torch.dtype
    length: int
    back: int


@dataclass(frozen=True, slots=True)
class ViewBase:
    """The tensor that autograd knows input `of` as a view of."""

    of: int


InputRule: TypeAlias = "FlatBytes | ViewBase"


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """`target(input, *args)`: an operator that changes shape and strides of an input in place.

    It is run last; but before results are made, where all that are views of the input are of the changed one.
    """

    input: int
    target: Target
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class GradientFlag:
    """What `requires_grad` of an input becomes. before: it is set before the program runs, as a new leaf of it."""

    input: int
    requires_grad: bool
    before: bool


class GradientExit(enum.Enum):
    """What a leaf's `.grad` is after a step, apart from a new tensor."""

    SAME = "the tensor that it was before"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class LeafGradient:
    """The `.grad` of one input.

    had: whether there was one before the step. is_cleared: the step drops what was there without looking at it. exit:
    a new tensor, or what happens instead. is_first: it drops it before it asks about any number; else once all that
    is asked has been answered as expected.
    """

    input: int
    had: bool
    is_cleared: bool
    exit: FromSlot | WithLook | Rebuilt | GradientExit
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """An input that lies on other memory afterwards: that of another input, or of a result."""

    input: int
    to: FromInput | FromOutput


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a call maps to a run.

    outputs: one rule per object returned. writes: in the order they are carried out, before outputs are built.
    differentiable: for each forward output, whether a gradient can arrive for it. extras: inputs of the program that
    are not inputs of the call; they stand from position `extras_at`. Input numbers everywhere count extras. metadata,
    flags: changes of inputs other than of their data, in order, carried out after outputs are built. packs: outputs
    that autograd sees as one. touched: inputs whose version counter moves although only their parts are written.

    Of steps only: gradients, moves: what is done to inputs afterwards. left: values for Python code outside, handed out
    behind the results. apart: forward outputs that another one, or an input, is as well, and of which the caller gets
    another tensor object in the same memory. There the inputs are those of the call, and the program takes some.
    """

    outputs: tuple[OutputRule, ...]
    writes: tuple[WriteBack, ...]
    differentiable: tuple[bool, ...]
    extras: tuple[InputRule, ...] = ()
    extras_at: int = 0
    metadata: tuple[MetadataChange, ...] = ()
    flags: tuple[GradientFlag, ...] = ()
    packs: tuple[Pack, ...] = ()
    touched: tuple[int, ...] = ()
    gradients: tuple[LeafGradient, ...] = ()
    moves: tuple[Move, ...] = ()
    left: tuple[FromSlot | FromConstant, ...] = ()
    apart: tuple[int, ...] = ()

    def sources(self) -> list[OutputRule]:
        """Where results come from in the end: rules that are not made of others."""
        found: list[OutputRule] = []
        rules = list(self.outputs)
        while rules:
            rule = rules.pop()
            if isinstance(rule, Rebuilt):
                rules += rule.parts
            elif isinstance(rule, AsLeaf | Rewritten):
                rules.append(rule.of if isinstance(rule, AsLeaf) else rule.view)
            elif isinstance(rule, WithLook) and isinstance(rule.of, FromView):
                rules.append(rule.of)
            else:
                found.append(rule)
        return found

    def returned_inputs(self) -> frozenset[int]:
        """Inputs that the caller gets back, or a view of them."""
        sources = self.sources()
        whole = {rule.input for rule in sources if isinstance(rule, FromInput)}
        return frozenset(whole | {rule.base for rule in sources if isinstance(rule, FromView) and rule.of_input})

    def is_followed_outside(self) -> bool:
        """Whether autograd follows something that is done to arguments outside the program: a view or a write."""
        views = [rule for rule in map(innermost, self.outputs) if isinstance(rule, FromView)]
        return any(not view.detach for view in views) or any(w.kind is WriteKind.TRACKED for w in self.writes)


def innermost(rule: OutputRule) -> OutputRule:
    """The rule that says where the memory of a result comes from."""
    while isinstance(rule, AsLeaf | Rewritten):
        rule = rule.of if isinstance(rule, AsLeaf) else rule.view
    return rule
