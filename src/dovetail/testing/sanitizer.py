"""Is what the analysis says of storages true when a program really runs?

    with AliasSanitizer(bytes="all"):
        compiled(x).sum().backward()

Every compiled program that runs inside, forward or backward, is checked node by node, and every compiled graph call by
call. An `AliasViolation` names the program, the node, the user's line, what was denied and what happened. Denied is:

- that a tensor has other sizes, strides, dtype or device than its description (the stride of a dimension of one element
  says nothing), that a fresh result begins elsewhere in its storage, or that a view does not lie on its operand's;
- that a result shares a byte with a living value of another storage number;
- that an operator moves the version counter, or changes bytes, of a tensor that its facts do not say it writes; that it
  writes an input of the program that has no new contents by its signature, or a value that is read later;
- that a storage is held after the last use of the values on it;
- that a call changes bytes or versions of an input that its plan does not write, or writes an input that overlaps
  another one without being told of it by a flat tensor over both (`ir.signature.SharedBytes`).

Not denied: inputs that nobody writes may overlap, and inputs with equal storage numbers may lie apart (a saved tensor
that a hook moved): no program writes its inputs. Not checked: writes that backward makes to inputs of forward once its
program is done, and how operators use memory of their own. What runs in an arena is checked without it;
`testing.arena_sanitizer` is for the arena.

It works by taking the place of `CompiledProgram.__call__` and `CompiledGraph.__call__` while it is entered: the wrapper
and the autograd.Function around a program are the real ones, threads of autograd included (they would not see a
dispatch mode of this thread), a dispatch mode would have to guess which node an operator belongs to, and a program
that is not checked pays nothing. Cost: about a tenth of a millisecond per operator, and two copies of the bytes looked
at. Graphs hold their inputs to the end of the call while they are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest import mock

import torch

from dovetail.errors import StepInterrupted
from dovetail.execute.arena import ArenaProgram
from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.step import CompiledStepProgram, NothingWritten
from dovetail.ir.calling import WriteBack
from dovetail.ir.program import Program
from dovetail.ir.signature import SharedBytes, WriteKind
from dovetail.ops.views import replay
from dovetail.testing.checked_run import AliasViolation, CheckedProgram
from dovetail.testing.real_memory import Tenant, intruder, occupied, places, snapshots
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.fakes import is_fake
from dovetail.torch_compat.subclasses import is_wrapper

__all__ = ["AliasSanitizer", "AliasViolation"]

_LEVELS = ("none", "operands", "all")


class AliasSanitizer:
    """See the module docstring. A context manager; once left, it can be entered again.

    bytes: whose bytes are compared around each operator. "all": of every living value, "operands": of what the operator
    is given, "none": of none; version counters are compared in any case.
    programs, nodes, calls: how many were checked so far.
    """

    def __init__(self, bytes: str = "operands") -> None:
        if bytes not in _LEVELS:
            raise ValueError(f"bytes is one of {', '.join(_LEVELS)}, not {bytes!r}")
        self.programs = self.nodes = self.calls = 0
        self._bytes = bytes
        self._checked: dict[CompiledProgram, CheckedProgram] = {}
        self._plain: dict[ArenaProgram, CompiledProgram] = {}
        self._updated: dict[Program, frozenset[int]] = {}
        self._patches = ExitStack()

    def __enter__(self) -> AliasSanitizer:
        run, call, step = CompiledProgram.__call__, CompiledGraph.__call__, CompiledStepProgram.__call__

        def checked_run(compiled: CompiledProgram, inputs: list[Any]) -> tuple[Any, ...]:
            if any(isinstance(x, torch.Tensor) and is_fake(x) for x in inputs):
                return run(compiled, inputs)
            return self._run(compiled, inputs)

        def checked_call(graph: CompiledGraph, *inputs: Any) -> tuple[Any, ...]:
            if any(isinstance(x, torch.Tensor) and is_fake(x) for x in inputs):
                return call(graph, *inputs)
            check = _CheckedCall(graph, inputs, self._bytes != "none")
            results = call(graph, *inputs)
            check.verify()
            self.calls += 1
            return results

        def checked_step(
            program: CompiledStepProgram, inputs: list[Any], then: Callable[[], None] | None = None
        ) -> Sequence[Any]:
            self._updated[program.program] = _updated_inputs(program)
            try:
                return step(program, inputs, then)
            except (NothingWritten, StepInterrupted) as error:
                if isinstance(error.__cause__, AliasViolation):  # eager mode is not to take over
                    raise error.__cause__ from None
                raise

        def checked_without_arena(program: ArenaProgram, inputs: list[Any]) -> tuple[Any, ...]:
            plain = self._plain.get(program)
            if plain is None:
                plain = self._plain[program] = CompiledProgram(program.program, program.executors)
            return plain(inputs)

        self._patches.enter_context(mock.patch.object(ArenaProgram, "__call__", checked_without_arena))
        self._patches.enter_context(mock.patch.object(CompiledProgram, "__call__", checked_run))
        self._patches.enter_context(mock.patch.object(CompiledGraph, "__call__", checked_call))
        self._patches.enter_context(mock.patch.object(CompiledStepProgram, "__call__", checked_step))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    def _run(self, compiled: CompiledProgram, inputs: list[Any]) -> tuple[Any, ...]:
        checked = self._checked.get(compiled)
        if checked is None:
            updated = self._updated.get(compiled.program, frozenset())
            checked = self._checked[compiled] = CheckedProgram(compiled, self._bytes, updated)
        outputs = checked(inputs)
        self.programs += 1
        self.nodes += len(compiled.program.nodes)
        return outputs


def _updated_inputs(program: CompiledStepProgram) -> frozenset[int]:
    """The inputs of a step's program that its plan says are written: in place, by the program itself."""
    names = {program.names[write.input] for write in program.plan.writes}
    return frozenset(number for number, label in enumerate(program.labels) if label in names)


