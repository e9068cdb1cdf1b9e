"""Programs of pointwise nodes, made by hand or drawn, and what running them with and without machine code gives."""

from __future__ import annotations

import ctypes
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.aten import AtenExecutor
from dovetail.execute.native import executor, machine
from dovetail.execute.native.executor import NativeExecutor
from dovetail.execute.protocol import ExecutorList
from dovetail.ir.program import Node, Operand, Program, ScalarMeta, Stage, TensorMeta, Value
from dovetail.ir.sizes import symbol
from dovetail.ops.facts import facts_of
from dovetail.torch_compat.dispatch import schema_of

aten: Any = torch.ops.aten
CPU = torch.device("cpu")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-39, 3e38, float("inf"), -float("inf"), float("nan"), 2.0, 1e-3)


@dataclass
class Drafted:
    """A program as it grows. bases: real tensors that inputs are views of. given: what the inputs are, in order."""

    inputs: list[Value] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    bases: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    storages: int = 0

    def base(self, tensor: Tensor) -> Value:
        """An input with memory of its own."""
        self.bases.append(tensor)
        self.storages += 1
        return self.view(tensor, self.storages)

    def view(self, tensor: Tensor, storage: int) -> Value:
        """An input on the memory of another."""
        meta = TensorMeta(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, CPU, storage)
        value = Value(f"x{len(self.inputs)}", meta)
        self.inputs.append(value)
        self.given.append(tensor)
        return value

    def number(self, number: float) -> Value:
        """An input that is a number."""
        name = f"n{len(self.inputs)}"
        value = Value(name, ScalarMeta(symbol(name)))
        self.inputs.append(value)
        self.given.append(number)
        return value

    def add(self, target: Any, *args: Operand, **kwargs: Operand) -> Value:
        """A node whose result is like its first tensor, or what it writes."""
        places = facts_of(target).writes
        tensors = [x for x in args if isinstance(x, Value) and x.is_tensor and x.tensor.dtype is not torch.bool]
        shaped = [x for x in tensors if x.tensor.shape] or tensors
        if places:
            written = kwargs["out"] if "out" in kwargs else args[places[0]]
            assert isinstance(written, Value)
            meta = written.tensor
        else:
            self.storages += 1
            like = shaped[0].tensor
            truth = schema_of(target).name in ("lt", "le", "gt", "ge", "eq", "ne")
            dtype = torch.bool if truth else like.dtype
            meta = TensorMeta(like.shape, like.stride, 0, dtype, CPU, self.storages)
        result = Value(f"v{len(self.nodes)}", meta)
        self.nodes.append(Node(target, args, tuple(kwargs.items()), (result,)))
        return result

    def compute(self, function: Callable[..., Any], *numbers: Operand) -> Value:
        """A function of numbers."""
        name = f"v{len(self.nodes)}"
        result = Value(name, ScalarMeta(symbol(name)))
        self.nodes.append(Node(function, numbers, outputs=(result,)))
        return result

    def read(self, tensor: Value) -> Value:
        """The number in a tensor of one element."""
        name = f"v{len(self.nodes)}"
        result = Value(name, ScalarMeta(symbol(name)))
        self.nodes.append(Node(aten._local_scalar_dense.default, (tensor,), outputs=(result,)))
        return result

    def program(self, outputs: Sequence[Operand]) -> Program:
        """The program that returns some values."""
        return Program("drafted", Stage.IN_PLACE, tuple(self.inputs), tuple(self.nodes), tuple(outputs))

    def arguments(self) -> list[Any]:
        """The inputs, on copies of the bases."""
        copies = {base.untyped_storage().data_ptr(): base.untyped_storage().clone() for base in self.bases}
        found: list[Any] = []
        for given in self.given:
            if isinstance(given, Tensor):
                made = torch.empty(0, dtype=given.dtype)
                storage = copies[given.untyped_storage().data_ptr()]
                given = made.set_(storage, given.storage_offset(), given.shape, given.stride())
            found.append(given)
        return found


