"""What code can change of the objects that it meets without an event that shows it, as it was when they were met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.reach.values import attributes_of, own_of, random_state, set_random_state


class Unshown:
    """Random generators outside torch, by where they stand; real tensors, by their attributes and `requires_grad`;
    classes of the user's, by the names that they have.
    """

    def __init__(self) -> None:
        self._sources: list[tuple[Any, Any, Any]] = []
        self._tensors: list[tuple[Any, bool, dict[str, Any]]] = []
        self._classes: list[tuple[type, frozenset[str]]] = []

    def add_source(self, source: Any) -> None:
        """A generator was met."""
        self._sources.append((source, *random_state(source)))

    def add_tensor(self, tensor: Any, own: dict[str, Any]) -> None:
        """A real tensor was met. own: its attributes."""
        self._tensors.append((tensor, tensor.requires_grad, dict(own)))

    def add_class(self, kind: type) -> None:
        """A class was met."""
        self._classes.append((kind, frozenset(own_of(kind))))

    def new_in_classes(self) -> Iterator[tuple[type, str]]:
        """Attributes that classes have now, and did not have."""
        for kind, names in self._classes:
            for name in own_of(kind).keys() - names:
                if not name.startswith("__"):  # what Python itself notes there
                    yield kind, name

    def put_sources_back(self) -> list[Any]:
        """Let generators stand where they stood. Returns: those that had moved."""
        moved = [(source, state) for source, key, state in self._sources if random_state(source)[0] != key]
        for source, state in moved:
            set_random_state(source, state)
        return [source for source, _ in moved]

    def put_tensors_back(self) -> None:
        """Let tensors have the attributes, and require the gradients, that they had."""
        for tensor, requires_grad, own in self._tensors:
            if tensor.is_leaf and tensor.requires_grad is not requires_grad:
                tensor.requires_grad_(requires_grad)
            now = attributes_of(tensor)
            if now is not None and (now.keys() != own.keys() or any(now[name] is not own[name] for name in own)):
                now.clear()
                now.update(own)
