"""The entries of a graph signature: one input or output each, as plain data. See `ir.graph_signature`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.ir.signature import WriteKind

Plain: TypeAlias = "int | float | bool | str | None"


class ArgumentKind(enum.Enum):
    """What the thing itself is. CONSTANT: a number, string or None that is the same in each run."""

    TENSOR = "tensor"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TOKEN = "token"
    CONSTANT = "constant"


class InputPurpose(enum.Enum):
    """What an input is for. TOKEN: orders effects; programs of dovetail need none, those of torch.export may."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    USER_INPUT = "user input"
    CONSTANT = "closed-over tensor"
    SIZE = "size"
    TOKEN = "token"
    TANGENT = "gradient that arrives for user output"
    RESIDUAL = "saved tensor"
    SHARED_BYTES = "memory shared by"
    GRADIENT_BASE = "tensor viewed by"


class OutputPurpose(enum.Enum):
    """What an output is for."""

    USER_OUTPUT = "user output"
    LOSS = "loss, user output"
    MUTATION = "new contents of"
    GRADIENT = "gradient of"
    RESIDUAL = "saved tensor"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Argument:
    """One input or output. name: of the value, or of the size expression; value: of a constant."""

    name: str
    kind: ArgumentKind = ArgumentKind.TENSOR
    value: Plain = None

    def __str__(self) -> str:
        return self.name or repr(self.value)


@dataclass(frozen=True, slots=True)
class InputEntry:
    """One input.

    target: the name of the parameter, buffer, closed-over tensor or saved tensor, or the size symbol. index: the place
    among the flattened user inputs, or the output that a tangent belongs to; -1 for others. persistent: of a buffer,
    whether it is part of the module's state. members: names of the inputs that lie in shared memory, or view a base.
    """

    argument: Argument
    purpose: InputPurpose
    target: str = ""
    index: int = -1
    persistent: bool = True
    members: tuple[str, ...] = ()
    donated: bool = False

    def what(self) -> str:
        """In words: `parameter 'layers.0.weight'`."""
        return f"{self._what()}, donated" if self.donated else self._what()

    def _what(self) -> str:
        if self.members:
            return f"{self.purpose.value} {', '.join(self.members)}"
        what = f"{self.purpose.value} {self.target!r}" if self.target else self.purpose.value
        what = f"{what} {self.index}" if self.index >= 0 else what
        return what if self.persistent else f"{what} (not persistent)"


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """One output.

    of: what is written, or whose gradient this is. target: its name (that of a parameter, buffer or closed-over tensor;
    for a user input, that of the input), or the name of the saved tensor. index: number of a user output; -1 for
    others. write: how a mutation is carried out, where that is known. during_backward: when.
    """

    argument: Argument
    purpose: OutputPurpose
    of: InputPurpose | None = None
    target: str = ""
    index: int = -1
    write: WriteKind | None = None
    during_backward: bool = False

    def what(self) -> str:
        """In words: `gradient of parameter 'layers.0.weight'`."""
        words = [self.purpose.value, self.of.value if self.of else "", repr(self.target) if self.target else ""]
        words += [str(self.index) if self.index >= 0 else "", "(in backward)" if self.during_backward else ""]
        return " ".join(filter(None, words))