def compiled(program: Program, *, native: bool = True) -> CompiledProgram:
    """The code of a program."""
    first = (NativeExecutor(),) if native else ()
    return CompiledProgram(program, ExecutorList((*first, AtenExecutor())))


def calls_counted(monkeypatch: Any) -> list[int]:
    """A list that gets the answer of each call of machine code in code that is made from now on: 0 where it ran."""
    answers: list[int] = []
    real = machine.driver()

    def drive(table: Any, rows: int, threads: int, early: int) -> int:
        answers.append(real(table, rows, threads, early))
        return answers[-1]

    drive_by(monkeypatch, drive)
    return answers


def rows_counted(monkeypatch: Any) -> list[int]:
    """A list that gets the number of rows of each call of machine code in code that is made from now on."""
    counts: list[int] = []
    real = machine.driver()

    def drive(table: Any, rows: int, threads: int, early: int) -> int:
        counts.append(rows)
        return real(table, rows, threads, early)

    drive_by(monkeypatch, drive)
    return counts


def drive_by(monkeypatch: Any, drive: Callable[[Any, int, int, int], int]) -> None:
    """Let code that is made from now on run its tables by another driver."""
    form = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int64] * 3)
    made = form(lambda table, *numbers: drive(ctypes.c_char_p(table), *numbers))
    _DRIVERS.append(made)
    monkeypatch.setattr(executor, "address_of_driver", lambda: ctypes.cast(made, ctypes.c_void_p).value)


_DRIVERS: list[Any] = []  # code that calls them may live on


def bits(tensor: Tensor) -> Tensor:
    """The bits of a tensor's elements, with one pattern for all that are not numbers."""
    if tensor.dtype is torch.bool:
        return tensor
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    found = tensor.contiguous().view(whole).clone()
    found[tensor.isnan()] = -1
    return found


