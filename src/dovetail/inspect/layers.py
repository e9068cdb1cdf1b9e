"""Repeated layers under one name: `h.0.mlp` to `h.11.mlp` are `h.*.mlp`.

Layers are repeated if they are adjacent, with consecutive numbers and the same modules inside; layers without modules
inside, if the same operators run in them. Numbers that only some of the neighbours share stay:
`h.1-11.mlp` where `h.0` has something that the others lack. Names of modules are read from the programs, so what never
runs and holds nothing does not count. Cost: O(modules log modules).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ALL = "*"


@dataclass(slots=True)
class _Module:
    """marks: what tells it apart when nothing is inside. folded: by the child's name, what it is folded under.

    inside: the names in it, all the way down.
    """

    children: dict[str, _Module] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    folded: dict[str, str] = field(default_factory=dict)
    inside: tuple[object, ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """What neighbours must agree in to be one repeated layer."""
        return self.inside or tuple(sorted(self.marks))


class Layers:
    """The folded name of each module.

    Args: marks: for each module path, what tells modules without modules inside apart.
    """

    def __init__(self, marks: Mapping[str, Iterable[str]] | Iterable[str] = ()) -> None:
        self._root = _Module()
        items = marks.items() if isinstance(marks, Mapping) else ((path, ()) for path in marks)
        for path, found in items:
            module = self._root
            for part in path.split(".") if path else ():
                module = module.children.setdefault(part, _Module())
            module.marks.update(found)
        _fold(self._root)

    def fold(self, path: str) -> str:
        """The folded name of a module: `h.3.mlp` -> `h.*.mlp`. A module that is not known keeps its name."""
        module: _Module | None = self._root
        parts = []
        for part in path.split(".") if path else ():
            parts.append(module.folded.get(part, part) if module is not None else part)
            module = module.children.get(part) if module is not None else None
        return ".".join(parts)


def is_folded(part: str) -> bool:
    """Whether a part of a folded name stands for several layers: `*`, `1-11`."""
    first, dash, last = part.partition("-")
    return part == ALL or (bool(dash) and first.isdecimal() and last.isdecimal())


def _fold(module: _Module) -> None:
    """Fold what is inside each child, then the children."""
    for child in module.children.values():
        _fold(child)
    numbers = sorted(int(name) for name in module.children if name.isdecimal() and name == str(int(name)))
    run: list[int] = []
    for number in [*numbers, None]:
        is_next = run and number == run[-1] + 1
        if is_next and number is not None and _shape_of(module, number) == _shape_of(module, run[-1]):
            run.append(number)
            continue
        if len(run) > 1:
            name = ALL if len(run) == len(numbers) else f"{run[0]}-{run[-1]}"
            module.folded.update((str(member), name) for member in run)
        run = [] if number is None else [number]
    names: dict[str, tuple[object, ...]] = {}
    for name, child in module.children.items():
        names.setdefault(module.folded.get(name, name), child.inside)
    module.inside = tuple((name, names[name]) for name in sorted(names))


def _shape_of(module: _Module, number: int) -> tuple[object, ...]:
    return module.children[str(number)].shape
