"""Where in the user's code an operator comes from.

Dynamo's graphs carry the line and module of each node; an interpreter hands them over with `at`. Plain functions are
asked by walking the Python stack to the nearest frame outside torch and dovetail. A backward operator gets the
origin of the forward operator whose autograd node is running.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dovetail.errors import UnsupportedDistributed
from dovetail.ir.program import Origin
from dovetail.ir.provenance import is_library_file
from dovetail.torch_compat.autograd import next_sequence_number, running_sequence_number
from dovetail.torch_compat.modules import is_sharded, module_calls_noticed


class OriginTracker:
    """Answers `here()`: the origin of the operator that is being recorded."""

    def __init__(self) -> None:
        self._given: Origin | None = None
        self._modules: list[str] = []
        self._by_sequence: dict[int, Origin] = {}
        self.last = Origin()

    @contextlib.contextmanager
    def at(self, origin: Origin) -> Iterator[None]:
        """While active, operators come from `origin` (unless they run in backward)."""
        before = self._given
        self._given = origin
        try:
            yield
        finally:
            self._given = before

    def enter_module(self, name: str) -> None:
        """A module's forward begins."""
        self._modules.append(name)

    def leave_module(self) -> None:
        """A module's forward ended."""
        if self._modules:
            self._modules.pop()

    def here(self) -> Origin:
        """The origin of the operator that is being recorded now; `last` remembers it."""
        self.last = self._find()
        return self.last

    def _find(self) -> Origin:
        running = running_sequence_number()
        if running is not None and self._given is None:
            return self._by_sequence.get(running) or self._python_origin()
        if running is not None:
            return self._by_sequence.get(running, Origin())
        origin = self._given or self._python_origin()
        self._by_sequence.setdefault(next_sequence_number() - 1, origin)
        return origin

    def of_error(self, error: BaseException) -> Origin:
        """The origin of an error: the user's innermost line in its traceback, or the operator recorded last."""
        trace, found = error.__traceback__, None
        while trace is not None:
            if not is_library_file(trace.tb_frame.f_code.co_filename):
                found = trace
            trace = trace.tb_next
        if found is None or self._given is not None:
            return self.last
        code = found.tb_frame.f_code
        return Origin(code.co_filename, found.tb_lineno, code.co_name, self._modules[-1] if self._modules else "")

    @staticmethod
    def higher_order_operator(error: BaseException) -> str:
        """The name of the operator over subgraphs whose implementation in torch raised; "" for any other error."""
        trace, found = error.__traceback__, ""
        while trace is not None:
            path = Path(trace.tb_frame.f_code.co_filename)
            if path.parent.name == "_higher_order_ops":
                found = found or path.stem
            trace = trace.tb_next
        return found

    def _python_origin(self) -> Origin:
        module = self._modules[-1] if self._modules else ""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_library_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return Origin(module=module)
        return Origin(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, module)


@contextlib.contextmanager
def module_names(
    origins: OriginTracker,
    modules: Sequence[tuple[str, torch.nn.Module]],
    sharded: Callable[[torch.nn.Module], None] | None = None,
) -> Iterator[None]:
    """While active, operators inside these modules, which have names, and of their children say so.

    sharded: is told of calls of modules whose weights are sharded; such calls are refused without it.
    """
    names = {}
    for root_name, root in modules:
        for path, module in root.named_modules():
            names[id(module)] = ".".join(part for part in (root_name, path) if part)
    thread = threading.get_ident()  # others may run modules as well

    def enter(module: torch.nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling() and threading.get_ident() == thread:
            origins.enter_module(names.get(id(module), ""))
            if is_sharded(module) and sharded is not None:
                sharded(module)
            elif is_sharded(module):  # before its hooks run, which would keep fakes
                raise UnsupportedDistributed(
                    what=f"a module is called whose weights are sharded ({type(module).__name__})",
                    why="dovetail records plain tensors, and its hooks change what weights are while they run",
                    hint="use DistributedDataParallel; or leave the call to eager mode",
                    origin=origins.here(),
                )

    def leave(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_dynamo_compiling() and threading.get_ident() == thread:
            origins.leave_module()

    with module_calls_noticed(enter, leave):
        yield
