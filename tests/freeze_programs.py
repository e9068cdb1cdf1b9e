"""Random modules to freeze, as plain data: what they hold, and what each of their methods does with it.

A program is a list of tensors that a module holds (parameters, buffers, plain attributes; tied, views of one storage,
expanded, empty, of many dtypes, with special values) and lists of steps. A step is the name of an operation and the
numbers of its operands among what there is so far: the module's tensors, the arguments, the results of steps. Some
write in place, whatever their operand happens to be. What eager refuses is never part of a program.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 4
BATCHES = (3, 5, 1)
_ARGUMENTS = 2
_METHODS = ("forward", "other")
_SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40)

Step = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a module. kind: "parameter", "buffer", "transient" or "plain". of: what it is a part of."""

    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    content: str = "random"
    of: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """Steps, and the numbers of what is returned."""

    steps: tuple[Step, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FreezeProgram:
    """A random module. trains: whether it is frozen in training mode."""

    seed: int
    held: tuple[Held, ...]
    methods: dict[str, Method] = field(default_factory=dict)
    trains: bool = False
    hooked: bool = False

    def model(self, weights: int = 0) -> RandomModule:
        """The module; equal numbers give equal weights. Those that no state dict has are always the same."""
        return RandomModule(self, weights).train(self.trains)

    def smaller(self) -> Iterator[FreezeProgram]:
        """Programs with one thing less."""
        for name, method in self.methods.items():
            if name != "forward":
                yield replace(self, methods={k: m for k, m in self.methods.items() if k != name})
            first = len(self.held) + _ARGUMENTS
            for number in reversed(range(len(method.steps))):
                yield replace(self, methods={**self.methods, name: _without(method, number, first + number)})
            for place in range(len(method.outputs) if len(method.outputs) > 1 else 0):
                outputs = method.outputs[:place] + method.outputs[place + 1 :]
                yield replace(self, methods={**self.methods, name: replace(method, outputs=outputs)})
        if self.trains or self.hooked:
            yield replace(self, trains=False, hooked=False)
        for number in reversed(range(len(self.held))):
            yield from _without_held(self, number)


class RandomModule(nn.Module):
    """Runs the steps of a program."""

    def __init__(self, program: FreezeProgram, weights: int) -> None:
        super().__init__()
        self.program = program
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        generators = [torch.Generator().manual_seed(program.seed * 7 + k) for k in (weights, 0)]
        with torch.no_grad():
            for parameter in [*self.linear.parameters(), *self.norm.parameters()]:
                parameter.copy_(torch.randn(parameter.shape, generator=generators[0]))
        for held in program.held:
            _hold(self, held, generators[held.kind in ("transient", "plain")])
        if program.hooked:
            self.linear.register_forward_hook(_double)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Any, ...]:
        """The first method."""
        return self._do("forward", x, y)

    def other(self, x: Tensor, y: Tensor) -> tuple[Any, ...]:
        """The second method."""
        return self._do("other", x, y)

    def _do(self, name: str, x: Tensor, y: Tensor) -> tuple[Any, ...]:
        method = self.program.methods[name]
        found: list[Any] = [getattr(self, held.name) for held in self.program.held]
        found += [x, y]
        for operation, operands in method.steps:
            found.append(OPERATIONS[operation](self, *[found[operand] for operand in operands]))
        return tuple(found[output] for output in method.outputs)


def _double(module: nn.Module, arguments: Any, result: Tensor) -> Tensor:
    return result * 2


def _hold(module: RandomModule, held: Held, generator: torch.Generator) -> None:
    tensor = _PARTS[held.part](getattr(module, held.of)) if held.of else _content(held, generator)
    if held.kind == "parameter":
        is_tied = isinstance(tensor, nn.Parameter)
        wants = held.dtype.is_floating_point or held.dtype.is_complex
        parameter = tensor if is_tied else nn.Parameter(tensor.detach(), requires_grad=wants)
        module.register_parameter(held.name, parameter)
    elif held.kind == "plain":
        setattr(module, held.name, tensor.detach())
    else:
        module.register_buffer(held.name, tensor.detach(), persistent=held.kind == "buffer")


