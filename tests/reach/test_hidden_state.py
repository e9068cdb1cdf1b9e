"""State that lies where few look: both ways of compiling follow it, as eager mode does."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import PurePath
from string import Template
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

Program = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], Callable[[], object]]
CALLS = 5


class Holder:
    """What a program reads of is set from outside."""

    value: Any = None


class Pair(tuple[float, float]):
    scale: float

    def __new__(cls, values: tuple[float, float], scale: float) -> Pair:
        """A pair with an attribute."""
        made = super().__new__(cls, values)
        made.scale = scale
        return made


class Row(list[float]):
    scale = 1.0


class Slotted(list[float]):
    __slots__ = ("scale",)


class Day(date):
    scale = 1.0


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    __slots__ = ()


def _row(kind: Any, values: list[float], scale: float) -> Any:
    made = kind(values)
    made.scale = scale
    return made


def _day(month: int, scale: float) -> Day:
    made = Day(2026, month, 1)
    made.scale = scale
    return made


def _read_from(values: list[Any], read: Callable[[Any, Tensor], Tensor]) -> Program:
    held = Holder()

    def program(x: Tensor) -> Tensor:
        return read(held.value, x)

    def arguments(call: int) -> tuple[Any, ...]:
        held.value = values[call]
        return (torch.full((2,), 1.0 + call),)

    return program, arguments, lambda: None


def _pairs() -> Program:
    return _read_from([Pair((1.0, 2.0), k) for k in (3.0, 4.0, 3.0, 5.0, 5.0)], lambda p, x: x * p[0] + p.scale)


def _rows(kind: Any) -> Program:
    rows = [_row(kind, [1.0, 2.0], k) for k in (3.0, 4.0, 3.0, 5.0, 5.0)]
    return _read_from(rows, lambda row, x: x * row[1] + row.scale + len(row))


def _days() -> Program:
    days = [_day(1 + n // 2, k) for n, k in enumerate((3.0, 4.0, 3.0, 5.0, 5.0))]
    return _read_from(days, lambda day, x: x * day.month + day.scale)


def _wholes() -> Program:
    return _read_from([Whole(2), Whole(3), 3, Whole(3), Whole(4)], lambda n, x: x * n)


def _reals() -> Program:
    return _read_from(
        [Real(0.0), Real(-0.0), Real(1.5), 1.5, Real(2.5)], lambda n, x: torch.copysign(x, x.new_tensor(n))
    )


def _texts() -> Program:
    return _read_from([Text("a"), "a", Text("b"), "b", Text("a")], lambda t, x: x * 2 if t == "a" else x / 2)


def _factories() -> Program:
    table: defaultdict[str, float] = defaultdict(lambda: 2.0, a=1.0)

    def arguments(call: int) -> tuple[Any, ...]:
        if call == 2:
            table.default_factory = lambda: 9.0
            del table["b"]
        if call == 4:
            table.default_factory = None
        return (torch.ones(2),)

    return lambda x: x * table["a"] + table["b"], arguments, lambda: dict(table)


def _dispatched() -> Program:
    @functools.singledispatch
    def kind(item: Any) -> Any:
        return 1

    @kind.register
    def _(item: Tensor) -> Any:
        return item * 2

    @kind.register
    def _(item: int) -> Any:
        return item + 10

    return lambda x, n: kind(x) + kind(n), lambda call: (torch.ones(2), (1, 2, "a", 3, None)[call]), lambda: None


def _remembered() -> Program:
    asked = [0]

    @functools.lru_cache
    def factor(number: float) -> float:
        asked[0] += 1
        return number * asked[0]

    return lambda x, n: x * factor(n), lambda call: (torch.ones(2), (1.0, 2.0, 1.0, 1.0, 2.0)[call]), lambda: [*asked]


def _attributes_of_arguments() -> Program:
    def arguments(call: int) -> tuple[Any, ...]:
        x: Any = torch.ones(2)
        if call % 2:
            x.scale = 2.0 + call // 3
        return (x,)

    return lambda x: x * getattr(x, "scale", 5.0), arguments, lambda: None


def _attributes_from_the_first_call() -> Program:
    def arguments(call: int) -> tuple[Any, ...]:
        x: Any = torch.ones(2)
        x.scale = 2.0 + call // 2
        return (x,)

    return lambda x: x * x.scale, arguments, lambda: None


def _special_methods_that_come_to_be() -> Program:
    class Kind:
        pass

    class Table(dict[str, float]):
        pass

    item, table = Kind(), Table(a=2.0)
    held: Any = Kind

    def program(x: Tensor) -> Tensor:
        x = x * getattr(item, "scale", 2.0) + table["a"]
        return x + 1 if item and "a" in table else x

    def arguments(call: int) -> tuple[Any, ...]:
        if call == 1:
            held.__getattr__ = lambda self, name: 3.0
        if call == 2:
            held.__bool__ = lambda self: False
        if call == 3:
            del held.__getattr__, held.__bool__
        if call == 4:
            Table.__contains__ = lambda self, key: False  # type: ignore[method-assign]
        return (torch.ones(2),)

    return program, arguments, lambda: None


def _methods_with_arguments() -> Program:
    class Kind:
        def scaled(self, x: Tensor, by: float) -> Tensor:
            return x * by

        twice = functools.partialmethod(scaled, by=2.0)

    item = Kind()

    def arguments(call: int) -> tuple[Any, ...]:
        vars(Kind)["twice"].keywords["by"] = 2.0 + call // 2
        return (torch.ones(2),)

    return lambda x: item.twice(x) + 0.0, arguments, lambda: None


def _templates() -> Program:
    template = Template("$letter")

    def arguments(call: int) -> tuple[Any, ...]:
        template.template = "$letter" * (1 + call // 2)
        return (torch.ones(2),)

    return lambda x: x * len(template.substitute(letter="a")), arguments, lambda: None


def _paths() -> Program:
    paths = [PurePath("a/b"), PurePath("a/b"), PurePath("a/b/c"), PurePath("a"), PurePath("a/b")]
    return _read_from(paths, lambda path, x: x * len(path.parts) + len(str(path)))


def _methods_of_tensors() -> Program:
    tensors: Any = Tensor

    def arguments(call: int) -> tuple[Any, ...]:
        tensors.scaled = (lambda x: x * 2.0) if call < 2 else (lambda x: x * 3.0)
        if call == 3:
            tensors.sum = lambda x: x + 1.0
        if call == 4:
            del tensors.sum
        return (torch.ones(2),)

    def program(x: Any) -> Tensor:
        scaled: Tensor = x.scaled().sum()
        return scaled

    return program, arguments, lambda: delattr(tensors, "scaled")


def _modules_in_the_table() -> Program:
    def arguments(call: int) -> tuple[Any, ...]:
        made: Any = ModuleType("found_in_the_table")
        made.scale = 2.0 + call // 2
        sys.modules[made.__name__] = made
        return (torch.ones(2),)

    def program(x: Tensor) -> Tensor:
        import found_in_the_table as found  # type: ignore[import-not-found]  # noqa: PLC0415

        scaled: Tensor = x * found.scale
        return scaled

    return program, arguments, lambda: sys.modules.pop("found_in_the_table").__name__


def _modules_that_make_attributes() -> Program:
    made: Any = ModuleType("made_by_asking")
    sys.modules[made.__name__] = made
    held = {"scale": 2.0}
    made.__getattr__ = held.__getitem__

    def asked(name: str) -> float:
        return held[name] + 1.0

    def arguments(call: int) -> tuple[Any, ...]:
        if call == 1:
            made.__getattr__ = asked
        if call == 2:
            held["scale"] = 5.0
        if call == 3:
            made.scale = 7.0
        return (torch.ones(2),)

    return lambda x: x * made.scale, arguments, lambda: sys.modules.pop("made_by_asking").__name__


def _lengths_of_queues() -> Program:
    queues = [deque([1.0], maxlen=length) for length in (3, 4, 4, None, 2)]
    return _read_from(queues, lambda queue, x: x * (queue.maxlen or 9) + queue[0])


class Promise(asyncio.Future[float]):
    scale = 2.0


def _objects_that_show_no_attributes() -> Program:
    loop = asyncio.new_event_loop()
    promise = Promise(loop=loop)
    loop.close()

    def arguments(call: int) -> tuple[Any, ...]:
        Promise.scale = 2.0 + call // 2
        return (torch.ones(2),)

    return lambda x: x * promise.scale, arguments, lambda: None


def _graphs_that_are_edited() -> Program:
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()))

    def arguments(call: int) -> tuple[Any, ...]:
        if call in (2, 4):
            output = next(iter(reversed(graph.graph.nodes)))
            with graph.graph.inserting_before(output):
                output.args = (graph.graph.call_function(torch.neg, output.args),)
            graph.recompile()
        return (torch.ones(2),)

    return lambda x: graph(x) + 0.0, arguments, lambda: None


def _settings_that_are_asked_for() -> Program:
    def program(x: Tensor) -> Tensor:
        return x * 2 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else x + 1

    def arguments(call: int) -> tuple[Any, ...]:
        torch.set_autocast_dtype("cpu", torch.float16 if call in (2, 3) else torch.bfloat16)
        return (torch.ones(2),)

    return program, arguments, lambda: None


def _layers_of_libraries() -> Program:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(8, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    @torch.no_grad()
    def program(x: Tensor) -> Any:
        return torch.cat([layer(x)[0], encoder(x)], 2)

    def arguments(call: int) -> tuple[Any, ...]:
        torch._C._set_mkldnn_enabled(call not in (1, 2))  # the public setting may have been locked
        torch.backends.mha.set_fastpath_enabled(call not in (2, 3))
        return (torch.linspace(0, 1, 120).reshape(3, 5, 8),)

    return program, arguments, lambda: None


def _weights_by_argument() -> Program:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    known = model.weight

    def program(x: Tensor, weight: Tensor) -> Any:
        return torch.func.functional_call(model, {"weight": weight}, (x,))

    def arguments(call: int) -> tuple[Any, ...]:
        torch.nn.init.constant_(model.bias, call)
        return (torch.ones(2), torch.full((2, 2), 1.0 + call))

    return program, arguments, lambda: model.weight is known


PROGRAMS: dict[str, Callable[[], Program]] = {
    "attributes of a tuple": _pairs,
    "attributes of a list": functools.partial(_rows, Row),
    "slots of a list": functools.partial(_rows, Slotted),
    "attributes of a date": _days,
    "classes under int": _wholes,
    "classes under float": _reals,
    "classes under str": _texts,
    "what a table makes by default": _factories,
    "functions by class": _dispatched,
    "functions that remember": _remembered,
    "attributes of arguments": _attributes_of_arguments,
    "attributes from the first call": _attributes_from_the_first_call,
    "special methods that come to be": _special_methods_that_come_to_be,
    "methods with arguments": _methods_with_arguments,
    "templates of texts": _templates,
    "paths of files": _paths,
    "methods of tensors": _methods_of_tensors,
    "modules in the table": _modules_in_the_table,
    "modules that make attributes": _modules_that_make_attributes,
    "lengths of queues": _lengths_of_queues,
    "objects that show no attributes": _objects_that_show_no_attributes,
    "graphs that are edited": _graphs_that_are_edited,
    "settings that are asked for": _settings_that_are_asked_for,
    "layers of libraries": _layers_of_libraries,
    "weights by argument": _weights_by_argument,
}


def _results(program: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]) -> Iterator[Tensor | str]:
    for call in range(CALLS):
        given = arguments(call)
        try:
            yield program(*given)
        except (KeyError, TypeError) as error:
            yield type(error).__name__


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager_mode(name: str, door: Callable[..., Any]) -> None:
    program, arguments, state = PROGRAMS[name]()
    wanted = [*_results(program, arguments), state()]
    program, arguments, state = PROGRAMS[name]()
    found = [*_results(door(program), arguments), state()]
    for one, other in zip(found, wanted, strict=True):
        same = torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other
        assert same, (one, other)


def _tagged(x: Any) -> Tensor:
    x.tag = 3
    doubled: Tensor = x * 2
    return doubled


def test_attributes_that_are_written() -> None:
    with pytest.raises(dovetail.DovetailError, match="DT-CAPTURE-007"):
        dovetail.compile(_tagged)(torch.ones(2))
    step = dovetail.compile_step(_tagged)
    for _ in range(3):
        x: Any = torch.ones(2)
        assert torch.equal(step(x), torch.full((2,), 2.0))
        assert x.tag == 3


class Meta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Any:
        """As Python does it."""
        return type.__new__(cls, name, bases, space)

    def __call__(cls, *args: Any) -> Any:
        return type.__call__(cls, *args)


class Made(metaclass=Meta):
    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale

    def twice(self) -> Made:
        return type(self)(self.scale * 2)


def _uses_of_type(x: Tensor) -> Tensor:
    class Kind(type):
        pass

    made: Any = Kind("made", (), {"scale": 3.0})
    x = x * Made(1.5).twice().scale * made.scale
    if isinstance(Made, type) and issubclass(Meta, type) and isinstance(made, Kind) and not isinstance(3, type):
        x = x + 1
    x = x * {type: 5.0, int: 2.0}[int] + {type: 5.0, int: 2.0}[type(int)]
    under = type("under", (Made,), {"more": 4.0})
    if type(x) == torch.Tensor and type(x).__mro__[0] is torch.Tensor and str(type[int]) == "type[int]":  # noqa: E721
        x = x * under(2.0).scale * under.more
    return x


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_type_is_what_it_is_in_python(door: Callable[..., Any]) -> None:
    compiled = door(_uses_of_type)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), _uses_of_type(torch.ones(2)))
    assert "type" not in globals()


def _with_gradients(x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return torch.autograd.grad(gradient.sum(), x)[0]


def _with_lists(x: Tensor) -> Any:
    return x * len(x.tolist())


@pytest.mark.parametrize(
    ("program", "door"),
    [
        (_with_gradients, dovetail.compile),
        (_with_gradients, dovetail.compile_step),
        (_with_lists, dovetail.compile_step),
    ],
)
def test_what_a_recording_puts_on_tensors_is_no_change(program: Callable[..., Any], door: Callable[..., Any]) -> None:
    compiled = door(program)
    for call in range(4):
        assert torch.equal(compiled(torch.full((3,), float(call))), program(torch.full((3,), float(call))))
    assert compiled.stats.captures <= 2, "a step's first call, and later ones"
    assert compiled.stats.eager_calls == 0
