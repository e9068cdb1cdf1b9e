"""Random programs: a few tensors, a dozen lines of views, writes and arithmetic, and some of them returned.

A program is text. It prints as a file that runs by itself, it is the same for the same seed, and eager runs it without
an error or a warning: lines that eager refuses are dropped while it is made, and a program that eager cannot run or
differentiate is thrown away for the next one.

    program = random_program(7)
    print(program.source())
    check_program(program, dovetail.compile)     # in testing.agreement
"""

from __future__ import annotations

import itertools
import linecache
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.harness.agreement import observe
from tests.harness.layers import LAYERS
from tests.harness.scene import Scene
from tests.harness.statements import TEMPLATES

_LINES = (3, 14)
_MAX_ELEMENTS = 512
_SERIAL = itertools.count()


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """A straight-line program.

    seed: what it was made from. inputs: lines that make the arguments, over a generator `g`. arguments: their names.
    leaves: names of the tensors whose gradients are compared. body: its lines. returns: an expression per result.
    """

    seed: int
    inputs: tuple[str, ...]
    arguments: tuple[str, ...]
    leaves: tuple[str, ...]
    body: tuple[str, ...]
    returns: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds for `inputs` to check the program with."""
        return (0, 1)

    def source(self) -> str:
        """The program as Python: `inputs(seed)` gives (arguments, leaves), `program(*arguments)` gives a tuple."""
        lines = ["import torch", "", "", "def inputs(seed=0):", "    g = torch.Generator().manual_seed(seed)"]
        lines += [f"    {line}" for line in self.inputs]
        lines += [f"    return [{', '.join(self.arguments)}], [{', '.join(self.leaves)}]", "", ""]
        lines += [f"def program({', '.join(self.arguments)}):"]
        lines += ["    " + line.replace("\n", "\n    ") for line in self.body]
        returned = ", ".join(self.returns)
        lines += [f"    return ({returned}{',' if len(self.returns) == 1 else ''})", ""]
        return "\n".join(lines)

    def build(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """`program` and `inputs` of the source, as functions."""
        text = self.source()
        name = f"/random_program/{self.seed}_{next(_SERIAL)}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        namespace: dict[str, Any] = {}
        exec(compile(text, name, "exec"), namespace)
        return namespace["program"], namespace["inputs"]


def random_program(seed: int) -> RandomProgram:
    """The program of a seed. Deterministic; runs and differentiates in eager without error or warning."""
    for attempt in itertools.count():
        program = _attempt(seed, random.Random(f"{seed}/{attempt}"))
        if program is not None and runs_in_eager(program):
            return program
    raise AssertionError("counting ends never")


def runs_in_eager(program: RandomProgram) -> bool:
    """Whether eager can run and differentiate the program, without an error or a warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function, inputs = program.build()
            for seed in program.seeds:
                observe(function, inputs, seed)
    except Exception:
        return False
    return True


def _attempt(seed: int, choose: random.Random) -> RandomProgram | None:
    inputs, arguments, leaves = _random_inputs(choose)
    namespace: dict[str, Any] = {"torch": torch, "g": torch.Generator().manual_seed(0)}
    with torch.random.fork_rng(devices=[]):
        for line in inputs:
            exec(line, namespace)
        scene = Scene(choose, {name: namespace[name] for name in arguments}, inputs=arguments)
        scene.note_overlaps("", ())
        body = _random_body(scene)
        returns = _random_returns(scene)
    return RandomProgram(seed, inputs, arguments, leaves, body, returns) if returns else None


# --- inputs -----------------------------------------------------------------------------------------------------------


def _random_inputs(choose: random.Random) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    sizes = [choose.choice((1, 2, 3, 4)), choose.choice((2, 3, 4)), choose.choice((1, 2, 3))]
    lines: list[str] = []
    arguments: list[str] = []
    leaves: list[str] = []
    wants_gradient = choose.random() < 0.7
    for index in range(choose.choice((1, 2, 2, 3, 3, 4))):
        name = f"x{index}"
        shape = sizes[choose.randrange(3) :] if choose.random() < 0.8 else choose.sample(sizes, choose.choice((1, 2)))
        if not shape or choose.random() < 0.05:
            shape = []
        dtype = choose.choices(("float32", "float64", "int64", "bool", "complex64"), weights=(60, 12, 12, 8, 8))[0]
        values, layout = _random_layout(choose, list(shape))
        make = _VALUES[dtype].format(shape=tuple(values), count=len(values))
        gradient = choose.choice(("none", "leaf", "leaf", "derived", "view")) if wants_gradient else "none"
        if dtype in ("int64", "bool"):
            gradient = "none"
        arguments.append(name)
        if gradient == "none":
            lines.append(f"{name} = {make}{layout}")
        elif gradient == "leaf":
            lines.append(f"{name} = {make}{layout}.detach().requires_grad_()")
            leaves.append(name)
        else:
            lines.append(f"leaf{index} = {make}{'' if gradient == 'view' else layout}.detach().requires_grad_()")
            lines.append(f"{name} = (leaf{index} * 1){layout if gradient == 'view' else ''}")
            leaves.append(f"leaf{index}")
    _add_sibling(choose, lines, arguments)
    return tuple(lines), tuple(arguments), tuple(leaves)


