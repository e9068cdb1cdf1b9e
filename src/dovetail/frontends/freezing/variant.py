"""One program of a frozen method: what it is, which calls it is for, and running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dovetail.analysis.pairs import may_overlap
from dovetail.errors import FrozenCallMismatch
from dovetail.execute.graph import CompiledGraph
from dovetail.execute.protocol import ExecutorList, RunnableProgram
from dovetail.execute.wrapper import build_wrapper
from dovetail.frontends.freezing.call_form import mismatch
from dovetail.frontends.freezing.nesting import Nesting
from dovetail.frontends.freezing.pool import with_strides
from dovetail.frontends.size_guard import SizeGuard, strides_of
from dovetail.frontends.structure import Structure
from dovetail.frontends.variant_cache import Variant
from dovetail.ir.plan_inputs import inputs_touched
from dovetail.ir.sizes import Number
from dovetail.pipeline.copies_back import counted_only, uncounted
from dovetail.pipeline.freezing import Folded, Unfolded
from dovetail.torch_compat.dispatch import storage_key
from dovetail.torch_compat.modes import set_gradients


@dataclass(frozen=True, slots=True)
class FrozenProgram:
    """A frozen program, as it is saved.

    folded: functional; its inputs are arguments, and then tensors of the pool. arguments: the leaf behind each of the
    first inputs. results: how what it returns is put together. shapes: which ones it is for. written: leaves that it
    writes. same: pairs of leaves that are one tensor. unfolded: gives what `folded` was made from, for other weights;
    only then is a file read that far.
    """

    folded: Folded
    arguments: tuple[int, ...]
    results: Nesting
    shapes: SizeGuard
    written: frozenset[int]
    same: tuple[tuple[int, int], ...]
    unfolded: Callable[[], Unfolded]


class FrozenGuard:
    """For which calls a frozen program is: those with arguments of its shapes."""

    def __init__(self, program: FrozenProgram, method: str, names: Sequence[str]) -> None:
        """method: what errors call it. names: of the leaves of its arguments."""
        self.program = program
        self._method = method
        self._all_names = list(names)
        self._names = [names[leaf] for leaf in program.arguments]
        self._written = frozenset(k for k, leaf in enumerate(program.arguments) if leaf in program.written)
        self._handed_out = inputs_touched(program.folded.program, program.folded.plan).handed_out

    @property
    def is_alive(self) -> bool:
        """Whether a call can be for the program."""
        return True

    def inputs(self, leaves: Sequence[Any], structure: Structure | None = None) -> list[Any] | None:
        """What the program takes in a call, laid out as it wants it; None when the call is not for it.

        Raises: FrozenCallMismatch for an input that must be laid out as the program wants it, and is not.
        """
        program = self.program
        if self._unlike_pair(leaves) is not None:
            return None
        given = [leaves[leaf] for leaf in program.arguments]
        sizes = program.shapes.sizes(given)
        return None if sizes is None else self._laid_out(given, sizes)

    def why(self, leaves: Sequence[Any]) -> str:
        """Why a call is not for the program."""
        pair = self._unlike_pair(leaves)
        if pair is not None:
            place, earlier = pair
            return f"{self._all_names[place]} is not the same tensor as {self._all_names[earlier]}"
        return self.program.shapes.reason([leaves[leaf] for leaf in self.program.arguments], self._names)

    def takes_as_given(self, leaves: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Whether calls that look like this one can give the program what they have. inputs: in this call."""
        return all(leaves[leaf] is x for leaf, x in zip(self.program.arguments, inputs, strict=True))

    def _unlike_pair(self, leaves: Sequence[Any]) -> tuple[int, int] | None:
        return next((pair for pair in self.program.same if leaves[pair[0]] is not leaves[pair[1]]), None)

    def _laid_out(self, inputs: list[torch.Tensor], sizes: Mapping[str, Number]) -> list[torch.Tensor]:
        """The inputs as the program wants them: one that has a different layout is copied, unless it is written."""
        found = []
        for number, (meta, tensor) in enumerate(zip(self.program.shapes.inputs, inputs, strict=True)):
            assert meta is not None, "inputs that are tensors are described"
            wanted = strides_of(meta, sizes)
            given = tensor.stride()
            is_resolved = not tensor.is_conj() and not tensor.is_neg()
            if given == wanted and is_resolved:
                found.append(tensor)
                continue
            steps = zip(given, wanted, tensor.shape, strict=True)
            if is_resolved and all(a == b or size == 1 for a, b, size in steps):
                # its bytes lie as wanted, but kernels tell memory formats by the steps of dimensions of size 1, too
                found.append(tensor.as_strided(tensor.shape, wanted))
                continue
            if number in self._written or number in self._handed_out:
                does = "writes it" if number in self._written else "returns memory of it"
                reason = f"{self._names[number]} has strides {given}, and the program {does} with {wanted}"
                reason += ", conjugated or negated" if given == wanted else ""
                raise mismatch(self._method, reason, "give it the example's layout")
            try:
                found.append(with_strides(tensor.resolve_conj().resolve_neg(), wanted))
            except ValueError as error:
                reason = f"{self._names[number]} has strides {given}, the example had {wanted}, and {error}"
                hint = "expand it like the example, or freeze with x.contiguous()"
                raise mismatch(self._method, reason, hint) from None
        return found


