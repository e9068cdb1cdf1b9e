"""A limit in bytes, as users write it: `"6GiB"`, `"transient:512MB"`, or a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from dovetail.analysis.liveness import input_bytes
from dovetail.errors import BadOptionValue
from dovetail.ir.program import Program, Value
from dovetail.ir.signature import Tangent

_UNITS = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
}
_TRANSIENT = "transient:"
_NUMBER = r"\d{1,4000}(\.\d{1,30})?"  # Python makes numbers of no more than 4,300 digits
_FORM = re.compile(rf"(?P<transient>{_TRANSIENT})?\s*(?P<number>{_NUMBER})\s*(?P<unit>[A-Za-z]+)")
_EXPECTED = f'a text like "6GiB" or "{_TRANSIENT}512MB" (units {", ".join(_UNITS)}), or a number of bytes above 0'


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """bytes: how many. is_transient: they do not include state and arguments, which are there before and after."""

    bytes: int
    is_transient: bool = False

    def above(self, state_bytes: int) -> int:
        """What is left for the program beside state and arguments of so many bytes; negative if there is nothing."""
        return self.bytes if self.is_transient else self.bytes - state_bytes

    def __str__(self) -> str:
        return f"{_TRANSIENT}{readable(self.bytes)}" if self.is_transient else readable(self.bytes)


def memory_limit(given: object) -> MemoryLimit:
    """The limit that was given for the option `memory_limit`. Raises: BadOptionValue."""

    def refused(reason: str) -> BadOptionValue:
        return BadOptionValue(option="memory_limit", value=given, reason=reason, expected=_EXPECTED)

    if isinstance(given, int) and not isinstance(given, bool):
        found = MemoryLimit(given)
    elif isinstance(given, str):
        match = _FORM.fullmatch(given.strip())
        if match is None:
            raise refused("it is not a number of bytes with a unit")
        if match["unit"] not in _UNITS:
            raise refused(f"{match['unit']!r} is not a unit")
        found = MemoryLimit(int(Fraction(match["number"]) * _UNITS[match["unit"]]), match["transient"] is not None)
    else:
        raise refused("it is a size")
    if found.bytes <= 0:
        raise refused("nothing fits in it")
    return found


def state_bytes(program: Program) -> int:
    """Bytes of the inputs of a program, which are there before and after it runs; not of gradients that arrive."""
    inputs = zip(program.signature.inputs, program.inputs, strict=True)
    own = replace(program, inputs=tuple(value for role, value in inputs if not isinstance(role, Tangent)))
    return sum(input_bytes(own, {}).values())


def refuse_unknown_sizes(program: Program, limit: object) -> None:
    """Raise BadOptionValue where nobody knows beforehand how large tensors are. limit: as it was given."""
    node = next((node for node in program.nodes if _has_symbols(node.results())), None)
    if node is None and not _has_symbols(program.inputs):
        return
    if _has_symbols(program.inputs):
        reason = "sizes of the inputs are symbols, and a limit is kept for those that it was made for"
        expected = "no memory_limit beside sizes that change; torch.compile(dynamic=False) has none"
    else:
        assert node is not None, "just asked"
        reason = f"the size of what {node.target} makes depends on data ({node.origin})"
        expected = "no memory_limit beside it"
    raise BadOptionValue(option="memory_limit", value=limit, reason=reason, expected=expected)


def _has_symbols(values: Iterable[Value]) -> bool:
    return any(value.is_tensor and not all(isinstance(n, int) for n in value.tensor.shape) for value in values)


def readable(size_bytes: int) -> str:
    """A size in the largest unit that is not above it: 6.00 GiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:.2f} {unit}"
    return f"{size_bytes} B"
