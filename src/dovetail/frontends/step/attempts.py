"""What one recording of a step shows that the next one has to know."""

from __future__ import annotations

import contextlib
import traceback

from dovetail.errors import DovetailError
from dovetail.frontends.step.containers import Path
from dovetail.ir.provenance import is_library_file


class NumbersToLift(Exception):
    """The step changes Python numbers that were taken for constants. paths: of their slots in the reachable state."""

    def __init__(self, paths: frozenset[Path]) -> None:
        super().__init__(paths)
        self.paths = paths


class MoreIsRead(Exception):
    """The step reads what it did not read before: its reachable state is larger."""


class TensorsToKeep(Exception):
    """The step puts other tensors where tensors were. paths: of these slots in the reachable state."""

    def __init__(self, paths: frozenset[Path]) -> None:
        super().__init__(paths)
        self.paths = paths


class ContainersWritten(Exception):
    """The step puts something into containers, which it may not read. paths: of these in the reachable state."""

    def __init__(self, paths: frozenset[Path]) -> None:
        super().__init__(paths)
        self.paths = paths


class ContainersRead(ContainersWritten):
    """The step reads containers that it was thought only to write."""


class StateToMake(Exception):
    """A call in eager mode is to come first: the step makes what it keeps for later calls, or goes on for longer over
    numbers of data than any such call has shown. error: what is to be said if it does so again and again.
    """

    def __init__(self, error: DovetailError) -> None:
        super().__init__()
        self.error = error


class ManyChoices(StateToMake):
    """The step chooses among objects, and hardly any choice comes up twice: it is best left to eager mode."""


def free_locals(error: BaseException) -> None:
    """Let go of what an attempt that failed has recorded: frames of an error hold it, and it holds real tensors.

    What a user's function held stays, for who looks at the error in a debugger.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        found = chain.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        chain += [found.__context__, found.__cause__]
        for frame, _ in traceback.walk_tb(found.__traceback__):
            if is_library_file(frame.f_code.co_filename):
                with contextlib.suppress(RuntimeError):  # it still runs
                    frame.clear()


def in_short(error: DovetailError) -> str:
    """The first line of an error, without its code, and the user's line where that is known."""
    first = str(error).splitlines()[0].partition(": ")[2].rstrip(".")
    origin = error.facts.get("origin")
    return f"{first} ({origin})" if origin is not None else first


def said_of_eager_mode(name: str, error: DovetailError, *, is_best: bool) -> str:
    """What is said once of a step that eager mode runs from now on. is_best: though it could be captured."""
    why = "no program would be of use to later calls" if is_best else "it cannot be captured"
    return f"{name} runs in eager mode from now on, because {why}:\n{error}"