def _content(held: Held, generator: torch.Generator) -> Tensor:
    if held.dtype is torch.bool:
        return torch.randint(2, held.shape, generator=generator).bool()
    if not held.dtype.is_floating_point and not held.dtype.is_complex:
        return torch.randint(0, WIDTH, held.shape, generator=generator).to(held.dtype)
    tensor = torch.randn(held.shape, generator=generator).to(held.dtype)
    if held.content == "special" and tensor.numel():
        flat = tensor.view(-1)
        for number, value in enumerate(_SPECIAL[: flat.numel()]):
            flat[number] = value
    return tensor


_PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda t: t,
    "all": lambda t: t.detach().view(t.shape) if t.is_contiguous() else t.detach(),
    "tail": lambda t: t.detach()[1:],
    "first": lambda t: t.detach()[0],
    "steps": lambda t: t.detach()[..., ::2],
    "transposed": lambda t: t.detach().t(),
    "expanded": lambda t: t.detach()[:1].expand(3, *t.shape[1:]),
}


def _gradient(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = a.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad((leaf.sin() * b.detach()).sum(), leaf)
    return found.detach()


OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": lambda m, a: -a,
    "exp": lambda m, a: a.exp(),
    "sin": lambda m, a: a.sin(),
    "relu": lambda m, a: a.relu(),
    "abs": lambda m, a: a.abs(),
    "float": lambda m, a: a.float(),
    "half": lambda m, a: a.half(),
    "clone": lambda m, a: a.clone(),
    "contiguous": lambda m, a: a.contiguous(),
    "t": lambda m, a: a.t(),
    "row": lambda m, a: a[0],
    "tail": lambda m, a: a[1:],
    "steps": lambda m, a: a[..., ::2],
    "flat": lambda m, a: a.reshape(-1),
    "column": lambda m, a: a.unsqueeze(-1),
    "wide": lambda m, a: a.expand(2, *a.shape),
    "sum": lambda m, a: a.sum(-1),
    "mean": lambda m, a: a.mean(),
    "softmax": lambda m, a: a.softmax(-1),
    "detach": lambda m, a: a.detach(),
    "conj": lambda m, a: a.conj(),
    "real": lambda m, a: torch.view_as_real(a),
    "size": lambda m, a: a.shape[0],
    "add": lambda m, a, b: a + b,
    "sub": lambda m, a, b: a - b,
    "mul": lambda m, a, b: a * b,
    "matmul": lambda m, a, b: a @ b,
    "cat": lambda m, a, b: torch.cat([a, b]),
    "stack": lambda m, a, b: torch.stack([a, b], 1),
    "where": lambda m, a, b: torch.where(a > 0, a, b),
    "take": lambda m, a, b: a[b],
    "embed": lambda m, a, b: F.embedding(a, b),
    "add_": lambda m, a, b: a.add_(b),
    "mul_": lambda m, a, b: a.mul_(b),
    "copy_": lambda m, a, b: a.copy_(b),
    "zero_": lambda m, a: a.zero_(),
    "fill_row_": lambda m, a: a[0].fill_(2),
    "add_steps_": lambda m, a: a[..., ::2].add_(1),
    "draw": lambda m, a: torch.rand_like(a),
    "drop": lambda m, a: F.dropout(a, 0.5, m.training),
    "noise": lambda m, a: a + torch.randn(WIDTH),
    "gradient": _gradient,
    "linear": lambda m, a: m.linear(a),
    "norm": lambda m, a: m.norm(a),
    "made": lambda m, a: a + torch.arange(WIDTH),
    "constant": lambda m, a: a * torch.tensor([1.0, 2.0, float("inf"), -0.0]),
}
_PAIRS = frozenset(
    ("add", "sub", "mul", "matmul", "cat", "stack", "where", "take", "embed", "add_", "mul_", "copy_", "gradient")
)
_DTYPES = (torch.float32,) * 6 + (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.int8)
_SHAPES = ((WIDTH,), (WIDTH, WIDTH), (WIDTH, WIDTH), (1, WIDTH), (), (0, WIDTH), (2, WIDTH))


