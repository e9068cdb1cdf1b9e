"""Which line of the user's code does something to a Python object, for messages.

It is read off the byte code of the functions that a step reaches; nothing is run. A line counts when the object that
it names is the one that is asked for. Where lines of several functions fit, none is given.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch

from dovetail.ir.program import Origin
from dovetail.reach.values import PLAIN, attributes_of, dict_methods, has_attributes, is_a, mro_of, own_of

_MUTATORS = frozenset(
    (
        *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "remove", "clear", "sort"),
        *("reverse", "rotate", "update", "setdefault", "popitem", "move_to_end", "add", "discard"),
        *("intersection_update", "difference_update", "symmetric_difference_update"),
    )
)
_TABLES = ("_parameters", "_buffers", "_modules")
_WHEN_MADE = ("__init__", "__new__", "__post_init__")
_MOST_OWNERS = 200


class _Unknown:
    def __repr__(self) -> str:
        return "<not known>"


_UNKNOWN: Any = _Unknown()


@dataclass(frozen=True, slots=True)
class Action:
    """Something that an instruction does.

    kind: "name", it loads an object; "read" and "attribute", it reads or sets an attribute; "content", it changes a
    container; "variable", it sets a variable. item: the object, the owner, the container, or what holds the variable;
    not known where the code does not say. name: of the attribute or variable.
    """

    kind: str
    item: Any
    name: str
    origin: Origin


class SourceLocator:
    """What the functions of a step do, instruction by instruction."""

    def __init__(self, functions: Sequence[FunctionType], objects: Sequence[Any]) -> None:
        """functions: the user's, in the order in which they were reached. objects: what `self` may be."""
        self._functions = functions
        self._objects = objects
        self._actions: list[Action] | None = None

    def of_attribute(self, owner: Any, name: str) -> Origin | None:
        """The line that sets an attribute of an object. Cost: as of all of these, 5 us for each instruction, once."""
        known = [x for x in self._all() if x.kind == "attribute" and x.name == name]
        return _one([x for x in known if x.item is owner]) or _one([x for x in known if x.item is _UNKNOWN])

    def of_variable(self, container: Any, name: str) -> Origin | None:
        """The line that sets a variable. container: its closure cell, or the global variables that it is one of."""
        return _one([x for x in self._all() if x.kind == "variable" and x.item is container and x.name == name])

    def of_content(self, container: Any) -> Origin | None:
        """The line that changes what a container holds, or the only one that names the container."""
        changing = _one([x for x in self._all() if x.kind == "content" and x.item is container])
        return changing or _one([x for x in self._all() if x.kind == "name" and x.item is container], only=True)

    def of_name(self, is_it: Callable[[Any], bool]) -> Origin | None:
        """The first line that names an object for which `is_it` is true."""
        found = (x.origin for x in self._all() if x.kind == "name" and x.item is not _UNKNOWN and is_it(x.item))
        return next(found, None)

    def of_read(self, owner: Any, name: str) -> Origin | None:
        """The first line that reads an attribute of an object; else the first that reads it of one not known."""
        known = [x for x in self._all() if x.kind == "read" and x.name == name]
        exact = [x.origin for x in known if x.item is owner]
        return next(iter(exact or [x.origin for x in known if x.item is _UNKNOWN]), None)

    def _all(self) -> list[Action]:
        if self._actions is None:
            owners = self._owners()
            self._actions = []
            for function in self._functions:
                if function.__name__ not in _WHEN_MADE:
                    for owner in owners.get(id(function), [_UNKNOWN])[:_MOST_OWNERS]:
                        self._actions += _Reader(function, owner).actions()
        return self._actions

    def _owners(self) -> dict[int, list[Any]]:
        """The objects that each function may be a method of."""
        of_class: dict[type, list[Any]] = {}
        for item in self._objects:
            of_class.setdefault(type(item), []).append(item)
        found: dict[int, list[Any]] = {}
        for kind, items in of_class.items():
            for value in (value for owner in mro_of(kind) for value in own_of(owner).values()):
                for function in (value.fget, value.fset) if is_a(value, property) else (value,):
                    if is_a(function, FunctionType):
                        found.setdefault(id(function), []).extend(items)
        return found


def _one(actions: Sequence[Action], only: bool = False) -> Origin | None:
    """The first of the lines, if all are of one function. only: if there is one line."""
    places = {(x.origin.file, x.origin.function, x.origin.line if only else 0) for x in actions}
    return actions[0].origin if len(places) == 1 else None


