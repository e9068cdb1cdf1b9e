"""One run of a program, held against what the program says of its storages, node by node.

The code that runs is the code of `CompiledProgram`, written by the same emitter with the same calls, except that each
call is handed to `CheckedRun.observe` as a function without arguments: `y = observe(3, lambda: x.mul(2))`. So results,
executors, symbols and lifetimes are the real ones, and the check sees every tensor before and after each operator.
"""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from dovetail.analysis.liveness import last_uses
from dovetail.execute.compiled import CompiledProgram
from dovetail.ir.program import Node, Program, ScalarMeta, TensorMeta, Value, values_in
from dovetail.ir.signature import InputMutation
from dovetail.ir.sizes import Number, Scalar, SizeExpr, evaluate
from dovetail.ir.text import Names, emit, plain_call
from dovetail.ops import prims
from dovetail.ops.facts import ignores_first_contents, writes_of, written_values
from dovetail.testing.real_memory import Snapshot, address_span, occupied, places, share_a_byte, snapshots
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.subclasses import is_wrapper

_SERIAL = itertools.count()


class AliasViolation(AssertionError):
    """A program did at run time what its description says that it does not do.

    program: its name. node: the application, as text; "" for the call as a whole. origin: the user's line. denied:
    what the analysis says. happened: what was seen.
    """

    def __init__(self, program: str, node: str, origin: str, denied: str, happened: str) -> None:
        self.program, self.node, self.origin, self.denied, self.happened = program, node, origin, denied, happened
        lines = [f"{denied}; but {happened}", f"  program   {program}"]
        lines += [f"  node      {node}"] if node else []
        lines += [f"  from      {origin}"] if origin else []
        super().__init__("\n".join(lines))