def outcome(code: CompiledProgram, arguments: list[Any]) -> list[Any]:
    """What a run returns, and what it leaves in its inputs: bits, strides and version counters."""
    given = list(arguments)
    before = [x._version for x in given if isinstance(x, Tensor)]
    results = code(arguments)
    tensors = [x for x in given if isinstance(x, Tensor)]
    moved = [x._version - version for x, version in zip(tensors, before, strict=True)]
    seen = (*results, *tensors)
    return [moved, *[(bits(x).tolist(), x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in seen]]


def drawn_elements(generator: random.Random, count: int, dtype: torch.dtype) -> Tensor:
    """Random elements, some of them special."""
    numbers = [
        generator.choice(SPECIAL)
        if generator.random() < 0.2
        else generator.gauss(0, 1) * 10 ** generator.choice((0, 0, 3, -9))
        for _ in range(count)
    ]
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def drawn_program(seed: int) -> tuple[Drafted, Program]:
    """A random program: pointwise nodes of all forms over memory that is partly shared, with others between them."""
    generator = random.Random(seed)
    draft, dtype = Drafted(), generator.choice((torch.float32, torch.float32, torch.float64))
    count = generator.choice((1, 3, 8, 31, 64, 300))
    values: list[Value] = []
    for _ in range(generator.randint(2, 5)):
        length = generator.choice((count, count, 2 * count + 1))
        tensor = drawn_elements(generator, length, dtype)
        if length == count:
            values.append(draft.base(tensor))
            continue
        start = generator.choice((0, 0, 1))
        first = tensor[start : start + count]
        values.append(draft.base(first))
        other = generator.choice((0, 1, count, count + 1))
        values.append(draft.view(tensor[other : other + count], values[-1].tensor.storage))
    singles = [draft.base(torch.tensor(generator.gauss(0, 1), dtype=dtype)) for _ in range(generator.randint(0, 2))]
    numbers: list[Operand] = [draft.number(generator.choice((0.1, -2.0, 3, 0.7, 1))) for _ in range(2)]
    truths: list[Value] = []
    for _ in range(generator.randint(3, 25)):
        _draw_node(generator, draft, values, singles, numbers, truths)
    outputs = [value for value in (*values[-4:], *truths[-1:]) if generator.random() < 0.5]
    return draft, draft.program(outputs)


def _draw_node(
    generator: random.Random,
    draft: Drafted,
    values: list[Value],
    singles: list[Value],
    numbers: list[Operand],
    truths: list[Value],
) -> None:
    kind = generator.randrange(12)
    a, b, c = (generator.choice(values) for _ in range(3))
    number = generator.choice((*numbers, 0.25, -1, 2))
    if kind == 0:
        draft.add(aten.sum.default, a)
        return
    if kind == 1:
        numbers.append(draft.compute(generator.choice((operator.add, operator.mul)), number, 0.5))
        return
    if kind == 2:
        truths.append(draft.add(generator.choice((aten.lt.Tensor, aten.ge.Tensor, aten.ne.Tensor)), a, b))
        return
    if kind == 3 and truths:
        values.append(draft.add(aten.where.self, generator.choice(truths), a, b))
        return
    if kind == 4 and singles:
        values.append(draft.add(generator.choice((aten.mul.Tensor, aten.sub.Tensor)), a, generator.choice(singles)))
        return
    if kind == 5 and singles:
        draft.add(aten.mul_.Tensor, generator.choice(singles), number)
        return
    if kind in (6, 7):
        name = generator.choice(("add", "sub", "mul", "div", "maximum"))
        out = {
            "add": aten.add.out,
            "sub": aten.sub.out,
            "mul": aten.mul.out,
            "div": aten.div.out,
            "maximum": aten.maximum.out,
        }
        if not _overlap(c, a) and not _overlap(c, b):
            values.append(draft.add(out[name], a, b, out=c))
        return
    calls: list[tuple[Any, tuple[Operand, ...], dict[str, Operand]]] = [
        (aten.add_.Tensor, (a, b), {"alpha": number}),
        (aten.mul_.Tensor, (a, number), {}),
        (aten.lerp_.Scalar, (a, b, number), {}),
        (aten.addcmul_.default, (a, b, c), {"value": number}),
        (aten.addcdiv_.default, (a, b, c), {"value": number}),
        (aten.sqrt.default, (a,), {}),
        (aten.tanh_.default, (a,), {}),
        (aten.exp.default, (a,), {}),
        (aten.neg.default, (a,), {}),
        (aten.relu_.default, (a,), {}),
        (aten.copy_.default, (a, b), {}),
        (aten.sub.Tensor, (a, b), {"alpha": 2}),
        (aten.pow.Tensor_Scalar, (a, 2), {}),
        (aten.threshold_backward.default, (a, b, 0), {}),
        (aten.zero_.default, (a,), {}),
        (aten.sigmoid.default, (a,), {}),
        (aten.silu_.default, (a,), {}),
        (aten.silu_backward.default, (a, b), {}),
        (aten.elu.default, (a,), {}),
        (aten.gelu.default, (a,), {"approximate": "tanh"}),
        (aten.clamp.default, (a, -1, number), {}),
        (aten.log1p_.default, (a,), {}),
        (aten.round.default, (a,), {}),
        (aten.minimum.default, (a, b), {}),
    ]
    target, args, kwargs = generator.choice(calls)
    written = facts_of(target).writes
    others = [x for x in args[1:] if isinstance(x, Value) and x.is_tensor]
    if written and any(_overlap(a, other) for other in others):
        return  # torch refuses, or what it gives depends on its order
    values.append(draft.add(target, *args, **kwargs))


def _overlap(a: Value, b: Value) -> bool:
    """Whether two values share elements that are not at the same place."""
    x, y = a.tensor, b.tensor
    if x.storage != y.storage or x.offset == y.offset:
        return False
    return abs(int(x.offset) - int(y.offset)) < int(x.numel())  # type: ignore[arg-type]
