"""How a program fails: the checks that decide it, and when two failures are the same one.

A check compiles the program, compares it with itself compiled, or is a user's function. Each is a callable
`(program, inputs) -> Failure | None` that can be serialized, so that another process can run it.

A smaller program raises the same error with other numbers in its text, and differs by another amount: texts are
compared without numbers, addresses, names of values and lines of code; amounts by their order of magnitude.
"""

from __future__ import annotations

import enum
import hashlib
import importlib.util
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch

from dovetail.errors import BadCheck
from dovetail.frontends.function import compile as compile_function
from dovetail.inspect.minify_recording import repeatable
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.fx_write import to_graph_module
from dovetail.ir.program import Program, Stage, meta_symbols
from dovetail.ops.interpret import size_numbers
from dovetail.pipeline.differential import plain_function, same_bits
from dovetail.pipeline.driver import run_passes
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import Context

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


Run: TypeAlias = Callable[[list[Any]], Sequence[Any]]

BUILT_IN = ("compiles", "agrees", "passes")
_KINDS = {Stage.FUNCTIONAL: "joint", Stage.WHOLE: "joint", Stage.SPLIT: "forward", Stage.IN_PLACE: "step"}


def has_open_sizes(program: Program) -> bool:
    """Whether the shape of an input has a symbol."""
    return any(True for value in program.inputs if value.is_tensor for _ in meta_symbols(value.meta))


class _BuiltIn(ABC):
    """A check of this file."""

    __slots__ = ()

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""

    @property
    def identity(self) -> str:
        """Equal for checks that give equal verdicts."""
        return json.dumps(self.to_json(), default=repr)


@dataclass(frozen=True, slots=True)
class Compiles(_BuiltIn):
    """Compiling and running the program raises, which running it as it is does not.

    options: for `dovetail.compile`; dynamic is given for a program whose inputs have symbolic sizes.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "compiles"

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        """How the program fails."""
        return self.of_function(plain_function(program), inputs, dynamic=has_open_sizes(program))

    def of_function(self, run: Run, inputs: list[Any], *, dynamic: bool = False) -> Failure | None:
        """How a function fails that takes a list of inputs and empties it."""
        given = clone_together(inputs)
        try:
            _compiled(run, dynamic, self.options)(*inputs)
        except Exception as error:
            return None if _raises(run, given) else raised(error)
        return None

    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""
        return {"oracle": self.name, "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Agrees(_BuiltIn):
    """The compiled program raises, gives other results, or leaves other inputs behind than the program as it is.

    tolerance: 0 compares every bit, signs of zeros and strides; see `difference`. options: as in
    `Compiles`.
    """

    tolerance: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "agrees"

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        """How the program fails."""
        with repeatable(program):
            return self.of_function(plain_function(program), inputs, dynamic=has_open_sizes(program))

    def of_function(self, run: Run, inputs: list[Any], *, dynamic: bool = False) -> Failure | None:
        """How a function fails that takes a list of inputs and empties it."""
        given = clone_together(inputs)
        state = torch.get_rng_state()
        try:
            expected = run(list(given))
        except Exception:
            return None
        torch.set_rng_state(state)
        try:
            actual = _compiled(run, dynamic, self.options)(*inputs)
        except Exception as error:
            return raised(error)
        if len(expected) != len(actual):
            return Failure(FailureKind.DIFFERS, "count", f"{len(actual)} results in place of {len(expected)}")
        pairs = [*zip(expected, actual, strict=True), *zip(given, inputs, strict=True)]
        return worst(pairs, self.tolerance)

    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""
        return {"oracle": self.name, "tolerance": self.tolerance, "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Passes(_BuiltIn):
    """The passes for a program of its stage raise, or make one that gives other results or leaves other inputs behind.

    For whole training steps, which `dovetail.compile` does not take, and for a pass that is suspected. Programs of a
    dump can be given: `functional`, `forward`, and `write_state` of a step. tolerance: as in `Agrees`.
    """

    tolerance: float = 0.0
    name: ClassVar[str] = "passes"

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        """How the program fails."""
        kind = _KINDS.get(program.stage)
        if kind is None:
            return None
        try:
            before = plain_function(program)
            hints = size_numbers(zip(program.inputs, inputs, strict=True))
            given, left = clone_together(inputs), list(inputs)
            with repeatable(program), torch.no_grad():
                expected = before(list(given))
        except Exception:
            return None
        try:
            made, _ = run_passes(kind, program, Context(Options(), hints), Dump(None, program.name, {}))
            with repeatable(program), torch.no_grad():
                actual = plain_function(made)(inputs)
        except Exception as error:
            return raised(error)
        return worst([*zip(expected, actual, strict=True), *zip(given, left, strict=True)], self.tolerance)

    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""
        return {"oracle": self.name, "tolerance": self.tolerance}


def _compiled(run: Run, dynamic: bool, options: Mapping[str, Any]) -> Callable[..., Any]:
    def program(*inputs: Any) -> Sequence[Any]:
        return run(list(inputs))

    given = {"dynamic": True, **options} if dynamic else dict(options)
    return compile_function(program, **given)


def _raises(run: Run, inputs: list[Any]) -> bool:
    try:
        run(inputs)
    except Exception:
        return True
    return False


class CheckFile:
    """A function of a file of Python, `function(gm, inputs)`, which raises where the program fails.

    Raises: BadCheck when the file cannot be run, or has no such function.
    """

    def __init__(self, path: str | Path, function: str) -> None:
        self.path = Path(path).resolve()
        self.function = function
        self.name = f"{self.path.name}:{function}"
        self._check = _function_of(self.path, function, self.name)

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        """How the program fails."""
        hints = size_numbers(zip(program.inputs, inputs, strict=True))
        try:
            self._check(to_graph_module(program, hints), inputs)
        except Exception as error:
            return raised(error)
        return None

    @property
    def identity(self) -> str:
        """Equal for checks that give equal verdicts, as far as the file itself tells."""
        return f"{self.name} {hashlib.sha256(self.path.read_bytes()).hexdigest()}"

    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""
        return {"oracle": "check", "path": str(self.path), "function": self.function}


def _function_of(path: Path, function: str, name: str) -> Callable[..., object]:
    known = " and ".join(BUILT_IN)
    spec = importlib.util.spec_from_file_location(f"dovetail_check_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadCheck(check=name, reason=f"{path} is not a Python file", known=known)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadCheck(check=name, reason=f"{type(error).__name__}: {error}", known=known) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise BadCheck(check=name, reason=f"it has no function {function}", known=known)
    try:
        inspect.signature(found).bind(None, None)
    except TypeError as error:
        reason = f"{function} cannot be called with a graph module and a list of inputs: {error}"
        raise BadCheck(check=name, reason=reason, known=known) from error
    except ValueError:  # a builtin that does not say
        pass
    check: Callable[..., object] = found
    return check


NamedOracle: TypeAlias = "Compiles | Agrees | Passes | CheckFile"


def oracle_from_json(data: Mapping[str, Any]) -> NamedOracle:
    """The check that `to_json` wrote. Raises: BadCheck when it cannot be used, or there is none of that name."""
    kind = data["oracle"]
    if kind == "check":
        return CheckFile(data["path"], data["function"])
    if kind == "compiles":
        return Compiles(data["options"])
    if kind == "agrees":
        return Agrees(data["tolerance"], data["options"])
    if kind == "passes":
        return Passes(data["tolerance"])
    raise BadCheck(check=kind, reason="there is no such check", known=" and ".join(BUILT_IN))
