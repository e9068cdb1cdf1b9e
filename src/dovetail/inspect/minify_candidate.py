"""Parts of a program that run by themselves: some of its nodes, on the tensors that really reached them.

A candidate says which nodes of a recorded program stay, what is returned, and which values are replaced by another one.
`Builder` makes a program and its inputs of it: values that a kept node reads and no kept node computes become inputs,
with the same memory sharing; sizes stay symbolic, and a size that is no longer computed becomes an input, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.inspect.minify_recording import Recording
from dovetail.ir.draft import Draft
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.program import (
    Node,
    Operand,
    Program,
    ScalarMeta,
    Value,
    map_operands,
    meta_symbols,
    symbols_in,
    values_in,
)
from dovetail.ir.signature import (
    Buffer,
    Constant,
    InputRole,
    Parameter,
    Signature,
    SizeInput,
    UserInput,
    UserOutput,
)
from dovetail.ir.sizes import symbol
from dovetail.ir.symbol_sources import symbol_source
from dovetail.ops.facts import may_be_removed

_LASTING_ROLES = (Parameter, Buffer, Constant, SizeInput)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A part of a program.

    kept: numbers of the nodes that stay, in order. outputs: what is returned. swaps: pairs of a value and the one that
    is read in its place. spare: inputs of the program that stay although nothing reads them.
    """

    kept: tuple[int, ...]
    outputs: tuple[Operand, ...]
    swaps: tuple[tuple[Value, Value], ...] = ()
    spare: frozenset[Value] = frozenset()

    def stand_in(self, value: Value) -> Value:
        """What is read where the program reads this value."""
        if not self.swaps:
            return value
        swaps = dict(self.swaps)
        while value in swaps:
            value = swaps[value]
        return value


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate as a program, with new inputs for one run."""

    program: Program
    inputs: list[Any]


class Builder:
    """Makes programs of the candidates of one recorded program."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._program = recording.program
        self._given = frozenset(self._program.inputs)
        self._made_symbols = made_symbols(self._program)
        self._order = {value: place for place, value in enumerate(self._program.values())}
        self._roles = dict(zip(self._program.inputs, self._program.signature.inputs, strict=True))

    def whole(self) -> Candidate:
        """The program as it is."""
        program = self._program
        return Candidate(tuple(range(len(program.nodes))), program.outputs, spare=frozenset(program.inputs))

    # --- smaller candidates -------------------------------------------------------------------------------------

    def without(self, candidate: Candidate, removed: Iterable[int], *, cut: bool = False) -> Candidate:
        """The candidate without some nodes, returning what only they read; with `cut`, all that they read."""
        gone = frozenset(removed)
        kept = tuple(index for index in candidate.kept if index not in gone)
        lost, read = self._reads(candidate, gone), self._reads(candidate, kept)
        made = self._made_by(kept)
        outputs = self._available(candidate, candidate.outputs, made)
        known = {candidate.stand_in(value) for value in values_in(outputs)}
        bare = [value for value in made if value in lost and value not in known and (cut or value not in read)]
        return replace(candidate, kept=kept, outputs=(*outputs, *bare))

    def returning(self, candidate: Candidate, outputs: Sequence[Operand], *, prune: bool = True) -> Candidate:
        """The candidate with other outputs; with `prune`, without the nodes that nobody misses then."""
        smaller = replace(candidate, outputs=tuple(outputs))
        if not prune:
            return smaller
        needed = {candidate.stand_in(value) for value in values_in(smaller.outputs)}
        symbols = set(symbols_in(smaller.outputs))
        kept: list[int] = []
        for index in reversed(candidate.kept):
            node = self._program.nodes[index]
            makes_size = not symbols.isdisjoint(self._made_symbols.get(node, ()))
            if may_be_removed(node) and needed.isdisjoint(node.results()) and not makes_size:
                continue
            needed.update(map(candidate.stand_in, node.operands()))
            symbols.update(node.symbols())
            kept.append(index)
        return replace(smaller, kept=tuple(reversed(kept)))

    def swapped(self, candidate: Candidate, index: int) -> Iterator[Candidate]:
        """The candidate without a node, of which an operand of equal layout stands in for the one result."""
        node = self._program.nodes[index]
        results = [value for value in node.results() if value.is_tensor]
        if len(results) != 1:
            return
        kept = tuple(other for other in candidate.kept if other != index)
        for operand in dict.fromkeys(map(candidate.stand_in, node.operands())):
            if operand.is_tensor and operand.tensor.layout() == results[0].tensor.layout():
                smaller = replace(candidate, kept=kept, swaps=(*candidate.swaps, (results[0], operand)))
                yield replace(smaller, outputs=self._available(smaller, smaller.outputs, self._made_by(kept)))

    def last_results(self, candidate: Candidate) -> tuple[Operand, ...]:
        """The outputs that the last node makes."""
        last = self._made_by(candidate.kept[-1:])
        return tuple(o for o in candidate.outputs if any(candidate.stand_in(v) in last for v in values_in(o)))

    def unread(self, candidate: Candidate) -> tuple[Operand, ...]:
        """The results that no node of the candidate reads."""
        read = self._reads(candidate, candidate.kept)
        return tuple(value for value in self._made_by(candidate.kept) if value not in read)

    def _made_by(self, kept: Iterable[int]) -> dict[Value, None]:
        return dict.fromkeys(value for index in kept for value in self._program.nodes[index].results())

    def _reads(self, candidate: Candidate, nodes: Iterable[int]) -> set[Value]:
        return {candidate.stand_in(v) for index in nodes for v in self._program.nodes[index].operands()}

    def _available(
        self, candidate: Candidate, outputs: Sequence[Operand], made: dict[Value, None]
    ) -> tuple[Operand, ...]:
        """The outputs that are still made, or were inputs all along."""

        def is_there(output: Operand) -> bool:
            values = [candidate.stand_in(value) for value in values_in(output)]
            return all(value in made or value in self._given for value in values)

        return tuple(output for output in outputs if is_there(output))

    # --- programs -----------------------------------------------------------------------------------------------

    def build(self, candidate: Candidate) -> Built | None:
        """The candidate as a program; None where it reads what the recorded run never came to."""
        nodes = [self._program.nodes[index].with_operands(candidate.stand_in) for index in candidate.kept]
        outputs = tuple(map_operands(output, candidate.stand_in) for output in candidate.outputs)
        made = {value for node in nodes for value in node.results()}
        read = {value for node in nodes for value in node.operands()} | set(values_in(outputs)) | candidate.spare
        inputs = sorted(read - made, key=self._order.__getitem__)
        if not all(map(self._recording.knows, inputs)):
            return None
        bound = replace(self._program, inputs=tuple(inputs), nodes=tuple(nodes), outputs=outputs)
        names = self._unbound_symbols(candidate, bound)
        real = self._recording.make(inputs, self._first_touches(candidate, inputs).__getitem__)
        draft = Draft(self._program)
        sizes = [Value(draft.name(name), ScalarMeta(symbol(name))) for name in names]
        roles = [self._role(value, place) for place, value in enumerate(inputs)]
        signature = Signature(
            (*roles, *map(SizeInput, names)), tuple(UserOutput(place) for place in range(len(outputs)))
        )
        if candidate == self.whole():
            signature = self._program.signature
        program = replace(bound, inputs=(*inputs, *sizes), signature=signature)
        places = self._recording.places
        shared = {value: places[value].storage for value in inputs if value in places}
        before = [self._program.nodes[index] for index in candidate.kept]
        return Built(
            with_true_storages(program, before, shared), [*real, *(self._recording.sizes[name] for name in names)]
        )

    def _role(self, value: Value, place: int) -> InputRole:
        role = self._roles.get(value)
        return role if isinstance(role, _LASTING_ROLES) else UserInput(place)

    def _first_touches(self, candidate: Candidate, inputs: Sequence[Value]) -> dict[int, int]:
        """For each storage of an input, the kept node that is the first to touch it."""
        places = self._recording.places
        found: dict[int, int] = {}
        for index in candidate.kept:
            node = self._program.nodes[index]
            for value in (*map(candidate.stand_in, node.operands()), *node.results()):
                if value in places:
                    found.setdefault(places[value].storage, index)
        end = len(self._program.nodes)
        return {places[v].storage: found.get(places[v].storage, end) for v in inputs if v in places}

    def _unbound_symbols(self, candidate: Candidate, program: Program) -> list[str]:
        """Size symbols that the program mentions and neither an input nor a node of it gives."""
        mentioned = dict.fromkeys(symbols_in(program.outputs))
        made: set[str] = set()
        for value in program.inputs:
            mentioned.update(dict.fromkeys(meta_symbols(value.meta)))
        for node in program.nodes:
            mentioned.update(dict.fromkeys(node.symbols()))
            for value in node.results():
                mentioned.update(dict.fromkeys(meta_symbols(value.meta)))
        for index in candidate.kept:
            made.update(self._made_symbols.get(self._program.nodes[index], ()))
        return [name for name in mentioned if name not in made and symbol_source(program, symbol(name)) is None]


