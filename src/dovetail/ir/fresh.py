"""Names and storages that a program does not have yet."""

from __future__ import annotations

from collections.abc import Container, Iterable

from dovetail.ir.program import Program


def free_name(wish: str, taken: Container[str], first: int = 1) -> str:
    """The name that is wished for if it is not taken, or else with a number, the first free one from `first` on."""
    name, count = wish, first
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    return name


class Fresh:
    """Gives names and numbers of storages, each once."""

    def __init__(self, program: Program | None = None, taken: Iterable[str] = ()) -> None:
        """program: whose names and storages are taken. taken: more names."""
        values = [] if program is None else list(program.values())
        self._names = {*taken, *(value.name for value in values)}
        self._storage = max((value.tensor.storage for value in values if value.is_tensor), default=-1)

    def name(self, wish: str, first: int = 1) -> str:
        """See `free_name`; it is taken from now on."""
        name = free_name(wish, self._names, first)
        self._names.add(name)
        return name

    def storage(self) -> int:
        """The number of a new storage."""
        self._storage += 1
        return self._storage