def _add_sibling(choose: random.Random, lines: list[str], arguments: list[str]) -> None:
    """Sometimes two arguments lie side by side in one storage (and count their versions apart)."""
    if choose.random() < 0.12:
        name = f"x{len(arguments)}"
        lines.append("pair = torch.randn(2, 2, 3, generator=g)")
        lines.append(f"{name} = pair[0]")
        lines.append(f"{name}b = pair.data[1]")
        arguments += [name, f"{name}b"]


_VALUES = {
    "float32": "torch.randn({shape}, generator=g)",
    "float64": "torch.randn({shape}, generator=g, dtype=torch.float64)",
    "int64": "torch.randint(-3, 4, {shape}, generator=g)",
    "bool": "(torch.rand({shape}, generator=g) > 0.5)",
    "complex64": "torch.randn({shape}, generator=g, dtype=torch.complex64)",
}


def _random_layout(choose: random.Random, shape: list[int]) -> tuple[list[int], str]:
    """A shape to make, and the view that turns it into `shape`."""
    kind = choose.choices(("contiguous", "transposed", "strided", "expanded", "offset"), weights=(50, 15, 12, 8, 15))[0]
    if not shape or kind == "contiguous":
        return shape, ""
    if kind == "transposed" and len(shape) > 1:
        order = tuple(reversed(range(len(shape))))
        return list(reversed(shape)), f".permute{order}"
    if kind == "strided":
        return [*shape[:-1], 2 * shape[-1]], "[..., ::2]"
    if kind == "expanded":
        return [1, *shape[1:]], f".expand({', '.join(map(str, shape))})"
    return [shape[0] + 2, *shape[1:]], f"[1 : {shape[0] + 1}]"


# --- body and results -------------------------------------------------------------------------------------------------


def _random_body(scene: Scene) -> tuple[str, ...]:
    templates = [template for template, _ in (*TEMPLATES, *LAYERS)]
    weights = [weight for _, weight in (*TEMPLATES, *LAYERS)]
    body: list[str] = []
    for _ in range(scene.choose.randint(*_LINES)):
        template = scene.choose.choices(templates, weights=weights)[0]
        line = template(scene)
        if not line:
            continue
        if scene.choose.random() < 0.08:
            line = f"with torch.no_grad():\n    {line}"
        if _runs(line, scene):
            body.append(line)
    return tuple(body)


def _runs(line: str, scene: Scene) -> bool:
    """Run a line on the live tensors; False when eager refuses it or the result is large."""
    names = dict(scene.names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(line, {"torch": torch}, names)
    except Exception:
        return False
    if any(isinstance(v, torch.Tensor) and v.numel() > _MAX_ELEMENTS for v in names.values()):
        return False
    before = set(scene.names)
    scene.names.update(names)
    scene.note_overlaps(line, before)
    return True


def _random_returns(scene: Scene) -> tuple[str, ...]:
    made = [name for name in scene.tensors(lambda _: True) if name not in scene.inputs]
    returns: list[str] = []
    for _ in range(scene.choose.choice((1, 2, 2, 3, 4))):
        kind = scene.choose.random()
        if kind < 0.75 and made:
            returns.append(scene.choose.choice(made[len(made) // 2 :] if scene.choose.random() < 0.6 else made))
        elif kind < 0.87:
            returns.append(scene.choose.choice(scene.inputs))
        elif kind < 0.95 and (name := scene.pick(lambda t: t.dim() > 0)) is not None:
            returns.append(
                f"{name}{scene.choose.choice(('[0]', '.view_as({})', '.transpose(0, -1)', '.detach()')).format(name)}"
            )
        else:
            returns.append(scene.choose.choice(("None", "3", "2.5")))
    return tuple(returns)
