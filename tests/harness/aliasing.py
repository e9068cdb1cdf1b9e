"""Random programs whose arguments share bytes, differently from call to call.

A program is a few lines over two to four arguments, and three patterns that say where the arguments lie: only where.
One compiled function must do what eager does in each of them, one after the other.

    program = alias_program(7)
    print(program.source())
    check_program(program, dovetail.compile, program.seeds)     # in testing.agreement
"""

from __future__ import annotations

import itertools
import linecache
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from tests.harness.agreement import observe
from tests.harness.alias_statements import READS, RESHAPES, WRITES
from tests.harness.placement import Pattern, random_patterns
from tests.harness.scene import Scene
from tests.harness.shared_bytes import WritesHaveOneMeaning, shared_bytes

_LINES = (2, 8)
_MAX_ELEMENTS = 128
_LARGEST = 2.0**20
_SERIAL = itertools.count()
_NO_GRAD = "with torch.no_grad():\n    "


@dataclass(frozen=True, slots=True)
class AliasProgram:
    """A straight-line program, and patterns of arguments for it.

    seed: what it was made from. arguments: their names. patterns: `inputs(seed)` uses number `seed % len(patterns)`.
    body: its lines. returns: an expression per result.
    """

    seed: int
    arguments: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    body: tuple[str, ...]
    returns: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds for `inputs`, such that each pattern is used once."""
        return tuple(range(len(self.patterns)))

    def source(self) -> str:
        """The program as Python: `inputs(seed)` gives (arguments, leaves), `program(*arguments)` gives a tuple."""
        lines = ["import torch", "", "", "def inputs(seed=0):", "    g = torch.Generator().manual_seed(seed)"]
        for number, pattern in enumerate(self.patterns):
            lines.append(f"    if seed % {len(self.patterns)} == {number}:  # {pattern.kind}")
            lines += [f"        {line}" for line in pattern.lines]
            lines.append(f"        return [{', '.join(self.arguments)}], [{', '.join(pattern.leaves)}]")
        lines += ["", "", f"def program({', '.join(self.arguments)}):"]
        lines += ["    " + line.replace("\n", "\n    ") for line in self.body]
        lines += [f"    return ({', '.join(self.returns)}{',' if len(self.returns) == 1 else ''})", ""]
        return "\n".join(lines)

    def build(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """`program` and `inputs` of the source, as functions."""
        text = self.source()
        name = f"/alias_program/{self.seed}_{next(_SERIAL)}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        namespace: dict[str, Any] = {}
        exec(compile(text, name, "exec"), namespace)
        return namespace["program"], namespace["inputs"]


@dataclass(frozen=True, slots=True)
class PatternFacts:
    """What happens in one pattern. overlaps: two arguments share bytes. written: two arguments share written bytes."""

    overlaps: bool
    written: bool


def alias_program(seed: int, *, reshapes: bool = False) -> AliasProgram:
    """The program of a seed. Deterministic; eager runs and differentiates it in each pattern without error or warning.

    reshapes: also reshape arguments in place, as `x.t_()` does.
    """
    for attempt in itertools.count():
        choose = random.Random(f"{seed}/{attempt}/alias")
        program = _attempt(seed, choose, reshapes)
        facts = facts_in_eager(program)
        # Most programs shall write what another argument shows; the rest are there to be told apart from them.
        if facts is not None and (any(fact.written for fact in facts) or choose.random() < 0.25):
            return program
    raise AssertionError("counting ends never")


def facts_in_eager(program: AliasProgram) -> tuple[PatternFacts, ...] | None:
    """What happens in each pattern; None when eager raises, warns, or the order inside an operator matters."""
    facts = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function, inputs = program.build()
            for seed in program.seeds:
                facts.append(_facts(function, inputs, seed))
    except Exception:
        return None
    return tuple(facts)


def runs_in_eager(program: AliasProgram) -> bool:
    """Whether eager runs and differentiates the program in each pattern, and it has one meaning."""
    return facts_in_eager(program) is not None


def _facts(function: Callable[..., Any], inputs: Callable[..., Any], seed: int) -> PatternFacts:
    shared: set[int] = set()
    watch = WritesHaveOneMeaning()

    def watched(*arguments: torch.Tensor) -> Any:
        for x, y in itertools.combinations(arguments, 2):
            shared.update(shared_bytes(x, y))
        with watch:
            return function(*arguments)

    observe(watched, inputs, seed)
    return PatternFacts(bool(shared), not shared.isdisjoint(watch.written))


def _attempt(seed: int, choose: random.Random, reshapes: bool) -> AliasProgram:
    count, patterns = random_patterns(choose)
    arguments = tuple(f"x{index}" for index in range(count))
    with torch.random.fork_rng(devices=[]):
        trial = _Trial(choose, arguments, patterns)
        body = _random_body(trial, reshapes)
        returns = _random_returns(trial.scene)
    return AliasProgram(seed, arguments, patterns, body, returns)


class _Trial:
    """A program while it is made: what is live in each pattern. The scene shows one of them."""

    def __init__(self, choose: random.Random, arguments: tuple[str, ...], patterns: Sequence[Pattern]) -> None:
        self.arguments = arguments
        self.making = [compile("\n".join(pattern.lines), "<arguments>", "exec") for pattern in patterns]
        self.accepted: list[CodeType] = []
        self.shown = choose.randrange(len(patterns))
        self.names = [self._made(number) for number in range(len(patterns))]
        self.is_mixed = any(".view(torch." in line for pattern in patterns for line in pattern.lines)
        self.scene = Scene(choose, self.names[self.shown], inputs=arguments)
        self.scene.note_overlaps("", ())

    def _made(self, number: int) -> dict[str, Any]:
        names: dict[str, Any] = {"torch": torch, "g": torch.Generator().manual_seed(number)}
        exec(self.making[number], names)
        return {name: names[name] for name in self.arguments}

    def accepts(self, line: str) -> bool:
        """Run a line in every pattern; False, and nothing happened, when eager refuses it or it is unfit."""
        code = compile(line, "<line>", "exec")
        before = set(self.scene.names)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for names in self.names:
                    with WritesHaveOneMeaning():
                        exec(code, {"torch": torch}, names)
            fit = all(self._is_fit(value) for names in self.names for value in names.values())
        except Exception:
            fit = False
        if fit:
            self.accepted.append(code)
            self.scene.note_overlaps(line, before)
        else:
            self._start_again()
        return fit

    def _is_fit(self, value: object) -> bool:
        """Whether a value is small; bytes seen as numbers of another type may make huge ones, too."""
        if not isinstance(value, torch.Tensor):
            return True
        if value.numel() > _MAX_ELEMENTS:
            return False
        if not self.is_mixed or not value.dtype.is_floating_point or not value.numel():
            return True
        return bool(value.detach().abs().amax() < _LARGEST)

    def _start_again(self) -> None:
        for number, names in enumerate(self.names):
            names.clear()
            names.update(self._made(number))
            for code in self.accepted:
                exec(code, {"torch": torch}, names)


def _random_body(trial: _Trial, reshapes: bool) -> tuple[str, ...]:
    table = (*WRITES, *READS, *(RESHAPES if reshapes else ()))
    writes = {template for template, _ in WRITES}
    scene, body = trial.scene, []
    wants = scene.choose.randint(*_LINES)
    for _ in range(3 * wants):
        template = scene.choose.choices([t for t, _ in table], weights=[w for _, w in table])[0]
        line = template(scene)
        if not line:
            continue
        leaves = any(scene.tensor(x).requires_grad and scene.tensor(x).is_leaf for x in scene.inputs)
        if scene.choose.random() < (0.6 if leaves and template in writes else 0.06):
            line = f"{_NO_GRAD}{line}"
        if trial.accepts(line):
            body.append(line)
        if len(body) == wants:
            break
    return tuple(body)


def _random_returns(scene: Scene) -> tuple[str, ...]:
    made = [name for name in scene.tensors(lambda _: True) if name not in scene.inputs]
    returns: list[str] = []
    for _ in range(scene.choose.choice((1, 2, 2, 3, 3, 4))):
        kind = scene.choose.random()
        if kind < 0.22 or not made:
            returns.append(scene.choose.choice(scene.inputs))
        elif kind < 0.42:
            form = scene.choose.choice(("{}[:1]", "{}[0]", "{}.transpose(0, -1)", "{}.view_as({})", "{}.detach()"))
            returns.append(form.replace("{}", scene.choose.choice(scene.inputs)))
        elif kind < 0.82:
            returns.append(scene.choose.choice(made))
        elif kind < 0.97:
            form = scene.choose.choice(("{}[:1]", "{}.view_as({})", "{}.detach()", "{} * 1"))
            returns.append(form.replace("{}", scene.choose.choice(made)))
        else:
            returns.append("None")
    return tuple(returns)
