"""Random functional programs: calls of ATen operators on a few inputs, copies back into some of them, and results.

A program is text, which prints as a file that runs by itself; it is the same for the same seed. Each line runs once, on
real tensors, while it is made: those describe its results. Lines that torch refuses are dropped.

    program = functional_program(7)
    print(program.source())
    check_in_place(program)          # in testing.inplace_agreement
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dovetail.errors import NotFunctional
from dovetail.ir.convert import describe
from dovetail.ir.program import Node, Program, ScalarMeta, Stage, Value, map_operands
from dovetail.ir.signature import Signature, UserInput, UserOutput
from dovetail.ops import prims
from dovetail.passes.functional import require_functional
from dovetail.torch_compat.dispatch import storage_key
from tests.harness import effect_operators
from tests.harness.functional_lines import SIZE_LIMIT, TEMPLATES
from tests.harness.functional_results import copy_backs, random_returns
from tests.harness.functional_scene import FunctionalScene

_LINES = (3, 16)
_HEADER = (
    "import torch",
    "",
    "from dovetail.ops import prims",
    "from tests.harness import effect_operators",
    "",
    "aten = torch.ops.aten",
    "checks = effect_operators.OPERATORS",
)
_SCOPE = {"torch": torch, "prims": prims, "aten": torch.ops.aten, "checks": effect_operators.OPERATORS}


@dataclass(frozen=True, slots=True)
class FunctionalProgram:
    """A straight-line program over `aten` and `prims`.

    seed: what it was made from. inputs: lines that make memory and the arguments, over a generator `g`. arguments:
    their names. body: a call each. returns: an expression per result. donated: arguments whose memory may be used.
    """

    seed: int
    inputs: tuple[str, ...]
    arguments: tuple[str, ...]
    body: tuple[str, ...]
    returns: tuple[str, ...]
    donated: tuple[str, ...] = ()

    def source(self) -> str:
        """The program as Python: `inputs(seed)` gives the arguments, `program(*arguments)` gives a tuple."""
        lines = [*_HEADER, f"donated = {self.donated!r}", "", "", "def inputs(seed=0):"]
        lines += ["    g = torch.Generator().manual_seed(seed)", *(f"    {line}" for line in self.inputs)]
        lines += [f"    return [{', '.join(self.arguments)}]", "", "", f"def program({', '.join(self.arguments)}):"]
        lines += [f"    {line}" for line in self.body]
        lines += [f"    return ({', '.join(self.returns)}{',' if len(self.returns) == 1 else ''})", ""]
        return "\n".join(lines)

    def make_inputs(self, seed: int = 0) -> list[Any]:
        """The arguments, on new memory."""
        return _make_inputs(self.inputs, self.arguments, seed)

    def program(self) -> Program:
        """The program in the pipeline's own form."""
        reader = Reader(dict(zip(self.arguments, self.make_inputs(), strict=True)))
        for line in self.body:
            reader.add(line)
        return reader.program(self.returns)

    def donated_places(self) -> tuple[int, ...]:
        """The numbers of the donated arguments."""
        return tuple(self.arguments.index(name) for name in self.donated)

    def without(self, *words: str) -> FunctionalProgram:
        """The program without lines that contain one of these words, and those that need them."""
        known = set(self.arguments)
        body: list[str] = []
        for line in self.body:
            results, _, call = line.rpartition(" = ")
            if known.issuperset(re.findall(r"\be?[vx]\d+\b", call)) and not any(word in line for word in words):
                body.append(line)
                known.update(re.findall(r"\w+", results))
        returns = tuple(text for text in self.returns if text in known) or ("None",)
        return replace(self, body=tuple(body), returns=returns)

    def function(self) -> Callable[..., Any]:
        """`program` of the source."""
        namespace: dict[str, Any] = {}
        exec(compile(self.source(), f"/functional_program/{self.seed}.py", "exec"), namespace)
        found: Callable[..., Any] = namespace["program"]
        return found


def read_source(text: str) -> FunctionalProgram:
    """The program that `source()` printed, whatever was left out of it since."""
    donated: tuple[str, ...] = ()
    functions: dict[str, ast.FunctionDef] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef):
            functions[statement.name] = statement
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "donated":
            donated = ast.literal_eval(statement.value)
    lines = {name: [ast.unparse(line) for line in function.body] for name, function in functions.items()}
    last = functions["program"].body[-1]
    assert isinstance(last, ast.Return), "a program returns"
    assert isinstance(last.value, ast.Tuple), "what it returns is a tuple"
    arguments = tuple(argument.arg for argument in functions["program"].args.args)
    returns = tuple(map(ast.unparse, last.value.elts))
    return FunctionalProgram(0, tuple(lines["inputs"][1:-1]), arguments, tuple(lines["program"][:-1]), returns, donated)


