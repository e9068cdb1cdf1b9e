"""Small programs in the style of public training scripts, and the check that each door does what eager does.

A program is a function decorated with `@program(doors...)`. It builds everything from torch's generator, takes `wrap`,
which it calls on the models or functions that the doors "backend" and "compile" are to compile, and returns `Made`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError
from dovetail.frontends.backend import dovetail_backend
from tests.frontends.step.agreement import programs_of
from tests.frontends.step.twins import copied, difference, forget_freed, identities, labelled_tensors, sharing

TURNS = 5
STEP, KEPT, BACKEND, COMPILE, FREEZE = "step", "kept", "backend", "compile", "freeze"
EAGER = "eager"  # compared with itself, where eager mode may not repeat its own bits
DYNAMO = "dynamo"  # nothing behind Dynamo, which may refuse what eager mode takes
Wrap = Callable[[Any], Any]


class Differs(AssertionError):
    """A door did something else than eager mode."""


class Refused(Exception):
    """A door refused a program by name, and left no trace. code: of the error."""

    def __init__(self, error: DovetailError) -> None:
        super().__init__(str(error))
        self.code = error.code


@dataclass
class Made:
    """One side of a program.

    step: called once for each batch, in turn. state: modules, optimizers, schedulers, tensors and objects to compare.
    frozen: a model and the arguments to freeze it with; one set of arguments for each call.
    """

    step: Callable[..., Any]
    batches: Sequence[tuple[Any, ...]]
    state: Mapping[str, Any] = field(default_factory=dict)
    frozen: tuple[nn.Module, Sequence[tuple[Any, ...]]] | None = None


@dataclass(frozen=True)
class Program:
    """A program. doors: those that it fits. captures: how many programs a door may make of it.

    whole: Dynamo is to record sizes that depend on data, instead of breaking the graph there.
    """

    name: str
    make: Callable[[Wrap], Made]
    doors: tuple[str, ...]
    captures: int
    whole: bool = False

    def side(self, wrap: Wrap, seed: int) -> Made:
        """One side; equal seeds give equal sides."""
        torch.manual_seed(seed)
        return self.make(wrap)


def program(*doors: str, captures: int = 3, whole: bool = False) -> Callable[[Callable[[Wrap], Made]], Program]:
    """Declare a program. "step" is tried twice: as it is, and with the gradients kept."""
    every = tuple(door for name in doors for door in ((STEP, KEPT) if name == STEP else (name,)))
    return lambda make: Program(make.__name__, make, every, captures, whole)


def some(make: Callable[[], Any], count: int = 3) -> list[tuple[Any, ...]]:
    """Batches, each made by one call."""
    made = [make() for _ in range(count)]
    return [batch if isinstance(batch, tuple) else (batch,) for batch in made]


def check(which: Program, door: str, seed: int = 0) -> None:
    """Compare a door with eager mode. Raises: Differs, or Refused."""
    if door == FREEZE:
        _check_frozen(which, seed)
        return
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=which.whole):
        _Comparison(which, door, seed).run()


def _identity(target: Any) -> Any:
    return target


def _generators() -> list[Tensor]:
    """The states of torch's generators: the CPU's, and those of GPUs."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def _put_generators(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    torch.cuda.set_rng_state_all(states[1:])


