"""Search for wrong results of what scripts do beside arithmetic: random programs, through every door.

    python -m tests.construct_sweep --minutes 20 --shard 0/2 --state construct-0.json
    python -m tests.construct_sweep --first 4711 --programs 1

A program mixes layouts, writes to parts, modes that are left behind, sizes that data decide and, in steps, state kept
in Python; its results may be views, which the caller writes. It is called several times, in eager mode and compiled,
on the same inputs: results, strides, inputs, gradients, modes, state and random numbers are compared bit by bit. What
is refused by name is counted. The exit status is 1 when something differs.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.errors import DovetailError
from tests.searching import Standing, begin, keep, parser_of, quietly

ROWS, COLUMNS, CALLS = 4, 6, 4
DOORS = ("step", "compile", "backend")

LAYOUTS = (
    "{a}.t()",
    "{a}.t().contiguous().t()",
    "{a}[:, ::2]",
    "{a}[1:]",
    "{a}[:, :-1]",
    "{a}.flip(1)",
    "{a}.expand(2, *{a}.shape)[0]",
    "{a}.unsqueeze(1).expand(-1, 2, -1).reshape(-1, {a}.shape[1])",
    "{a}.diagonal()[:, None]",
    "{a}.reshape(1, -1)",
    "{a}.narrow(0, 0, 1)",
    "{a}.unfold(1, 2, 1)[..., 0]",
    "torch.stack([{a}, {a}], 2)[..., 1]",
    "{a}.chunk(2)[0]",
)
ARITHMETIC = (
    "{a} * {b}.mean()",
    "{a} + {a}.sum(0)",
    "{a}.tanh() - {b}.sum()",
    "{a} @ {a}.t()",
    "torch.cat([{a}, {a} * 2])",
    "{a}.softmax(1)",
    "F.elu({a})",
    "F.dropout({a}, 0.3)",
    "torch.where({a} > 0, {a}, {b}.mean())",
    "{a} * w[0, 0]",
    "{a}.cumsum(0)",
    "F.layer_norm({a}, {a}.shape[1:])",
    "{a}.sort(0)[0]",
    "{a} * torch.rand_like({a})",
)
WRITES = (
    "{a}[:, ::2].mul_(1.5)",
    "{a}[:, :-1].add_(1)",
    "{a}[0].sub_({b}.mean())",
    "{a}.diagonal().mul_(0.5)",
    "{a}.t().tanh_()",
    "{a}[1:].copy_({a}[:-1].clone())",
    "{a}.clamp_(-1, 1)",
    "{a}[{a} > 0.5] = 0.25",
    "torch.add({a}, 1, out={a})",
    "{a}.detach().mul_(2)",
    "x.mul_(1.25)",
    "x[:, 1].add_(1)",
)
MODES = (
    "torch.set_grad_enabled(False)",
    "torch.set_grad_enabled(True)",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_autocast_enabled('cpu', True)",
    "torch.use_deterministic_algorithms(True, warn_only=True)",
)
SIZES = (
    "{a}[{a}[:, 0] > 0]",
    "x[mask]",
    "x[: n.item()]",
    "x[n.item() :]",
    "x[x > 0][:, None]",
    "(x > 0).nonzero().float()",
    "torch.zeros(int(index.max()) + 1, 2).index_add(0, index, torch.ones(4, 2))",
    "torch.unique(index)[:, None].float()",
    "torch.masked_select(x, mask[:, None])[None]",
    "x.split_with_sizes([n.item(), 4 - n.item()])[0]",
    "torch.repeat_interleave(x, index, 0)",
)
STATE = (
    "world.hidden = {a}.detach().mean()",
    "world.losses.append({a}.sum().item())",
    "world.kept.append({a}.detach())",
    "world.table['last'] = {a}.detach().sum()",
    "world.count += 1",
    "world.buffer.mul_(0.5).add_({a}.detach().mean())",
    "world.buffer = {a}.detach().mean().reshape(1)",
    "world.best = max(world.best, {a}.detach().mean().item())",
    "world.text = f'{{{a}.detach().mean().item():.3f}}'",
)
READS = (
    "{a} + world.hidden",
    "{a} * world.count",
    "{a} + world.buffer",
    "{a} * (2 if world.count % 2 else 3)",
    "{a} + world.table['last']",
    "{a} * len(world.losses)",
)
RESULTS = ("{a}", "{a}.t()", "{a}[0]", "{a}.flatten()", "{a}.detach()", "{a}[:, 0]", "{a} * 1", "({a}, {a}[1:])")


class World:
    """What a step keeps in Python."""

    def __init__(self) -> None:
        self.hidden: Any = torch.zeros(())
        self.losses: list[Any] = []
        self.kept: deque[Any] = deque(maxlen=3)
        self.table: dict[str, Any] = {"last": torch.zeros(())}
        self.count, self.best, self.text = 0, -1.0, ""
        self.buffer = torch.zeros(1)


@dataclass(frozen=True)
class Program:
    """A random program. door: through which it is compiled. written: how the caller writes results, by place."""

    seed: int
    door: str
    source: str
    written: tuple[str, ...]
    backward: bool

    def build(self) -> Callable[..., Any]:
        """The function `f(world, x, w, mask, n, index)`."""
        names: dict[str, Any] = {"torch": torch, "F": nn.functional}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), names)
        made: Callable[..., Any] = names["f"]
        return made


def program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    door = rng.choice(DOORS)
    kinds = [LAYOUTS, ARITHMETIC, ARITHMETIC, WRITES]
    kinds += [SIZES] if rng.random() < 0.5 else []
    kinds += [STATE, READS] if door == "step" else []
    modes = rng.random() < 0.4
    lines, names = ["y0 = x * w"], ["y0"]
    for _ in range(rng.randint(2, 7)):
        kind = rng.choice([*kinds, *([MODES] if modes else [])])
        line = rng.choice(kind).format(a=rng.choice(names), b=rng.choice(names))
        if kind in (WRITES, MODES, STATE):
            lines.append(line)
            continue
        names.append(f"y{len(names)}")
        lines.append(f"{names[-1]} = {line}")
    results = [rng.choice(RESULTS).format(a=rng.choice(names[-2:])) for _ in range(rng.randint(1, 2))]
    backward = rng.random() < 0.6
    if door == "step" and backward:
        lines += [f"loss = {names[-1]}.float().square().mean()", "if loss.requires_grad:", "    loss.backward()"]
        lines += ["    with torch.no_grad():", "        w.sub_(w.grad, alpha=0.1)", "    w.grad = None"]
    lines.append(f"return [{', '.join(results)}]")
    source = "def f(world, x, w, mask, n, index):\n" + "".join(f"    {line}\n" for line in lines)
    written = tuple(rng.choice(("", "", "relu_", "zero_", "exp_")) for _ in results)
    return Program(seed, door, source, written, backward)


def inputs(seed: int, call: int) -> tuple[Tensor, ...]:
    """Arguments of a call: rows, which of them are chosen, how many, and indices."""
    drawn = torch.Generator().manual_seed(seed * CALLS + call)
    x = torch.randn(ROWS, COLUMNS, generator=drawn)
    if seed % 3 == 0:
        x = x.t().contiguous().t()
    mask = torch.rand(ROWS, generator=drawn) < 0.6
    n = torch.randint(1, ROWS, (), generator=drawn)
    return x, mask, n, torch.randint(0, 4, (ROWS,), generator=drawn)


@contextmanager
def usual_modes() -> Iterator[None]:
    """Modes as they are by default, before and afterwards."""
    _set_modes()
    try:
        yield
    finally:
        _set_modes()


def _set_modes() -> None:
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)
    torch.use_deterministic_algorithms(False)


def _modes() -> tuple[Any, ...]:
    autocast = torch.is_autocast_enabled("cpu")
    deterministic = torch.are_deterministic_algorithms_enabled()
    return torch.is_grad_enabled(), torch.get_default_dtype(), autocast, deterministic


def observed(made: Program, door: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
    """All that a caller sees of some calls, in order; an exception ends them."""
    function, world = made.build(), World()
    w = nn.Parameter(torch.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS))

    def call(x: Tensor, mask: Tensor, n: Tensor, index: Tensor) -> Any:
        return function(world, x, w, mask, n, index)

    run = door(call)
    seen: list[Any] = []
    for number in range(CALLS):
        torch.manual_seed(number)
        given = inputs(made.seed, number)
        with usual_modes():
            results = run(*given)
            seen.append(_modes())
        seen += [_shown(item) for item in pytree.tree_leaves(results)]
        seen += _after(made, pytree.tree_leaves(results), w)
        seen += [_shown(x) for x in (*given, w)]
        seen.append([(name, pytree.tree_map(_shown, _plain(value))) for name, value in vars(world).items()])
        seen.append(torch.get_rng_state().sum().item())
    return seen


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, deque) else value


def _after(made: Program, leaves: list[Any], w: nn.Parameter) -> list[Any]:
    """What the caller does with results: gradients, and writes."""
    seen: list[Any] = []
    if made.backward and made.door != "step":
        loss = sum(x.float().square().sum() for x in leaves if x.requires_grad)
        if isinstance(loss, Tensor):
            loss.backward()
        seen.append(_Gradient(_shown(w.grad), _share_memory(leaves)))
        w.grad = None
    with torch.no_grad():
        for leaf, write in zip(leaves, made.written, strict=False):
            if write and leaf.is_floating_point():
                getattr(leaf, write)()
    return [*seen, *map(_shown, leaves)]


def _share_memory(leaves: list[Any]) -> bool:
    """Whether results are views of one another: their gradients are added up in another order."""
    return len({x.untyped_storage().data_ptr() for x in leaves}) < len(leaves)


@dataclass(frozen=True)
class _Gradient:
    """is_rounded: it is only compared up to rounding."""

    shown: Any
    is_rounded: bool

    def is_like(self, other: _Gradient) -> bool:
        """Whether both are equal, or as close as they need be."""
        if not (self.is_rounded and self.shown and other.shown):
            return repr(self.shown) == repr(other.shown)
        one, two = (torch.tensor(x.shown[-1], dtype=torch.float64) for x in (self, other))
        return self.shown[:-1] == other.shown[:-1] and torch.allclose(one, two, 1e-5, 1e-5, equal_nan=True)


def _shown(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    strides = tuple(step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    numbers = value.detach().to(torch.complex128 if value.is_complex() else torch.float64).flatten().tolist()
    shown = strides if value.numel() else ()
    return str(value.dtype), tuple(value.shape), shown, value.requires_grad, numbers


DOORS_BY_NAME: dict[str, Callable[..., Any]] = {
    "step": dovetail.compile_step,
    "compile": dovetail.compile,
    "backend": lambda call: torch.compile(call, backend="dovetail"),
}


@dataclass
class State(Standing):
    """Where a search stands. refused: programs by the code of the refusal. untried: programs that eager refuses.

    dynamo: programs that Dynamo changes, whatever its backend.
    """

    refused: dict[str, int] = field(default_factory=dict)
    untried: int = 0
    dynamo: int = 0


def outcome(seed: int) -> tuple[str, str]:
    """("same", ""), ("refused", code), ("untried", ""), ("dynamo", "") or ("wrong", what) for the program of a seed."""
    made = program(seed)
    try:
        expected = observed(made, lambda call: call)
    except Exception:
        return "untried", ""
    try:
        wrong = _first_difference(expected, _compiled(made, DOORS_BY_NAME[made.door]))
    except Exception as error:
        refusal = _refusal(error)
        if refusal is not None:
            return "refused", refusal.code
        wrong = f"raises {type(error).__name__}: {error}"[:400]
    if not wrong:
        return "same", ""
    if made.door == "backend" and _is_dynamos_own(made, expected):
        return "dynamo", ""
    return "wrong", f"{made.door}: {wrong}\n{made.source}"


def _refusal(error: BaseException) -> DovetailError | None:
    """The error of ours that one is, or comes from; Dynamo wraps those of its backend."""
    inner = (error, error.__cause__, getattr(error, "inner_exception", None))
    return next((x for x in inner if isinstance(x, DovetailError)), None)


def _compiled(made: Program, door: Callable[..., Any]) -> list[Any]:
    torch.compiler.reset()
    return observed(made, door)


def _is_dynamos_own(made: Program, expected: list[Any]) -> bool:
    """Whether a backend that only runs the graph does not do what eager mode does, either."""
    try:
        found = _compiled(made, lambda call: torch.compile(call, backend="eager"))
    except Exception:
        return True
    return _first_difference(expected, found) != ""


def _first_difference(expected: list[Any], found: list[Any]) -> str:
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        if isinstance(one, _Gradient) and isinstance(other, _Gradient) and one.is_like(other):
            continue
        if repr(one) != repr(other):  # which tells nan from nothing, and -0.0 from 0.0
            return f"{place}: {one!r:.200} but {other!r:.200}"
    return ""


def search(state: State, shards: int, minutes: float, programs: int | None, note: Callable[[State], None]) -> None:
    """Try seeds until the time is up, or so many were tried."""
    end = time.monotonic() + minutes * 60
    refused = Counter(state.refused)
    while time.monotonic() < end and (programs is None or state.tried < programs):
        kind, what = outcome(state.next)
        if kind == "wrong":
            state.failures[str(state.next)] = what
            print(f"{state.next}: {what}", flush=True)
        elif kind == "refused":
            refused[what] += 1
            state.refused = dict(refused)
        state.untried += kind == "untried"
        state.dynamo += kind == "dynamo"
        state.tried += 1
        state.next += shards
        note(state)


@quietly()
def main(argv: list[str] | None = None) -> int:
    """Search, as the arguments say."""
    options = parser_of("tests.construct_sweep", __doc__).parse_args(argv)
    with suppress(AttributeError):
        torch._dynamo.config.capture_scalar_outputs = torch._dynamo.config.capture_dynamic_output_shape_ops = True
    state, shards = begin(options, State(0))
    search(state, shards, options.minutes, options.programs, lambda now: keep(options, now))
    print(f"{state.tried} programs: {len(state.failures)} wrong, {state.untried} raise in eager mode")
    print(f"changed by Dynamo whatever its backend: {state.dynamo}")
    print(f"refused: {sum(state.refused.values())} {state.refused}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
