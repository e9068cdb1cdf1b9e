"""The substitute for a named tuple, a dataclass or a mapping with fields whose class is not available."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, NoReturn


class NamedResult:
    """Values by name: `result.logits`, `result["logits"]`, `result[0]`. It cannot be changed.

    One that stands for a named tuple is gone through by values, as that is; any other by names, as mappings are. Where
    a field has the name of a method, the attribute is the field.
    """

    __slots__ = ("_class_name", "_fields", "_is_tuple")
    _class_name: str
    _fields: Mapping[str, Any]
    _is_tuple: bool

    def __init__(self, class_name: str, fields: Mapping[str, Any], *, is_tuple: bool = False) -> None:
        """class_name: of the class that this stands for, as `repr` shows it."""
        object.__setattr__(self, "_class_name", class_name)
        object.__setattr__(self, "_fields", MappingProxyType(dict(fields)))
        object.__setattr__(self, "_is_tuple", is_tuple)

    def __getattribute__(self, name: str) -> Any:
        fields = object.__getattribute__(self, "_fields")
        if name in fields and not name.startswith("_"):
            return fields[name]
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            return self._fields[name]
        raise AttributeError(f"a saved {self._class_name} has no {name!r}; it has {', '.join(self._fields)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a saved {self._class_name} cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a saved {self._class_name} cannot be changed")

    def __getitem__(self, key: int | slice | str) -> Any:
        return self._fields[key] if isinstance(key, str) else tuple(self._fields.values())[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fields.values() if self._is_tuple else self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, item: object) -> bool:
        return item in (self._fields.values() if self._is_tuple else self._fields)

    def keys(self) -> KeysView[str]:
        """The names of the fields."""
        return NamedResult._of(self).keys()

    def values(self) -> ValuesView[Any]:
        """The values of the fields."""
        return NamedResult._of(self).values()

    def items(self) -> ItemsView[str, Any]:
        """Names and values of the fields."""
        return NamedResult._of(self).items()

    def to_tuple(self) -> tuple[Any, ...]:
        """The values of the fields."""
        return tuple(NamedResult._of(self).values())

    @staticmethod
    def _of(result: NamedResult) -> Mapping[str, Any]:
        fields: Mapping[str, Any] = object.__getattribute__(result, "_fields")
        return fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._class_name, dict(self._fields), self._is_tuple)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._fields.items())
        return f"{self._class_name}({fields})"


def _again(class_name: str, fields: Mapping[str, Any], is_tuple: bool) -> NamedResult:
    return NamedResult(class_name, fields, is_tuple=is_tuple)


ONE = "output"
"""What the only result of a method is called."""


def named_leaves(results: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What results hold, by name: `output` for one alone, else keys, fields and places joined by points."""
    parts: Mapping[Any, Any] | None = None
    if isinstance(results, NamedResult):
        parts = {key: results[key] for key in NamedResult.keys(results)}
    elif isinstance(results, Mapping):
        parts = results
    elif isinstance(results, tuple) and len(getattr(results, "__match_args__", ())) == len(results) > 0:
        parts = dict(zip(results.__match_args__, results, strict=True))  # type: ignore[attr-defined]  # a named tuple
    elif isinstance(results, list | tuple):
        parts = dict(enumerate(results))
    elif is_dataclass(results) and not isinstance(results, type):
        parts = {field.name: getattr(results, field.name) for field in fields(results)}
    if parts is None:
        yield name or ONE, results
        return
    for key, part in parts.items():
        yield from named_leaves(part, f"{name}.{key}" if name else str(key))
