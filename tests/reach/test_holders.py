"""Values of C, and objects of the standard library, hold numbers that code reads: a change is noticed, in each door."""

from __future__ import annotations

import builtins
import collections
import configparser
import contextvars
import ctypes
import functools
import importlib
import inspect
import itertools
import mmap
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing.shared_memory import ShareableList
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import IteratorRead, OutsideRead

Held = tuple[Callable[[], Any], Callable[[], object]]  # what reads a number, and what changes it


class _Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_double), ("second", ctypes.c_double))


class _Item:
    def __init__(self) -> None:
        self.w = 1.0


class _Slotted:
    __slots__ = ("w",)

    def __init__(self) -> None:
        self.w = 1.0


_raw: Any = object.__getattribute__
_slot: Any = _Slotted.__dict__["w"]


def _number_of_c() -> Held:
    number = ctypes.c_double(1.0)
    return lambda: number.value, lambda: setattr(number, "value", 2.0)


def _array_of_c() -> Held:
    numbers = (ctypes.c_double * 3)(1.0, 1.0, 1.0)
    return lambda: numbers[1], lambda: numbers.__setitem__(1, 2.0)


def _structure() -> Held:
    pair = _Pair(1.0, 1.0)
    return lambda: pair.second, lambda: setattr(pair, "second", 2.0)


def _pointer() -> Held:
    number = ctypes.c_double(1.0)
    pointer = ctypes.pointer(number)
    return lambda: pointer.contents.value, lambda: setattr(number, "value", 2.0)


def _arguments_of_a_method_caller() -> Held:
    box = [1.0]
    call = operator.methodcaller("__add__", box)
    return lambda: call([0.0])[1], lambda: box.__setitem__(0, 2.0)


def _cell() -> Held:
    held = 1.0

    def read() -> float:
        return held

    cell = read.__closure__[0]  # type: ignore[index]
    return lambda: cell.cell_contents, lambda: setattr(cell, "cell_contents", 2.0)


def _context() -> Held:
    variable = contextvars.ContextVar("variable", default=1.0)
    context = contextvars.copy_context()
    context.run(variable.set, 1.0)
    return lambda: context[variable], lambda: context.run(variable.set, 2.0)


def _mapped_memory() -> Held:
    memory = mmap.mmap(-1, 16)
    return lambda: memory[3] + 1.0, lambda: memory.__setitem__(3, 5)


def _shared_list() -> Held:
    numbers = ShareableList([1.0])
    numbers.shm.unlink()
    return lambda: numbers[0], lambda: numbers.__setitem__(0, 2.0)


def _storage() -> Held:
    storage = torch.ones(2).untyped_storage()
    return lambda: float(storage.nbytes()), lambda: storage.resize_(16)


def _text_of_the_library() -> Held:
    text = collections.UserString("a")
    return lambda: len(text) * 1.0, lambda: setattr(text, "data", "ab")


def _list_of_the_library() -> Held:
    numbers = collections.UserList([1.0])
    return lambda: len(numbers) * 1.0, lambda: numbers.append(2.0)


def _property_of_the_library() -> Held:
    thread = threading.Thread(name="a")
    return lambda: len(thread.name) * 1.0, lambda: setattr(thread, "name", "ab")


def _named_property_of_the_library() -> Held:
    thread = threading.Thread(name="a")
    return lambda: len(getattr(thread, "na" + "me")) * 1.0, lambda: setattr(thread, "name", "ab")


def _options() -> Held:
    parser = configparser.ConfigParser()
    parser.read_string("[train]\nlr = 1.0")
    return lambda: parser.getfloat("train", "lr"), lambda: parser.set("train", "lr", "2.0")


def _finalizer() -> Held:
    item = _Item()
    finalizer = weakref.finalize(item, len, "")
    return lambda: 1.0 if finalizer.alive and item else 2.0, finalizer.detach


def _size_of_a_weak_set() -> Held:
    items = [_Item(), _Item()]
    weak = weakref.WeakSet(items[:1])
    return lambda: float(len(weak)), lambda: weak.add(items[1])


def _members(make: Callable[[_Item], Any], get: Callable[[Any], _Item] = lambda x: x) -> Callable[[], Held]:
    def held() -> Held:
        item = _Item()
        members = make(item)
        return lambda: sum(get(x).w for x in members), lambda: setattr(item, "w", 2.0)

    return held


def _default_in_a_long_list() -> Held:
    numbers = [1.0] * 20_001

    def read(held: Any = ([numbers],)) -> Any:
        return held[0][0][20_000]

    return read, lambda: numbers.__setitem__(20_000, 2.0)