class _Comparison:
    """Two sides, eager first, taken turn by turn from one state of torch's generator."""

    def __init__(self, which: Program, door: str, seed: int) -> None:
        self.which, self.door = which, door
        self.counts: list[Callable[[], int]] = []
        doors = {
            BACKEND: self._through_dynamo,
            COMPILE: self._compiled,
            DYNAMO: partial(torch.compile, backend="eager"),
        }
        wrap = doors.get(door, _identity)
        self.sides = (which.side(_identity, seed), which.side(wrap, seed))
        self.steps = [side.step for side in self.sides]
        if door in (STEP, KEPT):
            compiled = dovetail.compile_step(self.sides[1].step, keep_grads=door == KEPT)
            self.counts.append(lambda: programs_of(compiled.stats))
            self.steps[1] = compiled

    def _through_dynamo(self, target: Any) -> Any:
        made: list[Any] = []

        def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            made.append(gm)
            return dovetail_backend(gm, example_inputs)

        self.counts.append(lambda: len(made))
        return torch.compile(target, backend=backend)

    def _compiled(self, target: Any) -> Any:
        compiled = dovetail.compile(target)
        self.counts.append(lambda: compiled.stats.captures)
        return compiled

    def run(self) -> None:
        kept: list[list[Any]] = [[], []]
        for turn in range(TURNS):
            seen = self._turn(turn)
            for side, item in zip(kept, seen, strict=True):
                side.append(item["result"])
        self._same(*kept, "at the end: results")
        made = sum(count() for count in self.counts)
        if self.door not in (EAGER, DYNAMO) and not 0 < made <= self.which.captures:
            raise Differs(f"{self.which.name}: {made} captures, expected at most {self.which.captures}")

    def _turn(self, turn: int) -> list[dict[str, Any]]:
        start, seen = _generators(), []
        before = copied(self._seen(1, None))
        for index in (0, 1):
            _put_generators(start)
            batch = self.sides[index].batches[turn % len(self.sides[index].batches)]
            try:
                result = self.steps[index](*batch)
            except Exception as error:
                refusal = _refusal(error)
                if refusal is None:
                    raise
                self._same(before, self._seen(1, None), f"call {turn}: after it was refused: ")
                raise Refused(refusal) from error
            seen.append({**self._seen(index, result), "arguments": batch, "generator": _generators()})
        if self.door == STEP:
            forget_freed(seen[0]["state"], seen[1]["state"])
        self._same(*seen, f"call {turn}: ")
        tensors = [labelled_tensors(item) for item in seen]
        self._same(*map(identities, tensors), f"call {turn}: tensors that are one object")
        self._same(*map(sharing, tensors), f"call {turn}: tensors that share memory")
        return seen

    def _seen(self, index: int, result: Any) -> dict[str, Any]:
        return {"result": result, "state": {name: state_of(it) for name, it in self.sides[index].state.items()}}

    def _same(self, wanted: Any, found: Any, what: str) -> None:
        differs = difference(wanted, found, what)
        if differs is not None:
            raise Differs(f"{self.which.name}: {differs}")


def _refusal(error: BaseException | None) -> DovetailError | None:
    """The refusal behind an error: Dynamo wraps those of a backend."""
    while error is not None and not isinstance(error, DovetailError):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return error


def state_of(item: Any) -> Any:
    """What an object says of itself, as nested containers of tensors and plain values."""
    if isinstance(item, Tensor):
        return {"tensor": item, "requires_grad": item.requires_grad, "grads": {"": item.grad if item.is_leaf else None}}
    if isinstance(item, nn.Module):
        parameters = dict(item.named_parameters(remove_duplicate=False))
        return {
            "parameters": parameters,
            "buffers": dict(item.named_buffers(remove_duplicate=False)),
            "requires_grad": {name: p.requires_grad for name, p in parameters.items()},
            "training": {name: module.training for name, module in item.named_modules()},
            "grads": {name: p.grad for name, p in parameters.items()},
        }
    if isinstance(item, torch.Generator):
        return item.get_state()
    if hasattr(item, "state_dict"):
        return item.state_dict()
    if isinstance(item, dict):
        return {key: state_of(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [state_of(value) for value in item]
    return item if isinstance(item, int | float | str | None) else {k: state_of(v) for k, v in vars(item).items()}


def _check_frozen(which: Program, seed: int) -> None:
    """Train a little in eager mode, then freeze, and compare with the model in evaluation mode."""
    made = which.side(_identity, seed)
    for batch in made.batches[:2]:
        made.step(*batch)
    assert made.frozen is not None, f"{which.name} has nothing to freeze"
    model, calls = made.frozen
    model = model.eval()
    try:
        frozen = dovetail.freeze(copy.deepcopy(model), calls[0])
    except DovetailError as error:
        raise Refused(error) from error
    for number, call in enumerate((*calls, calls[0])):
        seen = []
        for side in (model, frozen):
            torch.manual_seed(seed)
            arguments = copied(call)
            with torch.no_grad():
                result = side(*arguments)
            seen.append({"result": result, "arguments": arguments, "generator": _generators()})
        differs = difference(*seen, f"call {number}: ")
        if differs is not None:
            raise Differs(f"{which.name}: {differs}")