def with_true_storages(program: Program, before: Sequence[Node], shared: Mapping[Value, int]) -> Program:
    """The program with numbers of storages that say who shares memory now.

    A value that has become an input does not lie any more where the node put it that made the memory. before: the nodes
    as they were, whose operands and results say who is a view of whom. shared: a number of the storage of each input
    that is a tensor.
    """
    numbers = _Numbers()
    draft = Draft(program)
    for value in program.inputs:
        if value in shared:
            _place(value, numbers.of_input(value, shared[value]), draft)
    for node, original in zip(program.nodes, before, strict=True):
        for value in node.results():
            if value.is_tensor:
                _place(value, numbers.of_result(value, node, original), draft)
        draft.take(node)
    return draft.finish()


class _Numbers:
    """Gives each value the number of its storage, the one it had where no other value has that now."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._of_input: dict[int, int] = {}
        self._now: dict[Value, int] = {}

    def of_input(self, value: Value, storage: int) -> int:
        """The number for an input on this real storage."""
        if storage not in self._of_input:
            self._of_input[storage] = self._fresh(value.tensor.storage)
        self._now[value] = self._of_input[storage]
        return self._now[value]

    def of_result(self, value: Value, node: Node, original: Node) -> int:
        """The number for a result: that of the operand, or earlier result, which it shared memory with."""
        pairs = [*zip(original.operands(), node.operands(), strict=True), *((v, v) for v in node.results())]
        wanted = value.tensor.storage
        for was, is_now in pairs:
            if was.is_tensor and was.tensor.storage == wanted and is_now in self._now:
                self._now[value] = self._now[is_now]
                return self._now[value]
        self._now[value] = self._fresh(wanted)
        return self._now[value]

    def _fresh(self, wish: int) -> int:
        number = wish if wish not in self._used else max(self._used) + 1
        self._used.add(number)
        return number


def _place(value: Value, number: int, draft: Draft) -> None:
    if value.tensor.storage != number:
        draft.substitute(value, Value(value.name, replace(value.tensor, storage=number)))
