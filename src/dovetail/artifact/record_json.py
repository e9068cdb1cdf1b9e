"""Small frozen classes as plain data for JSON, field by field, as the annotation of each field says.

A class with a field whose annotation has no coding is refused by the first test that builds the coding, so a new field
of a role or a rule is never left out in silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.ir.signature import WriteKind


@dataclass(frozen=True, slots=True)
class Coding:
    """How the fields of one annotation are written and read. Both raise ValueError for what is not of that type."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def of_type(kind: type) -> Coding:
    """The coding of plain values of exactly this type."""

    def same(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not a valid {kind.__name__}")
        return value

    return Coding(same, same)


def optional(coding: Coding) -> Coding:
    """The same coding, or None."""

    def write(value: Any) -> Any:
        return None if value is None else coding.write(value)

    def read(data: Any) -> Any:
        return None if data is None else coding.read(data)

    return Coding(write, read)


def tuple_of(coding: Coding) -> Coding:
    """The coding of a tuple of any length, as a list."""

    def write(value: Any) -> Any:
        if type(value) is not tuple:
            raise ValueError(f"{value!r} is not a tuple")
        return [coding.write(item) for item in value]

    def read(data: Any) -> Any:
        if type(data) is not list:
            raise ValueError(f"{data!r} is not a list")
        return tuple([coding.read(item) for item in data])

    return Coding(write, read)


def refused(what: str) -> Coding:
    """A coding for what is never written."""

    def refuse(value: Any) -> Any:
        raise ValueError(f"it holds {what}")

    return Coding(refuse, refuse)


def _write_kind(value: Any) -> str:
    if not isinstance(value, WriteKind):
        raise ValueError(f"{value!r} is not a kind of write")
    return value.value


INTEGER, TRUTH, TEXT = of_type(int), of_type(bool), of_type(str)
PLAIN: Mapping[str, Coding] = {
    "int": INTEGER,
    "bool": TRUTH,
    "str": TEXT,
    "int | None": optional(INTEGER),
    "tuple[int, ...]": tuple_of(INTEGER),
    "tuple[bool, ...]": tuple_of(TRUTH),
    "WriteKind": Coding(_write_kind, WriteKind),
}


def read_plain(cls: type, data: Any, **given: Any) -> Any:
    """A frozen class from an object with its fields, each of plain values as its annotation says.

    given: fields that were read already. Raises: ValueError for other data.
    """
    codings = {field.name: field.type for field in dataclasses.fields(cls) if field.name not in given}
    if not isinstance(data, dict) or set(data) != set(codings):
        raise ValueError(f"{data!r} is not a valid {cls.__name__} with all of its fields")
    return cls(**given, **{name: PLAIN[str(kind)].read(data[name]) for name, kind in codings.items()})


class Records:
    """The coding of any of these classes, as an object whose entry `tag` is the name of the class."""

    def __init__(
        self, tag: str, classes: Iterable[type], codings: Mapping[str, Coding] = PLAIN, absent: Collection[str] = ()
    ) -> None:
        """absent: fields that hold nothing, and are not written. Raises: KeyError for an annotation without coding."""
        self._tag = tag
        self._absent = frozenset(absent)
        self._fields: dict[str, dict[str, Coding]] = {}
        self._classes: dict[str, Any] = {}
        for cls in classes:
            self._classes[cls.__name__] = cls
            fields: tuple[Any, ...] = dataclasses.fields(cls)
            written = [field for field in fields if field.name not in absent]
            self._fields[cls.__name__] = {field.name: codings[field.type.strip('"')] for field in written}

    def write(self, record: object) -> dict[str, Any]:
        """The record as data. Raises: ValueError for an instance of another class, or of other contents."""
        name = type(record).__name__
        if self._classes.get(name) is not type(record):
            raise ValueError(f"it holds a {name}, which has no coding")
        for held in self._absent:
            if getattr(record, held, ()):
                raise ValueError(f"it holds {held}, which only steps have")
        fields = {field: coding.write(getattr(record, field)) for field, coding in self._fields[name].items()}
        return {self._tag: name, **fields}

    def read(self, data: Any) -> Any:
        """The record that `write` wrote. Raises: ValueError for other data."""
        name = data.get(self._tag) if isinstance(data, dict) else None
        codings = self._fields.get(name) if isinstance(name, str) else None
        if codings is None or set(data) != {self._tag, *codings}:
            raise ValueError(f"{data!r} is not a valid {self._tag} with all of its fields")
        return self._classes[str(name)](**{field: coding.read(data[field]) for field, coding in codings.items()})

    def coding(self) -> Coding:
        """This coding as one for a field."""
        return Coding(self.write, self.read)
