"""Executors by name: dovetail's own, and those that other packages provide.

A package provides one through an entry point of the group `dovetail.executors`; in its pyproject.toml:

    [project.entry-points."dovetail.executors"]
    fastcpu = "fastcpu.dovetail:FastExecutor"

The object is an executor, or called without arguments to give one. `executors=["fastcpu"]` then names it.

Source: the entry points of the Python packaging specification.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from dovetail.deferred import deferred
from dovetail.errors import BadOptionValue
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.executors.auto import AutoExecutor
from dovetail.execute.protocol import Executor

if TYPE_CHECKING:
    from dovetail.execute.native import executor as native
    from dovetail.execute.native import machine
else:
    native = deferred("dovetail.execute.native.executor")
    machine = deferred("dovetail.execute.native.machine")

GROUP = "dovetail.executors"


def _native() -> Executor:
    return native.NativeExecutor()


_OWN: dict[str, Callable[[], Executor]] = {"auto": AutoExecutor, "native": _native, "aten": AtenExecutor}


def default_executors() -> tuple[str, ...]:
    """The names of executors with machine code, where it can be made."""
    return ("aten",) if machine.unavailable() else ("native", "aten")


def brought_executors() -> dict[str, EntryPoint]:
    """The executors of other packages, by name; nothing is imported. Dovetail's own names stay dovetail's."""
    return {found.name: found for found in entry_points(group=GROUP) if found.name not in _OWN}


def executor_by_name(name: str) -> Executor:
    """The executor of a name. Raises: BadOptionValue where there is none, or what there is cannot be used."""
    if name in _OWN:
        return _OWN[name]()
    brought = brought_executors()
    if name not in brought:
        known = ", ".join([*_OWN, *brought])
        raise BadOptionValue(option="executors", value=name, reason="no such executor", expected=f"names of {known}")
    entry = brought[name]
    try:
        found: object = entry.load()
        is_made = isinstance(found, Executor) and not isinstance(found, type)
        made = found if is_made or not callable(found) else found()
    except Exception as error:  # a broken package may raise anything
        raise _unusable(entry, f"it raised {type(error).__name__}: {error}") from error
    if not isinstance(made, Executor):
        raise _unusable(entry, f"it is a {type(made).__name__}")
    return made


def _unusable(entry: EntryPoint, reason: str) -> BadOptionValue:
    package = entry.dist.name if entry.dist is not None else "a package"
    expected = "an object with name, claim(node) and call(names, node), or a function that returns one"
    return BadOptionValue(
        option="executors", value=entry.name, reason=f"{entry.value} of {package} is not an executor: {reason}",
        expected=expected,
    )  # fmt: skip