def _imported_inside() -> Held:
    os.environ["DOVETAIL_TEST_NUMBER"] = "1"

    def read() -> float:
        import os  # noqa: PLC0415

        return float(os.environ["DOVETAIL_TEST_NUMBER"])

    return read, lambda: os.environ.update(DOVETAIL_TEST_NUMBER="2")


def _imported_from_inside() -> Held:
    os.environ["DOVETAIL_TEST_NUMBER"] = "1"

    def read() -> float:
        from os import environ as e  # noqa: PLC0415

        return float(e["DOVETAIL_TEST_NUMBER"])

    return read, lambda: os.environ.update(DOVETAIL_TEST_NUMBER="2")


def _module_in_a_variable() -> Held:
    o = os
    os.environ["DOVETAIL_TEST_NUMBER"] = "1"
    return lambda: float(o.environ["DOVETAIL_TEST_NUMBER"]), lambda: os.environ.update(DOVETAIL_TEST_NUMBER="2")


def _module_in_an_attribute() -> Held:
    tools = SimpleNamespace(system=os)
    os.environ["DOVETAIL_TEST_NUMBER"] = "1"
    return (
        lambda: float(tools.system.environ["DOVETAIL_TEST_NUMBER"]),
        lambda: os.environ.update(DOVETAIL_TEST_NUMBER="2"),
    )


def _global_in_a_text() -> Held:
    space: dict[str, Any] = {"number": 1.0, "__name__": "tests.made"}
    read = eval("lambda: eval('number * 1')", space)
    return read, lambda: space.update(number=2.0)


def _namespace_of_a_module() -> Held:
    module = ModuleType("tests_made")
    vars(module)["number"] = 1.0
    held = {"module": module}
    return lambda: held["module"].__dict__["num" + "ber"], lambda: vars(module).update(number=2.0)


def _attribute_of_a_tensor() -> Held:
    tensor = torch.ones(2)
    return lambda: getattr(tensor, "scale", 1.0), lambda: setattr(tensor, "scale", 2.0)


def _precision() -> Held:
    torch.set_float32_matmul_precision("highest")
    return lambda: float(len(torch.get_float32_matmul_precision())), lambda: torch.set_float32_matmul_precision("high")


def _past_reports(bind: Callable[[Any], Callable[[], Any]], make: Callable[[], Any] = _Item) -> Callable[[], Held]:
    def held() -> Held:
        item = make()
        return bind(item), lambda: setattr(item, "w", 2.0)

    return held


def _found_past_reports() -> Held:
    inner, outer = _Item(), _Slotted()
    outer.w = inner  # type: ignore[assignment]
    return lambda: next(map(_raw, [outer], ["w"])).w, lambda: setattr(inner, "w", 2.0)


HELD: dict[str, Callable[[], Held]] = {
    "number of ctypes": _number_of_c,
    "array of ctypes": _array_of_c,
    "structure": _structure,
    "pointer": _pointer,
    "methodcaller": _arguments_of_a_method_caller,
    "cell": _cell,
    "context": _context,
    "mmap": _mapped_memory,
    "ShareableList": _shared_list,
    "storage": _storage,
    "UserString": _text_of_the_library,
    "UserList": _list_of_the_library,
    "property": _property_of_the_library,
    "getattr": _named_property_of_the_library,
    "ConfigParser": _options,
    "finalize": _finalizer,
    "WeakSet": _size_of_a_weak_set,
    "member of a set": _members(lambda item: {item}),
    "member of a frozenset": _members(lambda item: frozenset((item,))),
    "member of a WeakSet": _members(lambda item: weakref.WeakSet((item,))),
    "tuple in a set": _members(lambda item: {(item, 1)}, lambda pair: pair[0]),  # type: ignore[index, no-any-return]
    "default": _default_in_a_long_list,
    "import": _imported_inside,
    "import from": _imported_from_inside,
    "variable": _module_in_a_variable,
    "attribute": _module_in_an_attribute,
    "eval": _global_in_a_text,
    "namespace of a module": _namespace_of_a_module,
    "attribute of a tensor": _attribute_of_a_tensor,
    "precision": _precision,
    "bound __getattribute__": _past_reports(lambda item: functools.partial(item.__getattribute__, "w")),
    "__getattribute__ of a slot": _past_reports(lambda item: functools.partial(item.__getattribute__, "w"), _Slotted),
    "object.__getattribute__": _past_reports(lambda item: lambda: _raw(item, "w")),
    "getattr_static": _past_reports(lambda item: functools.partial(inspect.getattr_static, item, "w")),
    "getter of a slot": _past_reports(lambda item: functools.partial(_slot.__get__, item), _Slotted),
    "slot that is asked": _past_reports(lambda item: lambda: _slot.__get__(item), _Slotted),
    "bound __getstate__": _past_reports(lambda item: lambda read=item.__getstate__: read()["w"]),
    "bound __reduce_ex__": _past_reports(lambda item: lambda read=item.__reduce_ex__: read(2)[2]["w"]),
    "found past reports": _found_past_reports,
}


