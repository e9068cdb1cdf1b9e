"""How a program fails, and when two failures are the same one.

A smaller program raises the same error with other numbers in its text, and differs by another amount: texts are
compared without numbers, addresses, names of values and lines of code; amounts by their order of magnitude.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from dovetail.pipeline.differential import same_bits

# A difference that is a hundred times smaller is another one: rounding, say, where a kernel was wrong before. Beyond a
# tenth of the largest number, how large it is says more of the program around the fault than of the fault.
_FADED = 0.01
_LARGE = 0.1
_LINES_OF_CODE = re.compile(r"^  (?:from|see) .*$", re.MULTILINE)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_SERIAL = re.compile(r"(?<=[A-Za-z0-9])_\d+\b")  # what tells names apart: add_3
_NUMBER = re.compile(r"-?(?<![A-Za-z_])\d+(?:\.\d*)?(?:e[+-]?\d+)?")
_NUMBERS = re.compile(r"#(?:,? #)+,?|#,")
_WORD = re.compile(r"(?<![\w.:])[A-Za-z_]\w*(?![\w:]|\.\w)")


class FailureKind(enum.Enum):
    """RAISED: an error. DIFFERS: results are not those of the program itself. CRASHED: the process ended."""

    RAISED = "raised"
    DIFFERS = "differs"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a program fails.

    what: the class of the error; what differs (`numbers`, `shape`, ...); or how the process ended. text: for readers;
    of an error, its text. amount: of numbers that differ, the largest difference in units of the largest number.
    """

    kind: FailureKind
    what: str
    text: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        first = self.text.strip().partition("\n")[0]
        return f"{self.what}: {first}" if first else self.what

    def to_json(self) -> dict[str, object]:
        """As plain values, for `from_json`."""
        return {**asdict(self), "kind": self.kind.value}

    @staticmethod
    def from_json(data: dict[str, object]) -> Failure:
        """The failure that `to_json` wrote. Raises: KeyError, ValueError for anything else."""
        amount = data["amount"]
        if not isinstance(amount, int | float):
            raise ValueError(f"not an amount: {amount!r}")
        return Failure(FailureKind(data["kind"]), str(data["what"]), str(data["text"]), float(amount))


def raised(error: BaseException) -> Failure:
    """The failure that an error is."""
    return Failure(FailureKind.RAISED, type(error).__name__, str(error))


def process_ending(code: int) -> str:
    """How a process ended, by the code that Python gives: `exit status 3`, `signal SIGSEGV`."""
    if code >= 0:
        return f"exit status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"


class SameFailure:
    """Whether failures are the same as a first one. names: of values, which an error's text may mention."""

    def __init__(self, first: Failure, names: Iterable[str]) -> None:
        self._first = first
        self._names = frozenset(names)
        self._text = self.normalised(first.text)

    def holds(self, other: Failure | None) -> bool:
        """Whether another failure is the same one; None, no failure, never is."""
        if other is None or (other.kind, other.what) != (self._first.kind, self._first.what):
            return False
        if other.kind is FailureKind.RAISED:
            return self.normalised(other.text) == self._text
        return other.amount >= min(self._first.amount, _LARGE) * _FADED

    def normalised(self, text: str) -> str:
        """A text without what another program of the same failure would say otherwise."""
        text = _LINES_OF_CODE.sub("", text)
        text = _WORD.sub(lambda word: "<value>" if word[0] in self._names else word[0], text)
        text = _NUMBER.sub("#", _SERIAL.sub("", _ADDRESS.sub("#", text)))
        return " ".join(_NUMBERS.sub("#", text).split())


def difference(expected: object, actual: object, tolerance: float = 0.0) -> Failure | None:
    """How a result differs from the expected one; None when it does not.

    tolerance: 0 asks for every bit; above, numbers may differ by that part of the largest expected number, and strides
    are not compared.
    """
    if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
        if same_bits(expected, actual) or _close(expected, actual, tolerance):
            return None
        what = "number" if type(expected) is type(actual) else "type"
        return Failure(FailureKind.DIFFERS, what, f"{actual!r} in place of {expected!r}")
    for what, one, other in (
        ("dtype", expected.dtype, actual.dtype),
        ("device", expected.device, actual.device),
        ("shape", tuple(expected.shape), tuple(actual.shape)),
    ):
        if one != other:
            return Failure(FailureKind.DIFFERS, what, f"{other} in place of {one}")
    if same_bits(expected, actual):
        return None
    return _difference_of_numbers(expected.detach(), actual.detach(), tolerance)


def worst(pairs: Iterable[tuple[object, object]], tolerance: float = 0.0) -> Failure | None:
    """How results differ from the expected ones: other than in numbers, or else where numbers differ most."""
    found = [failure for one, other in pairs if (failure := difference(one, other, tolerance)) is not None]
    return max(found, key=lambda failure: (failure.what != "numbers", failure.amount), default=None)


def _close(expected: object, actual: object, tolerance: float) -> bool:
    if not (isinstance(expected, float) and isinstance(actual, float)):
        return False
    return abs(expected - actual) <= tolerance * abs(expected)


def _difference_of_numbers(expected: torch.Tensor, actual: torch.Tensor, tolerance: float) -> Failure | None:
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = expected.to(wide), actual.to(wide)
    finite = one.isfinite()
    same_kinds = torch.equal(finite, other.isfinite()) and torch.equal(one.isnan(), other.isnan())
    outside = [torch.where(finite, 0.0, numbers).nan_to_num() for numbers in (one, other)]
    if not same_kinds or not torch.equal(*outside):
        return Failure(FailureKind.DIFFERS, "finite numbers", f"{_few(actual)} in place of {_few(expected)}")
    distances = torch.where(finite, (one - other).abs(), 0.0)
    farthest = float(distances.max()) if distances.numel() else 0.0
    largest = float(torch.where(finite, one.abs(), 0.0).max()) if one.numel() else 0.0
    amount = farthest / (largest or 1.0)
    if amount > tolerance:
        text = f"by up to {farthest:.3g} where numbers are up to {largest:.3g}"
        return Failure(FailureKind.DIFFERS, "numbers", text, amount)
    if tolerance:
        return None
    text = f"strides {actual.stride()}, {_few(actual)} in place of strides {expected.stride()}, {_few(expected)}"
    return Failure(FailureKind.DIFFERS, "signs or strides", text)


def _few(tensor: torch.Tensor) -> str:
    numbers: Sequence[object] = tensor.flatten()[:4].tolist()
    return f"[{', '.join(map(str, numbers))}{', ...' if tensor.numel() > len(numbers) else ''}]"