class CheckedProgram:
    """The checked version of a compiled program. bytes: see `sanitizer.AliasSanitizer`.

    updated: numbers of inputs that it writes besides those of which its signature says so, as programs of steps do.
    """

    def __init__(self, compiled: CompiledProgram, bytes: str, updated: Collection[int] = ()) -> None:
        self.program = compiled.program
        self.bytes = bytes
        roles = self.program.signature.outputs
        numbers = {role.input for role in roles if isinstance(role, InputMutation)} | set(updated)
        inputs = self.program.inputs
        self.writable = {inputs[n].tensor.storage for n in numbers if n < len(inputs) and inputs[n].is_tensor}
        self.dying = last_uses(compiled.program)
        self.producers = compiled.program.producers()
        self.last_read = _last_reads(compiled.program)
        self._runs: list[CheckedRun] = []
        self._run = observed_code(compiled, self._observe)

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run and check. inputs: emptied."""
        run = CheckedRun(self, inputs)
        self._runs.append(run)
        try:
            outputs = self._run(inputs)
            run.check_released()
            return outputs
        finally:
            self._runs.pop()

    def _observe(self, index: int, call: Callable[[], Any]) -> Any:
        return self._runs[-1].observe(index, call)


@dataclass(slots=True)
class _Held:
    """A value that is alive. origin_address: where its storage would begin, going by the described offset."""

    tensor: torch.Tensor
    span: tuple[int, int]
    origin_address: int | None


@dataclass(slots=True)
class _Before:
    """What was seen before an operator ran."""

    versions: list[tuple[Value, torch.Tensor, int]]
    snapshots: list[Snapshot] = field(default_factory=list)


class CheckedRun:
    """State of one run: which values are alive, and where they really lie."""

    def __init__(self, checked: CheckedProgram, inputs: Sequence[Any]) -> None:
        self._checked = checked
        self._program = checked.program
        self._node: Node | None = None
        self._at = -1
        self._symbols: dict[str, Number] = {}
        self._live: dict[Value, _Held] = {}
        self._inputs: dict[Value, tuple[weakref.ref[torch.Tensor], tuple[int, int]]] = {}
        self._outside = self._program.input_storages()
        self._given_back = set(self._program.inputs).intersection(values_in(self._program.outputs))
        self._storages: dict[int, list[StorageWeakRef]] = {}
        self._leaving: set[int] = set()
        given = list(zip(self._program.inputs, inputs, strict=True))
        given = [(value, item) for value, item in given if not is_wrapper(item)]  # their parts are inputs themselves
        self._bind_symbols(given)
        for value, item in given:
            self._enter(value, item)
        self._forget(-1)

    def observe(self, index: int, call: Callable[[], Any]) -> Any:
        """Run node number `index` by `call`, and check what it did."""
        self.check_released()
        node = self._node = self._program.nodes[index]
        self._at = index
        before = self._look(node)
        try:
            result = call()
        except Exception as error:
            error.add_note(f"dovetail: while running {node.target} of {self._program.name}, from {node.origin}")
            raise
        written = list(self._written(node))
        self._check_versions(before, written)
        self._check_bytes(before, written)
        self._bind(node, result)
        self._forget(index)
        self._check_later_reads(node, written)
        return result

    def check_released(self) -> None:
        """Storages that nobody reads any more are gone."""
        leaving, self._leaving = self._leaving, set()
        for number in leaving:
            if not all(ref.expired() for ref in self._storages.pop(number, ())):
                raise self._violation(f"storage {number} is freed here", "it is still held")

    # --- inputs -----------------------------------------------------------------------------------------------

    def _bind_symbols(self, inputs: Sequence[tuple[Value, Any]]) -> None:
        for value, given in inputs:
            if isinstance(value.meta, ScalarMeta):
                self._bind_symbol(value.meta.expr, given)
        for value, given in inputs:
            if isinstance(value.meta, TensorMeta):
                described = (*value.meta.shape, *value.meta.stride, value.meta.offset)
                for size, real in zip(described, (*given.shape, *given.stride(), given.storage_offset()), strict=True):
                    self._bind_symbol(size, real)

    def _bind_symbol(self, size: Scalar, real: Number) -> None:
        if isinstance(size, SizeExpr) and size.op == "symbol":
            self._symbols.setdefault(str(size.args[0]), real)

    def _enter(self, value: Value, given: Any) -> None:
        self._check_description(value, given)
        if value.is_tensor:
            self._live[value] = self._held(value, given)
            self._inputs[value] = (weakref.ref(given), address_span(given))

    def _held(self, value: Value, tensor: torch.Tensor) -> _Held:
        offset = self._number(value.tensor.offset)
        known = tensor.numel() > 0 and offset is not None
        start = tensor.data_ptr() - int(offset or 0) * tensor.element_size() if known else None
        return _Held(tensor, address_span(tensor), start)

    # --- what a node writes -----------------------------------------------------------------------------------

    def _look(self, node: Node) -> _Before:
        versions = [(v, t, version_of(t)) for v, t, _ in self._alive() if not t.is_inference()]
        if self._checked.bytes == "none":
            return _Before(versions)
        if self._checked.bytes == "all":
            return _Before(versions, snapshots(t for _, t, _ in self._alive()))
        return _Before(versions, snapshots(self._live[v].tensor for v in node.operands() if v.is_tensor))

    def _alive(self) -> Iterator[tuple[Value, torch.Tensor, tuple[int, int]]]:
        """Live values, and inputs that the program has done with and somebody outside still holds."""
        for value, held in self._live.items():
            yield value, held.tensor, held.span
        for value, (ref, span) in self._inputs.items():
            tensor = None if value in self._live else ref()
            if tensor is not None:
                yield value, tensor, span

    def _written(self, node: Node) -> Iterator[tuple[Value, torch.Tensor]]:
        for value in written_values(node):
            self._check_may_write(value)
            yield value, self._live[value].tensor

    def _check_may_write(self, value: Value) -> None:
        number = value.tensor.storage
        if number not in self._outside:
            return
        if number not in self._checked.writable:
            raise self._violation("the program writes no input here", f"{value} lies on the storage of one")

    def _check_versions(self, before: _Before, written: Sequence[tuple[Value, torch.Tensor]]) -> None:
        allowed = {storage_key(tensor) for _, tensor in written}
        for value, tensor, version in before.versions:
            if version_of(tensor) != version and storage_key(tensor) not in allowed:
                raise self._violation(f"the operator does not write {value}", "its version counter moved")

    def _check_bytes(self, before: _Before, written: Sequence[tuple[Value, torch.Tensor]]) -> None:
        for snapshot in before.snapshots:
            changed = snapshot.changed()
            if not changed.any():
                continue
            for _, tensor in written:
                changed[places(tensor, snapshot.start, len(changed))] = False
            if changed.any():
                names = [
                    v.name for v, t, _ in self._alive() if (occupied(t, snapshot.start, len(changed)) & changed).any()
                ]
                what = ", ".join(names) or "bytes that no value occupies"
                raise self._violation(f"the operator does not write {what}", f"{int(changed.sum())} bytes changed")

    def _check_later_reads(self, node: Node, written: Sequence[tuple[Value, torch.Tensor]]) -> None:
        """What is written is not read under the name of the old contents; that of a whole is also that of new parts.

        An input that is given back with new contents has one name for all of them: `verify_inplace` tells them apart.
        """
        results = set(node.results())
        for target, tensor in written:
            current = results | self._shown_by(target)
            of_target = [x for x in results if x.is_tensor and x.tensor.storage == target.tensor.storage]
            if not of_target or (target in self._given_back and target.tensor in [x.tensor for x in of_target]):
                current.add(target)
            for value, held in self._live.items():
                if self._checked.last_read.get(value, -1) <= self._at:
                    continue
                if value not in current and share_a_byte(held.tensor, tensor):
                    raise self._violation(f"{value} is not read after this", f"it lies in {target}, and is read later")

    def _shown_by(self, value: Value) -> set[Value]:
        """The values that a value is a view of."""
        found: set[Value] = set()
        while value in self._checked.producers:
            node = self._checked.producers[value]
            first = node.args[0] if node.args else None
            if not isinstance(first, Value) or not first.is_tensor or first.tensor.storage != value.tensor.storage:
                break
            if not writes_of(node):
                found.add(first)
            value = first
        return found

    # --- results ----------------------------------------------------------------------------------------------

    def _bind(self, node: Node, result: Any) -> None:
        made = list(result) if node.unpack else [result]
        if node.outputs and len(made) != len(node.outputs):
            raise self._violation(f"there are {len(node.outputs)} results", f"there are {len(made)}")
        fresh: list[Value] = []
        for value, real in zip(node.outputs, made, strict=False):
            if value is None:
                if isinstance(real, torch.Tensor):
                    raise self._violation("there is no tensor among the results here", f"there is one of {real.shape}")
                continue
            if isinstance(value.meta, ScalarMeta):
                self._bind_symbol(value.meta.expr, real)
            self._check_description(value, real)
            if value.is_tensor:
                held = self._held(value, real)
                self._check_place(node, value, held, fresh)
                self._live[value] = held
                self._storages.setdefault(value.tensor.storage, []).append(StorageWeakRef(real.untyped_storage()))

    def _check_place(self, node: Node, value: Value, held: _Held, fresh: list[Value]) -> None:
        number = value.tensor.storage
        operands = {v for v in node.operands() if v.is_tensor and v.tensor.storage == number}
        relatives = [h for v, h in self._live.items() if v.tensor.storage == number and (v in operands or not operands)]
        starts = {h.origin_address for h in relatives}
        if starts:
            if held.origin_address not in starts and held.origin_address is not None and None not in starts:
                names = ", ".join(v.name for v in self._live if v.tensor.storage == number)
                raise self._violation(f"{value} is a view over the storage of {names}", "it lies elsewhere")
            return
        offset = self._number(value.tensor.offset)
        if offset is not None and held.tensor.storage_offset() != offset:
            where = f"at {held.tensor.storage_offset()}"
            raise self._violation(f"{value} begins at element {offset} of its storage", where)
        first, end = held.span
        for other, tensor, (start, stop) in self._alive():
            if start < end and first < stop and other.tensor.storage != number and share_a_byte(tensor, held.tensor):
                raise self._violation(f"{value} shares no memory with {other}", "they share bytes")

    def _check_description(self, value: Value, real: Any) -> None:
        if isinstance(value.meta, ScalarMeta):
            number = self._number(value.meta.expr)
            if number is not None and number != real and not (math.isnan(number) and math.isnan(real)):
                raise self._violation(f"{value} is {number}", f"it is {real!r}")
            return
        if not isinstance(real, torch.Tensor):
            raise self._violation(f"{value} is a tensor", f"it is {real!r}")
        meta = value.meta
        if (real.dtype, real.device) != (meta.dtype, meta.device):
            raise self._violation(f"{value} is {meta.dtype} on {meta.device}", f"it is {real.dtype} on {real.device}")
        for what, described, seen in (("sizes", meta.shape, real.shape), ("strides", meta.stride, real.stride())):
            expected = tuple(map(self._number, described))
            matters = [what == "sizes" or (size > 1 and real.numel() > 0) for size in real.shape]
            if len(expected) != len(seen) or any(
                a is not None and a != b for a, b, m in zip(expected, seen, matters, strict=True) if m
            ):
                raise self._violation(f"{value} has {what} {expected}", f"it has {tuple(seen)}")

    def _number(self, size: Scalar) -> Number | None:
        """The number that a size stands for in this run; None when a symbol in it is not bound."""
        try:
            return evaluate(size, self._symbols)
        except KeyError:
            return None

    # --- lifetimes --------------------------------------------------------------------------------------------

    def _forget(self, index: int) -> None:
        dying: Mapping[int, tuple[Value, ...]] = self._checked.dying
        gone = {v.tensor.storage for v in dying.get(index, ()) if v.is_tensor and self._live.pop(v, None) is not None}
        alive = {value.tensor.storage for value in self._live}
        self._leaving |= gone - alive - self._outside

    def _violation(self, denied: str, happened: str) -> AliasViolation:
        node = self._node
        text = origin = ""
        if node is not None:
            text = f"{', '.join(v.name for v in node.results()) or '_'} = {plain_call(Names(), node)}"
            origin = str(node.origin)
        return AliasViolation(self._program.name, text, origin, denied, happened)


def _last_reads(program: Program) -> dict[Value, int]:
    """The last node that reads the contents of each value; of inputs that are returned the caller gets new contents."""
    found: dict[Value, int] = {}
    for index, node in enumerate(program.nodes):
        ignored = [operand for name, operand in node.kwargs if name == "out"]
        ignored += node.args[:1] if ignores_first_contents(node.target) else ()
        found.update((value, index) for value in node.operands() if value not in ignored)
    inputs = set(program.inputs)
    found.update((value, len(program.nodes)) for value in values_in(program.outputs) if value not in inputs)
    return found


def observed_code(
    compiled: CompiledProgram, observe: Callable[[int, Callable[[], Any]], Any]
) -> Callable[[list[Any]], tuple[Any, ...]]:
    """The generated code of a program, with each call handed to `observe`."""
    program = compiled.program
    places = {id(node): index for index, node in enumerate(program.nodes)}

    def call(names: Names, node: Node) -> str:
        function = names.constant(observe, "observe")
        return f"{function}({places[id(node)]}, lambda: {compiled.executors.call(names, node)})"

    source = emit(program, call, last_uses(program), comments=False)
    namespace: dict[str, Any] = {"torch": torch, "math": math, "operator": operator, "prims": prims, **source.globals}
    exec(compile(source.text, f"<dovetail {program.name} checked {next(_SERIAL)}>", "exec"), namespace)
    function: Callable[[list[Any]], tuple[Any, ...]] = namespace["run"]
    return function