def _function(read: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: x * read()


def _step(read: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (net(x) * read()).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


DOORS: dict[str, tuple[Callable[[Callable[[], Any]], Any], Callable[[Any], Any]]] = {
    "compile": (_function, dovetail.compile),
    "compile_step": (_step, dovetail.compile_step),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("held", HELD)
def test_a_change_is_noticed(held: str, door: str) -> None:
    read, change = HELD[held]()
    make, compile_it = DOORS[door]
    eager, compiled = make(read), compile_it(make(read))
    x = torch.ones(2, 2)
    try:
        for call in range(4):
            if call == 2:
                change()
            assert torch.equal(compiled(x), eager(x)), call
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (itertools.count().__next__, IteratorRead),
        (iter([1.0, 2.0]).__next__, IteratorRead),
        (lambda: sys.getrefcount(_slot), OutsideRead),
    ],
    ids=["count", "iterator", "getrefcount"],
)
def test_what_cannot_be_compared_is_refused(read: Callable[[], Any], error: type[Exception], door: str) -> None:
    make, compile_it = DOORS[door]
    compiled = compile_it(make(read))
    if door == "compile_step":  # whose first call may run in eager mode
        compiled(torch.ones(2, 2))
    with pytest.raises(error):
        compiled(torch.ones(2, 2))


_COUNTS = {
    "globals": "def count():\n    globals()['CO' + 'UNT'] = globals()['COUNT'] + 1\n",
    "setattr": "def count():\n    setattr(MODULE, 'COUNT', getattr(MODULE, 'COUNT', 0) + 1)\n",
}


@pytest.mark.parametrize("way", _COUNTS)
def test_a_step_counts_under_a_computed_name(way: str) -> None:
    module = ModuleType("tests_made")
    vars(module).update(COUNT=0, MODULE=module)
    exec(_COUNTS[way], vars(module))  # which gives it a `__builtins__`, as modules of files have one
    step, count = _step(lambda: 1.0), vars(module)["count"]

    def counted(x: Tensor) -> Tensor:
        loss = step(x)
        count()
        return loss

    compiled = dovetail.compile_step(counted)
    for call in range(4):
        compiled(torch.ones(2, 2))
        assert vars(module)["COUNT"] == call + 1
    assert vars(builtins)["print"] is print


def test_an_attribute_of_a_library_that_has_the_name_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from a.settings import settings` in a function is the attribute, and not the module."""
    package = tmp_path / "site-packages" / "installed_of_tests"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "settings.py").write_text("class Settings:\n    factor = 1.0\n\nsettings = Settings()\n")
    monkeypatch.syspath_prepend(str(package.parent))

    def f(x: Tensor) -> Tensor:
        from installed_of_tests.settings import settings  # type: ignore[import-not-found]  # noqa: PLC0415

        return x * settings.factor  # type: ignore[no-any-return]

    try:
        compiled = dovetail.compile(f)
        for factor in (1.0, 2.0):
            importlib.import_module("installed_of_tests.settings").settings.factor = factor
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), factor))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
            del sys.modules[name]


def test_attributes_that_a_weight_gets_later() -> None:
    model = nn.Linear(2, 2)

    def f(x: Tensor) -> Tensor:
        for weight in model.parameters():
            x = x * getattr(weight, "factor", 1.0)
        return model(x)

    compiled = dovetail.compile(f)
    x = torch.ones(3, 2)
    for factor in (None, 2.0, 3.0):
        if factor is not None:
            model.bias.factor = factor  # type: ignore[attr-defined]
        assert torch.equal(compiled(x), f(x)), factor
    assert len(compiled.graphs) == 3


def test_attributes_of_libraries_that_code_does_not_name_behind_them_are_not_compared() -> None:
    settings = SimpleNamespace(modules=[1.0], system=sys)

    def f(x: Tensor) -> Tensor:
        return x * settings.modules[0] * len(settings.system.byteorder)

    compiled = dovetail.compile(f)
    for number in range(3):
        sys.modules[f"dovetail_test_{number}"] = sys
        compiled(torch.ones(2))
    for number in range(3):
        del sys.modules[f"dovetail_test_{number}"]
    assert len(compiled.graphs) == 1
