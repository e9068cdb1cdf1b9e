"""Names and storages that a program does not have yet."""

from __future__ import annotations

from dovetail.ir.program import Program


class Fresh:
    """Gives names and numbers of storages, each once."""

    def __init__(self, program: Program) -> None:
        self._names = {value.name for value in program.values()}
        self._storage = max((value.tensor.storage for value in program.values() if value.is_tensor), default=-1)

    def name(self, wish: str, first: int = 1) -> str:
        """The name that is wished for if it is free, or else with a number, the first free one from `first` on."""
        name, count = wish, first
        while name in self._names:
            name, count = f"{wish}_{count}", count + 1
        self._names.add(name)
        return name

    def storage(self) -> int:
        """The number of a new storage."""
        self._storage += 1
        return self._storage