def freeze_program(seed: int) -> FreezeProgram:
    """The random program of a seed."""
    chance = random.Random(seed)
    program = FreezeProgram(seed, _held(chance), {}, chance.random() < 0.3, chance.random() < 0.2)
    for name in _METHODS[: 1 + (chance.random() < 0.3)]:
        program = replace(program, methods={**program.methods, name: Method()})
        program = _with_steps(program, name, chance)
    return program


def arguments(seed: int, batch: int) -> tuple[Tensor, Tensor]:
    """Arguments of a call."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, WIDTH, generator=generator) for _ in range(_ARGUMENTS))  # type: ignore[return-value]


def is_valid(program: FreezeProgram) -> bool:
    """Whether eager runs every method, at every size."""
    for name in program.methods:
        for batch in BATCHES:
            try:
                with torch.no_grad():
                    getattr(program.model(), name)(*arguments(1, batch))
            except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
                return False
    return True


def _held(chance: random.Random) -> tuple[Held, ...]:
    found: list[Held] = []
    for number in range(chance.randint(1, 5)):
        kind = chance.choice(("parameter", "parameter", "buffer", "buffer", "transient", "plain"))
        name = f"w{number}"
        if found and chance.random() < 0.4:
            of = chance.choice(found)
            held = Held(name, kind, of.dtype, (), of=of.name, part=chance.choice(tuple(_PARTS)))
        else:
            dtype = chance.choice((*_DTYPES, torch.complex64))
            held = Held(name, kind, dtype, chance.choice(_SHAPES), chance.choice(("random", "random", "special")))
        try:
            RandomModule(FreezeProgram(0, (*found, held)), 0)
        except (RuntimeError, IndexError, TypeError):
            continue
        found.append(held)
    return tuple(found)


def _with_steps(program: FreezeProgram, name: str, chance: random.Random) -> FreezeProgram:
    first = len(program.held) + _ARGUMENTS
    for _ in range(chance.randint(3, 14)):
        method = program.methods[name]
        count = first + len(method.steps)
        operation = chance.choice(tuple(OPERATIONS))
        operands = tuple(
            chance.randrange(max(0, count - 3), count) if chance.random() < 0.4 else chance.randrange(count)
            for _ in range(2 if operation in _PAIRS else 1)
        )
        longer = replace(method, steps=(*method.steps, (operation, operands)))
        tried = replace(program, methods={**program.methods, name: longer})
        if is_valid(tried):
            program = tried
    method = program.methods[name]
    count = first + len(method.steps)
    outputs = {count - 1, *(chance.randrange(count) for _ in range(chance.randint(0, 3)))}
    return replace(program, methods={**program.methods, name: replace(method, outputs=tuple(sorted(outputs)))})


def _without(method: Method, step: int, number: int) -> Method:
    """The method without a step; who reads its result reads its first operand."""
    instead = method.steps[step][1][0]

    def moved(value: int) -> int:
        value = instead if value == number else value
        return value - (value > number)

    steps = [(op, tuple(map(moved, operands))) for k, (op, operands) in enumerate(method.steps) if k != step]
    return Method(tuple(steps), tuple(map(moved, method.outputs)))


def _without_held(program: FreezeProgram, number: int) -> Iterator[FreezeProgram]:
    """The program without a tensor that nothing reads."""
    name = program.held[number].name
    read = {o for m in program.methods.values() for o in (*m.outputs, *(o for _, ops in m.steps for o in ops))}
    if number in read or any(held.of == name for held in program.held):
        return
    methods = {
        key: Method(
            tuple((op, tuple(o - (o > number) for o in operands)) for op, operands in method.steps),
            tuple(o - (o > number) for o in method.outputs),
        )
        for key, method in program.methods.items()
    }
    yield replace(program, held=program.held[:number] + program.held[number + 1 :], methods=methods)