class _CheckedCall:
    """A call of a graph: which of its arguments may be written, and what all of them are before it."""

    def __init__(self, graph: CompiledGraph, inputs: Sequence[Any], with_bytes: bool) -> None:
        self._graph = graph
        self._program = graph.forward.program
        plan = graph.plan
        given = [*inputs, *graph.constants.values()]
        numbers = [k if k < plan.extras_at else k + len(plan.extras) for k in range(len(given))]
        self._given = {n: x for n, x in zip(numbers, given, strict=True) if _is_plain(x)}
        self._targets = [(write, self._region(write)) for write in plan.writes if write.input in self._given]
        self._versions = {n: version_of(x) for n, x in self._given.items() if not x.is_inference()}
        self._before = snapshots(self._given.values()) if with_bytes else []
        self._check_apart()

    def verify(self) -> None:
        """Raise AliasViolation unless the call has written what its plan says, and nothing else."""
        plan = self._graph.plan
        moved = {change.input for change in plan.metadata} | set(plan.touched)
        counted = [tensor for write, tensor in self._targets if write.kind is not WriteKind.HIDDEN]
        may_count = {storage_key(tensor) for tensor in (*counted, *(x for n, x in self._given.items() if n in moved))}
        for number, version in self._versions.items():
            tensor = self._given[number]
            if version_of(tensor) != version and storage_key(tensor) not in may_count:
                raise self._violation(f"the call does not write {self._name(number)}", "its version counter moved")
        for snapshot in self._before:
            changed = snapshot.changed()
            for _, tensor in self._targets if changed.any() else ():
                changed[places(tensor, snapshot.start, len(changed))] = False
            if changed.any():
                tensors = self._given.items()
                near = [n for n, x in tensors if (occupied(x, snapshot.start, len(changed)) & changed).any()]
                names = ", ".join(map(self._name, near)) or "memory beside the inputs"
                raise self._violation(f"the call does not write {names}", f"{int(changed.sum())} bytes changed")

    def _region(self, write: WriteBack) -> torch.Tensor:
        tensor = self._given[write.input].detach()
        return replay(tensor, write.steps) if write.steps else tensor

    def _check_apart(self) -> None:
        roles = self._program.signature.inputs
        leader = {number: min(role.inputs) for role in roles if isinstance(role, SharedBytes) for number in role.inputs}
        owners: dict[int, int] = {}

        def tenant(number: int, tensor: torch.Tensor) -> Tenant:
            owners[id(tensor)] = number
            return Tenant(tensor, leader.get(number, number))

        written = [tenant(write.input, target) for write, target in self._targets]
        found = intruder(written, [tenant(number, tensor) for number, tensor in self._given.items()])
        if found is not None:
            name, other = (self._name(owners[id(one.tensor)]) for one in found)
            raise self._violation(f"{name}, which is written, shares no memory with {other}", "they share bytes")

    def _name(self, number: int) -> str:
        return f"input {self._program.inputs[number].name!r}"

    def _violation(self, denied: str, happened: str) -> AliasViolation:
        return AliasViolation(self._program.name, "", "", denied, happened)


def _is_plain(value: object) -> bool:
    """Whether this is a tensor with memory of its own: the parts of a wrapper are inputs themselves."""
    return isinstance(value, torch.Tensor) and not is_wrapper(value)
