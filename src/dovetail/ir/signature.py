"""What each input and output of a program is for.

A `Signature` runs parallel to a program's inputs and outputs: one role per position. Roles are small frozen
classes, so that a stage can ask `isinstance(role, Gradient)` instead of looking at names.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.torch_compat.subclasses import AnyLayout


class WriteKind(enum.Enum):
    """How eager writes an input, which decides how the new value is written back.

    TRACKED: autograd saw the write, so the new value carries a gradient function. UNTRACKED: the version counter
    moved, autograd did not follow (no_grad, or no gradient involved). HIDDEN: not even the version counter moved
    (`.data`).
    """

    TRACKED = "tracked"
    UNTRACKED = "untracked"
    HIDDEN = "hidden"


# --- inputs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A module parameter."""

    name: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """A module buffer."""

    name: str


@dataclass(frozen=True, slots=True)
class UserInput:
    """An argument of the call, by its position among the flattened arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the program closed over; it is passed in at each call."""

    name: str


@dataclass(frozen=True, slots=True)
class SizeInput:
    """A number that binds a size symbol."""

    symbol: str


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient that arrives for a differentiable output; `output` counts the forward program's outputs."""

    output: int


@dataclass(frozen=True, slots=True)
class Residual:
    """A value saved by forward for backward."""

    name: str


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """A flat tensor over the memory that several inputs share, of which one is written; `inputs` are their numbers."""

    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GradientBase:
    """Never read: the tensor of which several inputs are views, and which receives their gradient."""

    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that a training step's code reaches, other than by its arguments, as a user would call it."""

    name: str


@dataclass(frozen=True, slots=True)
class HeldGradient:
    """The `.grad` that a tensor has when a training step begins."""

    name: str


@dataclass(frozen=True, slots=True)
class NumberInput:
    """A Python number that a training step reads in each call."""

    name: str


InputRole: TypeAlias = (
    "Parameter | Buffer | UserInput | Constant | SizeInput | Tangent | Residual | SharedBytes | GradientBase"
    " | StateTensor | HeldGradient | NumberInput"
)


# --- outputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UserOutput:
    """A value that the wrapper hands to the user; `slot` numbers these from 0."""

    slot: int


@dataclass(frozen=True, slots=True)
class InputMutation:
    """The new contents of an input, written back after the program ran (forward or backward).

    constant: name of the closed-over tensor when only backward meets it; `input` is -1 then.
    """

    input: int
    kind: WriteKind
    during_backward: bool = False
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of an input; with `wrapper`, the next part of it, which is put together by that layout."""

    input: int
    wrapper: AnyLayout | None = None


@dataclass(frozen=True, slots=True)
class ResultGradient:
    """The gradient of a forward output from which others were computed; `output` counts the program's outputs."""

    output: int


@dataclass(frozen=True, slots=True)
class GradientLeft:
    """What a training step leaves in the `.grad` of a tensor, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class NumberLeft:
    """A number that a training step leaves in a Python object; `place` counts these."""

    place: int


OutputRole: TypeAlias = "UserOutput | InputMutation | Gradient | ResultGradient | Residual | GradientLeft | NumberLeft"


@dataclass(frozen=True, slots=True)
class Signature:
    """One role per input and per output, in order."""

    inputs: tuple[InputRole, ...] = ()
    outputs: tuple[OutputRole, ...] = ()

    def __str__(self) -> str:
        lines = [f"input  {i}: {role}" for i, role in enumerate(self.inputs)]
        lines += [f"output {i}: {role}" for i, role in enumerate(self.outputs)]
        return "\n".join(lines)