class FrozenRunner:
    """Runs a frozen program: code for it, bound to tensors."""

    def __init__(
        self,
        program: FrozenProgram,
        packed: Folded,
        finish: Callable[[Folded, ExecutorList], RunnableProgram],
        method: str,
        names: Sequence[str],
        executors: ExecutorList,
    ) -> None:
        """packed: the folded program, over packed weights perhaps. finish: makes code of it, when it first runs.

        method: what errors call it. names: of the leaves of its arguments.
        """
        self.program = program
        self._method = method
        self._names = [names[leaf] for leaf in program.arguments]
        self._written = [k for k, leaf in enumerate(program.arguments) if leaf in program.written]
        touched = inputs_touched(program.folded.program, program.folded.plan)
        count = len(program.arguments)
        names_held = [value.name for value in program.folded.program.inputs]
        state = {names_held[number] for number in touched.written if number >= count}
        self._written_held = [count + k for k, name in enumerate(packed.held) if name in state]
        self.writes = bool(self._written or self._written_held)
        self.packed = packed
        self._finish = finish
        self._executors = executors
        self._code: RunnableProgram | None = None
        self._held: dict[str, torch.Tensor] = {}
        self._held_storages: frozenset[int] = frozenset()
        self._graph: CompiledGraph | None = None
        self._returns_one = program.results.is_leaf()

    def written_inputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those of a call's inputs that the program writes."""
        return [inputs[place] for place in self._written]

    @property
    def graph(self) -> CompiledGraph:
        """What runs, over the tensors that it is bound to."""
        if self._graph is None:
            code = self._code = self._code or self._finish(self.packed, self._executors)
            plan = self.packed.plan
            self._graph = CompiledGraph(
                forward=code,
                wrapper=build_wrapper(plan, code.program),
                plan=plan,
                constants=self._held,
                outputs=len(plan.differentiable),
                counted_only=counted_only(code.program, plan),
                uncounted=uncounted(code.program, plan),
            )
        return self._graph

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the tensors that the program holds from these, by name."""
        self._held = {name: tensors[name] for name in self.packed.held}
        held = (tensor for tensor in self._held.values() if tensor.layout is torch.strided)
        self._held_storages = frozenset(map(storage_key, held)) if self.writes else frozenset()
        self._graph = None

    def run_over(self, inputs: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run over other tensors than those it was bound to. held: in the order of the variant's."""
        graph = self.graph
        return graph.wrapper(graph.run_forward, [*inputs, *held])

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Run. Raises: FrozenCallMismatch when the program would write memory that it also has by another name."""
        if self.writes:
            self._refuse_sharing(inputs)
        graph = self._graph or self.graph
        direct = graph.direct
        results: Sequence[Any]
        if direct is None:
            results = graph(*inputs)
        elif torch.is_grad_enabled():
            set_gradients(False)
            try:
                results = direct([*inputs, *graph.constant_list])
            finally:
                set_gradients(True)
        else:
            results = direct([*inputs, *graph.constant_list])
        return results[0] if self._returns_one else self.program.results.put_together(results)

    def _refuse_sharing(self, inputs: Sequence[torch.Tensor]) -> None:
        """Recording took it that what is written shares memory with nothing else."""
        storages = [storage_key(tensor) for tensor in inputs if tensor.layout is torch.strided]
        if len(set(storages)) == len(storages) and self._held_storages.isdisjoint(storages):
            return
        held = list(self._held.values())
        for written in self._written:
            for other, tensor in enumerate([*inputs, *held]):
                if other != written and share_memory(inputs[written], tensor):
                    raise self._sharing(f"{self._names[written]}, which it writes, and {self._called(other)}")
        for written in self._written_held:
            for other, tensor in enumerate(inputs):
                if share_memory(held[written - len(inputs)], tensor):
                    raise self._sharing(f"{self._called(written)}, which it writes, and {self._names[other]}")

    def _called(self, number: int) -> str:
        """What errors call an input."""
        count = len(self._names)
        return self._names[number] if number < count else f"{self.packed.held[number - count]} of the module"

    def _sharing(self, what: str) -> FrozenCallMismatch:
        return mismatch(self._method, f"{what} share memory", "pass a copy of one of them")


FrozenVariant: TypeAlias = Variant[FrozenGuard, FrozenRunner]


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to one may change the other."""
    if b.layout is not torch.strided or storage_key(a) != storage_key(b):
        return False
    return may_overlap(a, b)
