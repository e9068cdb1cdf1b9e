"""What a step makes in its first call and keeps: moments of optimizers, counters, flags.

It can be put where the step would put it, with other tensors in the places of those that the step computes: to record
what later calls do, or, with the very contents that the step would begin with, so that the first call is like those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.capture.step_tensors import MadeTensor, look_of
from dovetail.execute.addresses import without_machine_code
from dovetail.execute.needs import Needs
from dovetail.execute.step import CompiledStepProgram
from dovetail.frontends.step.containers import Path, Slot
from dovetail.frontends.step.kept import Again, FromPlace, Handed, New, Tree, grown
from dovetail.frontends.step.recorded import Recorded
from dovetail.frontends.step.same_recordings import run_beforehand
from dovetail.ir.calling import FromConstant, FromInput, FromOutput, Look
from dovetail.ir.program import Node, Value
from dovetail.ops.facts import facts_of
from dovetail.pipeline.memory_limit import memory_limit
from dovetail.pipeline.options import Options
from dovetail.reach.contents import MISSING
from dovetail.reach.values import dict_methods


class MadeState:
    """See the module docstring. tensors: those that the step computes, by their place among its results.

    numbers: what stands in for the numbers of Python's that it computes, likewise.
    """

    def __init__(self, recorded: Recorded) -> None:
        """recorded: a step that makes something."""
        self._recorded = recorded
        self._made = recorded.made
        self._places = sorted({place for made in self._made for place in _outputs_in(made.tree)})
        results = recorded.recording.results
        self.tensors = {place: found for place in self._places if isinstance(found := results[place], MadeTensor)}
        now = recorded.recording.recorder.numbers_now
        self.numbers = {  # which later calls may divide by
            place: type(now[found.name])(1)
            for place in self._places
            if isinstance(found := results[place], Value) and found.name in now
        }

    @property
    def can_be_stood_in_for(self) -> bool:
        """Whether other tensors and numbers may stand in for those that are computed: nothing else is."""
        return (
            all(_is_simple(made.tree) for made in self._made)
            and all(self._is_known(x) or x in self.tensors or x in self.numbers for x in self._places)
            and all(map(_can_stand_in, self.tensors.values()))
        )

    @property
    def is_of_plain_tensors(self) -> bool:
        """Whether each tensor is all of a memory of its own, so that what makes it can run by itself."""
        storages = [found.value.tensor.storage for found in self.tensors.values()]
        return len(set(storages)) == len(storages) and all(map(_is_plain, self.tensors.values()))

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors' memory."""
        return sum({x.value.tensor.storage: x.item.untyped_storage().nbytes() for x in self.tensors.values()}.values())

    def stand_ins(self) -> dict[int, torch.Tensor]:
        """Tensors like those that the step computes. Single numbers are what they begin with, where that is known."""
        made = self.alike(lambda item: item.device)
        for place, tensor in made.items():
            if tensor.numel() == 1:
                self._begin(place, tensor)
        return made

    def alike(self, device_of: Callable[[torch.Tensor], torch.device]) -> dict[int, torch.Tensor]:
        """Tensors like those that the step computes, that share memory as those do."""
        memory: dict[int, torch.UntypedStorage] = {}
        made: dict[int, torch.Tensor] = {}
        for place, found in self.tensors.items():
            item, number = found.item, found.value.tensor.storage
            if _is_plain(found) and number not in memory:
                like = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=device_of(item))
                memory[number] = like.untyped_storage()
            else:
                if number not in memory:
                    size = item.untyped_storage().nbytes()
                    memory[number] = torch.empty(size, dtype=torch.uint8, device=device_of(item)).untyped_storage()
                like = torch.empty(0, dtype=item.dtype, device=device_of(item))
                like.set_(memory[number], item.storage_offset(), item.shape, item.stride())
            is_parameter = look_of(item).is_parameter
            like = torch.nn.Parameter(like, item.requires_grad) if is_parameter else like
            made[place] = like.requires_grad_(item.requires_grad)
        return made

    def _begin(self, place: int, tensor: torch.Tensor) -> None:
        """Let a tensor of one number hold what the step makes there first; 0 where that takes more than an operator."""
        tensor.zero_()
        value = self.tensors[place].value
        node = next(node for node in self._recorded.recording.recorder.nodes if value in node.results())
        known = {value for _, value in self._recorded.recording.recorder.constants}
        if known.issuperset(node.operands()) and facts_of(node.target).is_pure:
            tensor.copy_(run_beforehand(self._recorded, [node], [value])[0])

    def begun(self, nodes: Sequence[Node]) -> dict[int, torch.Tensor]:
        """The tensors that the step begins with. nodes: of its recording, that make them."""
        made = run_beforehand(self._recorded, nodes, [found.value for found in self.tensors.values()])
        return dict(zip(self.tensors, made, strict=True))

    def turns_flags_early(self, later: Recorded) -> bool:
        """Whether something that is called before the program would see too early what is turned.

        later: a recording of calls that find the state.
        """
        return bool(self.turned) and any(call.before for call in later.host_calls)

    def is_no_more_than_eager(self, later: CompiledStepProgram) -> bool:
        """Whether all of it, made before a program of later calls runs, takes no more than eager mode does.

        What operators take besides counts on both sides, and is looked for in eager mode where it decides.
        """
        recorded, hints = self._recorded.programs.recorded, self._recorded.recording.size_hints
        taken = self.size_bytes + later.run_bytes
        if taken <= simulate_peak(recorded, hints).peak_bytes:
            return True
        needs = Needs(hints)
        needs.measure(recorded.nodes)
        return taken <= simulate_peak(recorded, hints, need_of=needs.need_of).peak_bytes

    def options(self, options: Options, *, is_once: bool = False) -> Options:
        """Options for a program that makes the state: under a limit above the state, it counts as such.

        is_once: another program is for later calls. Without a limit no lower peak is looked for then, and nothing is
        compiled: that takes longer than one call is worth, and the peak is eager's at most as it is.
        """
        if options.memory_limit is None and is_once:
            executors = without_machine_code(options.executors)
            return replace(options, skip=(*options.skip, "common_subexpressions", "recompute"), executors=executors)
        if options.memory_limit is None:
            return options
        limit = memory_limit(options.memory_limit)
        if not limit.is_transient:
            return options
        return replace(options, memory_limit=f"transient:{limit.bytes + self.size_bytes}B")

    def put(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Put all of it where the step would. tensors: by their place among the results."""
        recording = self._recorded.recording
        results: list[Any] = [None] * len(recording.results)
        for place in self._places:
            rule = recording.results[place]
            if isinstance(rule, FromInput):
                results[place] = recording.tensors[rule.input].tensor
            elif isinstance(rule, FromConstant):
                results[place] = rule.value
            else:
                results[place] = tensors[place] if place in tensors else self.numbers[place]
        reachable = self._recorded.reachable
        handed = Handed(results, places={path: reachable.slot(path).read() for path in self._recorded.places})
        for made in self._made:
            made.slot.write(grown(made.tree, handed))

    @property
    def turned(self) -> frozenset[Path]:
        """The flags that are turned, and what was open and is decided: the step may do so once and never again."""
        found = (made for made in self._made if isinstance(made.tree, FromConstant | FromPlace))
        return frozenset(made.path for made in found if made.old is not MISSING)

    @property
    def paths(self) -> frozenset[Path]:
        """Where all of it is put."""
        return frozenset(made.path for made in self._made)

    @property
    def filled(self) -> frozenset[Path]:
        """The containers in which something is put."""
        return frozenset(made.slot.container.path for made in self._made)

    @property
    def before(self) -> list[tuple[Slot, Any]]:
        """Where all of it goes, with what is there before: the way back, which needs nothing of the recording."""
        return [(made.slot, made.old) for made in self._made]

    @contextmanager
    def stood_in(self, tensors: Mapping[int, torch.Tensor]) -> Iterator[None]:
        """While active, all of it is there."""
        try:
            self.put(tensors)
            yield
        finally:
            take_away(self.before)

    def _is_known(self, place: int) -> bool:
        return isinstance(self._recorded.recording.results[place], FromInput | FromConstant)

    def values(self) -> dict[int, Value]:
        """The values of the tensors, by their place among the results."""
        return {place: found.value for place, found in self.tensors.items()}


def take_away(before: Sequence[tuple[Slot, Any]]) -> None:
    """Let slots be as they were before state was put there."""
    for slot, old in reversed(before):
        if old is MISSING:
            methods = dict_methods(slot.item)
            if methods.__contains__(slot.item, slot.key):
                methods.__delitem__(slot.item, slot.key)
        else:
            slot.write(old)


def give_up(stand_ins: Iterable[torch.Tensor]) -> None:
    """Free the memory of tensors that stood in: a recording may hold them for longer."""
    for tensor in stand_ins:
        storage = tensor.untyped_storage()
        if storage.resizable():  # it is not where an array shows the same memory
            storage.resize_(0)


def _outputs_in(tree: Tree) -> Iterator[int]:
    if isinstance(tree, FromOutput):
        yield tree.output
    elif isinstance(tree, New):
        for part in tree.parts:
            yield from _outputs_in(part)


def _is_simple(tree: Tree) -> bool:
    """Whether it has no number or text that is computed, other than by results."""
    if isinstance(tree, New):
        return all(map(_is_simple, tree.parts))
    return isinstance(tree, FromOutput | FromConstant | FromPlace | Again)


def _can_stand_in(found: MadeTensor) -> bool:
    """Whether another tensor can be made like one: it is no part of a graph, and its memory is of a known size."""
    item = found.item
    if item.layout is not torch.strided or item.grad is not None or look_of(item).graph:
        return False
    return _is_plain(found) or (type(item.untyped_storage().nbytes()) is int and not (item.is_conj() or item.is_neg()))


def _is_plain(found: MadeTensor) -> bool:
    """Whether a tensor is all of its memory, and no leaf of a graph."""
    item, described = found.item, found.value.tensor
    return (
        look_of(item) == Look()
        and described.offset == 0
        and item.layout is torch.strided
        and not described.overlaps_itself()
        and item.grad is None
    )
