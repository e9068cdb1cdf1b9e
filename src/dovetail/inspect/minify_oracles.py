"""Checks that decide how a program fails: compiling it, comparing it with itself compiled, or a user's function.

Each is a callable `(program, inputs) -> Failure | None` that can be serialized, so that another process can run it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch

from dovetail.errors import BadCheck
from dovetail.frontends.function import compile as compile_function
from dovetail.inspect.minify_failure import Failure, FailureKind, raised, worst
from dovetail.inspect.minify_recording import repeatable, size_numbers
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.fx_write import to_graph_module
from dovetail.ir.program import Program, Stage, meta_symbols
from dovetail.pipeline.differential import plain_function
from dovetail.pipeline.driver import run_passes
from dovetail.pipeline.dump import Dump
from dovetail.pipeline.options import Options
from dovetail.pipeline.passes import Context

Run: TypeAlias = Callable[[list[Any]], Sequence[Any]]

BUILT_IN = ("compiles", "agrees", "passes")
_KINDS = {Stage.FUNCTIONAL: "joint", Stage.WHOLE: "joint", Stage.SPLIT: "forward", Stage.IN_PLACE: "step"}


def has_open_sizes(program: Program) -> bool:
    """Whether the shape of an input has a symbol."""
    return any(True for value in program.inputs if value.is_tensor for _ in meta_symbols(value.meta))


@dataclass(frozen=True, slots=True)
class Compiles:
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

    @property
    def identity(self) -> str:
        """Equal for checks that give equal verdicts."""
        return json.dumps(self.to_json(), default=repr)

    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""
        return {"oracle": self.name, "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Agrees:
    """The compiled program raises, gives other results, or leaves other inputs behind than the program as it is.

    tolerance: 0 compares every bit, signs of zeros and strides; see `minify_failure.difference`. options: as in
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

    @property
    def identity(self) -> str:
        """Equal for checks that give equal verdicts."""
        return json.dumps(self.to_json(), default=repr)

    def to_json(self) -> dict[str, object]:
        """As plain values, for `oracle_from_json`."""
        return {"oracle": self.name, "tolerance": self.tolerance, "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Passes:
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

    @property
    def identity(self) -> str:
        """Equal for checks that give equal verdicts."""
        return json.dumps(self.to_json())

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