def functional_program(seed: int) -> FunctionalProgram:
    """The program of a seed."""
    for attempt in itertools.count():
        program = _attempt(seed, random.Random(f"{seed}/{attempt}"))
        if program is not None:
            return program
    raise AssertionError("counting ends never")


def is_functional(program: FunctionalProgram) -> bool:
    """Whether torch can run the program, and what it writes are inputs that nobody reads afterwards."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            require_functional(program.program())
    except Exception:
        return False
    return True


@dataclass(slots=True)
class Reader:
    """Makes a program of lines, running each."""

    given: Mapping[str, Any]
    tensors: dict[str, Any] = field(init=False)
    values: dict[str, Value] = field(init=False)
    nodes: list[Node] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors, self.values = {}, {}
        for name, tensor in self.given.items():
            self._define(name, tensor)

    def add(self, line: str) -> None:
        """Take in a call, `a, b = target(...)` or `target(...)`. Raises what torch raises."""
        statement = ast.parse(line).body[0]
        assert isinstance(statement, ast.Assign | ast.Expr), line
        assert isinstance(statement.value, ast.Call), line
        call = statement.value
        kwargs = ast.Dict([ast.Constant(k.arg) for k in call.keywords], [k.value for k in call.keywords])
        parts = ast.Expression(ast.Tuple([call.func, ast.Tuple(call.args, ast.Load()), kwargs], ast.Load()))
        code = compile(ast.fix_missing_locations(parts), "<line>", "eval")
        target, operands, named = eval(code, {**_SCOPE, **self.values})
        real: Any = map_operands((*operands, *named.values()), lambda value: self.tensors[value.name])
        with torch.no_grad():
            made = target(*real[: len(operands)], **dict(zip(named, real[len(operands) :], strict=True)))
        place = statement.targets[0] if isinstance(statement, ast.Assign) else ast.Tuple([])
        unpack = isinstance(place, ast.Tuple)
        names = [ast.unparse(name) for name in (place.elts if isinstance(place, ast.Tuple) else [place])]
        things = (list(made) if unpack else [made]) if names else []
        if len(names) != len(things) or any(isinstance(t, torch.Tensor) and t.numel() > SIZE_LIMIT for t in things):
            raise ValueError(f"{line} gives other results")
        outside = {storage_key(tensor) for tensor in self.given.values()}
        if "aten.as_strided" in line and not _stays_inside(real[0], operands, storage_key(real[0]) in outside):
            raise ValueError(f"{line} reads what belongs to no tensor")
        outputs = tuple(
            None if thing is None else self._define(name, thing) for name, thing in zip(names, things, strict=True)
        )
        self.nodes.append(Node(target, operands, tuple(named.items()), outputs, unpack and bool(names)))

    def program(self, returns: Sequence[str]) -> Program:
        """The program of all lines until now."""
        outputs = tuple(eval(text, dict(self.values)) for text in returns)
        signature = Signature(
            tuple(UserInput(i) for i in range(len(self.given))), tuple(UserOutput(i) for i in range(len(outputs)))
        )
        inputs = tuple(self.values[name] for name in self.given)
        return Program("random", Stage.FUNCTIONAL, inputs, tuple(self.nodes), outputs, signature)

    def _define(self, name: str, thing: Any) -> Value:
        meta: Any = ScalarMeta(thing)
        if isinstance(thing, torch.Tensor):
            meta = describe(thing, self.numbers.setdefault(storage_key(thing), len(self.numbers)))
        self.tensors[name] = thing
        self.values[name] = Value(name, meta)
        return self.values[name]


def _stays_inside(base: torch.Tensor, operands: Sequence[Any], is_outside: bool) -> bool:
    """Whether `as_strided` shows no more of the storage than the tensor does, or what lies between it of an input."""
    if not is_outside and _reach(base.shape, base.stride()) >= base.numel():
        return False
    shape, stride = [o for o in operands if isinstance(o, list)][:2]
    offset = operands[-1] if isinstance(operands[-1], int) else base.storage_offset()
    end = base.storage_offset() + _reach(base.shape, base.stride())
    return base.numel() > 0 and offset + _reach(shape, stride) <= end


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _make_inputs(lines: Sequence[str], names: Sequence[str], seed: int) -> list[Any]:
    namespace: dict[str, Any] = {"torch": torch, "g": torch.Generator().manual_seed(seed)}
    exec("\n".join(lines), namespace)
    return [namespace[name] for name in names]


# --- making one -------------------------------------------------------------------------------------------------------


def _attempt(seed: int, choose: random.Random) -> FunctionalProgram | None:
    lines, names = _random_inputs(choose)
    reader = Reader(dict(zip(names, _make_inputs(lines, names, 0), strict=True)))
    scene = FunctionalScene(choose, reader.tensors, inputs=names)
    body: list[str] = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(choose.randint(*_LINES)):
            _add_lines(choose.choices(*TEMPLATES)[0](scene), scene, reader, body)
        for group in copy_backs(scene):
            _add_lines(group, scene, reader, body)
    returns = random_returns(scene)
    made = _required(reader, returns)
    if not made or not body:
        return None
    return FunctionalProgram(seed, lines, names, tuple(body), returns, _random_donation(choose, reader, names))


def _add_lines(lines: Sequence[str], scene: FunctionalScene, reader: Reader, body: list[str]) -> None:
    """Add lines up to the first that is refused."""
    for line in lines:
        before = set(reader.tensors)
        nodes = len(reader.nodes)
        try:
            reader.add(line)
            if "copy_." in line:
                require_functional(reader.program(()))
        except Exception:
            del reader.nodes[nodes:]
            for name in set(reader.tensors) - before:
                del reader.tensors[name], reader.values[name]
            return
        scene.note_overlaps(line, before)
        body.append(line)


def _required(reader: Reader, returns: Sequence[str]) -> bool:
    try:
        require_functional(reader.program(returns))
    except NotFunctional:
        return False
    return True


def _random_donation(choose: random.Random, reader: Reader, names: Sequence[str]) -> tuple[str, ...]:
    """Inputs to donate: all that share one memory, or none of them."""
    if choose.random() < 0.6:
        return ()
    storages = {name: reader.values[name].tensor.storage for name in names}
    chosen = {storage for storage in storages.values() if choose.random() < 0.5}
    return tuple(name for name in names if storages[name] in chosen)


_DTYPES = ("float32", "float64", "int32", "int64", "bool", "complex64")
_DTYPE_WEIGHTS = (66, 8, 8, 8, 6, 3)


def _random_inputs(choose: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sizes = choose.choices((1, 2, 3, 4, 4, 5, 6), k=3)
    lines: list[str] = []
    names: list[str] = []
    count = choose.choice((1, 2, 2, 3, 3, 4))
    while len(names) < count:
        memory = f"m{len(lines)}"
        dtype = choose.choices(_DTYPES, weights=_DTYPE_WEIGHTS)[0]
        here = [_random_place(choose, sizes) for _ in range(choose.choices((1, 2), weights=(88, 12))[0])]
        length = max(end for _, end in here) + choose.choice((0, 0, 0, 2))
        lines.append(f"{memory} = {_values(dtype, length)}")
        for place, _ in here:
            lines.append(f"x{len(names)} = {memory}.as_strided({place})")
            names.append(f"x{len(names)}")
    return tuple(lines), tuple(names)


def _values(dtype: str, length: int) -> str:
    low, high = {"int64": (0, 2), "bool": (0, 2)}.get(dtype, (-4, 5))
    return f"torch.randint({low}, {high}, ({length},), generator=g).to(torch.{dtype})"


def _random_place(choose: random.Random, sizes: Sequence[int]) -> tuple[str, int]:
    """Arguments of `as_strided`, and how much memory that needs."""
    start = choose.randrange(3)
    shape = list(sizes[start:]) if choose.random() < 0.85 else [choose.choice(sizes)]
    kinds = ("contiguous", "transposed", "strided", "expanded", "windows")
    kind = choose.choices(kinds, weights=(62, 14, 12, 6, 6))[0]
    order = list(range(len(shape)))
    if kind == "transposed":
        choose.shuffle(order)
    strides = [0] * len(shape)
    step = 2 if kind == "strided" else 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    if kind == "expanded":
        strides[choose.randrange(len(shape))] = 0
    if kind == "windows":
        strides = [choose.randint(1, 2) for _ in shape]
    offset = choose.choice((0, 0, 0, 0, 1, 2, 4))
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return f"{tuple(shape)}, {tuple(strides)}, {offset}", offset + last + 1
