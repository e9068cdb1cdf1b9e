"""One plain run of a program that remembers every value, so that a part of it can be run on what really reaches it.

A value is remembered as a place in a storage, and a storage by its bytes before each write: the contents of a value at
any point of the run can be restored in new memory, and values that shared memory then share memory again.

Cost: the run's intermediate values stay alive, and every write copies the storage that it writes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dovetail.inspect.tensor_place import TensorPlace, clone_together
from dovetail.ir.program import Program, Value
from dovetail.ir.sizes import Number
from dovetail.ops.facts import written_values
from dovetail.ops.interpret import run_node, size_numbers
from dovetail.torch_compat.dispatch import storage_key

SEED = 20240229


@contextmanager
def repeatable(program: Program) -> Iterator[None]:
    """While active, random numbers are the same each time; afterwards, generators are as before."""
    generators = [item for node in program.nodes for item in _generators((node.args, node.kwargs))]
    states = [generator.get_state() for generator in generators]
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


def _generators(operand: object) -> Iterator[torch.Generator]:
    if isinstance(operand, torch.Generator):
        yield operand
    elif isinstance(operand, tuple | list):
        for item in operand:
            yield from _generators(item)


class Recording:
    """A program's values, as one plain run of it made them.

    finished: how many nodes ran; fewer than there are when one raised, or where the run was stopped before one.
    """

    def __init__(self, program: Program, inputs: Sequence[Any], stop: int | None = None) -> None:
        self.program = program
        self.numbers: dict[Value, Any] = {}
        self.places: dict[Value, TensorPlace] = {}
        self.sizes: dict[str, Number] = {}
        self.finished = 0
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._numbered: dict[int, int] = {}
        self._before: dict[int, list[tuple[int, torch.UntypedStorage]]] = {}
        self._held: dict[Value, Any] = {}
        with repeatable(program), torch.no_grad():
            self._run(clone_together(inputs), len(program.nodes) if stop is None else stop)
        self._held.clear()

    def knows(self, value: Value) -> bool:
        """Whether the run came as far as this value."""
        return value in self.places or value in self.numbers

    def make(self, values: Sequence[Value], when: Callable[[int], int]) -> list[Any]:
        """The values on new memory.

        when: for the number of a storage, the node before which its contents are to be taken.
        """
        made: dict[int, torch.UntypedStorage] = {}
        result: list[Any] = []
        for value in values:
            place = self.places.get(value)
            if place is None:
                result.append(self.numbers[value])
                continue
            if place.storage not in made:
                made[place.storage] = self._contents(place.storage, when(place.storage)).clone()
            result.append(place.on(made[place.storage]))
        return result

    def _contents(self, storage: int, node: int) -> torch.UntypedStorage:
        for written_by, contents in self._before.get(storage, ()):
            if written_by >= node:
                return contents
        return self._storages[storage]

    # --- running ------------------------------------------------------------------------------------------------

    def _run(self, inputs: list[Any], stop: int) -> None:
        for value, item in zip(self.program.inputs, inputs, strict=True):
            self._note(value, item)
        wants_grad = {value for value, place in self.places.items() if place.requires_grad}
        for index, node in enumerate(self.program.nodes[:stop]):
            for value in written_values(node):
                storage = self.places[value].storage
                before = self._before.setdefault(storage, [])
                before.append((index, self._storages[storage].clone()))
            try:
                results = run_node(node, self._held, self.sizes)
            except Exception:
                return
            is_path = not wants_grad.isdisjoint(node.operands())
            for value, item in results:
                self._note(value, item)
                if is_path and isinstance(item, torch.Tensor) and (item.is_floating_point() or item.is_complex()):
                    wants_grad.add(value)
            self.finished = index + 1
        self._mark(wants_grad)

    def _note(self, value: Value, item: Any) -> None:
        self._held[value] = item
        self.sizes = {**size_numbers([(value, item)]), **self.sizes}
        if not isinstance(item, torch.Tensor):
            self.numbers[value] = item
            return
        key = storage_key(item)
        number = self._numbered.setdefault(key, len(self._numbered))
        self._storages[number] = item.untyped_storage()  # alive, so that no other storage gets its key
        self.places[value] = TensorPlace.of(item, number)

    def _mark(self, wants_grad: set[Value]) -> None:
        """Give a gradient to what depends on inputs that want one, where nothing is written in place."""
        for value in wants_grad:
            place = self.places[value]
            if not place.requires_grad and place.storage not in self._before:
                arguments = {name: getattr(place, name) for name in TensorPlace.__dataclass_fields__}
                self.places[value] = TensorPlace(**{**arguments, "requires_grad": True})