class _Reader:
    """Follows a function's code from top to bottom, and what is on the stack, as far as the code says it plainly."""

    def __init__(self, function: FunctionType, owner: Any) -> None:
        """owner: what the first argument is, for a method."""
        code = function.__code__
        self._function = function
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._locals: dict[str, Any] = {code.co_varnames[0]: owner} if code.co_argcount else {}
        self._given = dict(self._locals)
        self._stack: list[Any] = []
        self._found: list[Action] = []
        self._line = code.co_firstlineno

    def actions(self) -> list[Action]:
        """What the function does, functions that are defined in it left out."""
        for instruction in dis.get_instructions(self._function.__code__):
            if instruction.positions is not None and instruction.positions.lineno is not None:
                self._line = instruction.positions.lineno
            if instruction.is_jump_target:  # whatever was left there on the other way
                self._stack, self._locals = [], {k: v for k, v in self._given.items() if self._locals.get(k) is v}
            self._step(instruction)
        return self._found

    def _note(self, kind: str, item: Any, name: str = "") -> None:
        code = self._function.__code__
        self._found.append(Action(kind, item, name, Origin(code.co_filename, self._line, code.co_name)))

    def _at(self, depth: int) -> Any:
        return self._stack[-depth] if len(self._stack) >= depth else _UNKNOWN

    def _pop(self, count: int) -> None:
        del self._stack[max(0, len(self._stack) - count) :]

    def _step(self, instruction: dis.Instruction) -> None:
        name, word = instruction.argval, instruction.opname
        if word in _LOADS:
            value = _LOADS[word](self, name)
            if word == "LOAD_GLOBAL" and (instruction.arg or 0) & 1:
                self._stack.append(_UNKNOWN)  # what a call is told besides the function
            self._stack.append(value)
            self._note("name", value)
        elif word in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(word, name)
        elif word in ("STORE_ATTR", "DELETE_ATTR"):
            self._note("attribute", self._at(1), name)
            self._pop(2 if word == "STORE_ATTR" else 1)
        elif word in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            self._note("content", self._at(2))
            self._pop(3 if word == "STORE_SUBSCR" else 2)
        elif word.partition("_")[2] in ("FAST", "GLOBAL", "DEREF"):
            self._variable(word, name)
        elif word == "COPY":
            self._stack.append(self._at(int(instruction.arg or 1)))
        elif word == "SWAP":
            self._swap(int(instruction.arg or 2))
        elif word == "POP_TOP":
            self._pop(1)
        elif word == "BINARY_SUBSCR":
            item = _item_of(self._at(2), self._at(1))
            self._pop(2)
            self._stack.append(item)
            self._note("name", item)
        else:
            if word == "BINARY_OP" and instruction.argrepr.endswith("="):
                self._note("content", self._at(2))
            self._follow(dis.stack_effect(instruction.opcode, instruction.arg, jump=False))

    def _attribute(self, word: str, name: str) -> None:
        owner = self._at(1)
        value = _attribute_of(owner, name)
        self._note("read", owner, name)
        if name in _MUTATORS:
            self._note("content", owner)
        self._pop(1)
        self._stack += [value] if word == "LOAD_ATTR" else [_UNKNOWN, value]
        self._note("name", value)

    def _variable(self, word: str, name: str) -> None:
        """A variable is set or removed."""
        if word.endswith("FAST"):
            self._locals[name] = self._at(1) if word == "STORE_FAST" else _UNKNOWN
        else:
            cell = self._cells.get(name, _UNKNOWN)
            self._note("variable", self._function.__globals__ if word.endswith("GLOBAL") else cell, name)
        if word.startswith("STORE"):
            self._pop(1)

    def _swap(self, depth: int) -> None:
        if len(self._stack) >= depth:
            self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]
        else:
            self._stack = []

    def _follow(self, effect: int) -> None:
        """Any other instruction: what it leaves on top is not known."""
        self._pop(1 - effect if effect < 0 else 1)
        self._stack += [_UNKNOWN] * (1 + max(effect, 0))

    def load_variable(self, name: str) -> Any:
        """The object that a variable of the function, or of one around it, is."""
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return _UNKNOWN
        return self._locals.get(name, _UNKNOWN)

    def load_global(self, name: str) -> Any:
        """The object that a global variable is."""
        return dict.get(self._function.__globals__, name, _UNKNOWN)


_LOADS: dict[str, Callable[[_Reader, Any], Any]] = {
    **dict.fromkeys(("LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_CHECK"), _Reader.load_variable),
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), _Reader.load_global),
    "LOAD_CONST": lambda _, constant: constant,
}


def _attribute_of(owner: Any, name: str) -> Any:
    """What an attribute is, without running code of the user's; methods are not looked for."""
    if is_a(owner, ModuleType):
        return vars(owner).get(name, _UNKNOWN)
    if owner is _UNKNOWN or not has_attributes(type(owner)):
        return _UNKNOWN
    held = attributes_of(owner) if not is_a(owner, type) else own_of(owner)
    if name in held:
        return held[name]
    if is_a(owner, torch.nn.Module):
        for table in _TABLES:
            if name in held.get(table, ()):
                return held[table][name]
    value = next((own_of(base)[name] for base in mro_of(type(owner)) if name in own_of(base)), _UNKNOWN)
    return _UNKNOWN if hasattr(type(value), "__get__") else value


def _item_of(container: Any, key: Any) -> Any:
    """What a container holds under a key, as far as the key is a plain one or a tensor."""
    if type(key) in PLAIN or is_a(key, torch.Tensor):
        if is_a(container, dict):
            return dict_methods(container).get(container, key, _UNKNOWN)
        if type(container) in (list, tuple) and type(key) is int and -len(container) <= key < len(container):
            return container[key]
    return _UNKNOWN
