"""Does a compiled step do what the step does? Two sides built from one seed are run turn by turn and compared.

After each call, bit by bit: results, arguments, parameters, buffers, what optimizers, schedulers and scalers say of
themselves, attributes of the user's, torch's generator, and which modes are on. Further, which tensors are one object
or share memory, whether tensors of the state stayed the objects they were, and hooks. Results of earlier calls are kept
and compared at the end, so that no later call may write into them. After the last call both sides take eager steps with
the original function, and then one more call each: going back and forth is always possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import torch

import dovetail
from dovetail.errors import DovetailError, StepInterrupted
from tests.frontends.step.twins import (
    Call,
    Differs,
    Step,
    Twin,
    copied,
    difference,
    forget_freed,
    identities,
    labelled_tensors,
    sharing,
)

STEPS = 20

T = TypeVar("T")


class EagerFails(Exception):
    """The case is none: eager itself raises."""


class _Refused(Exception):
    """A call was refused, as it may be."""


@dataclass(frozen=True)
class Case:
    """A training loop to compare.

    build: one side, in the state that torch's generator gives it. captures: how many programs there are of all its
    steps together, see `programs_of`; None where that depends on numbers. eager_calls: calls run eagerly, likewise.
    at_most: a bound on either where the number is None. keep_grads: gradients stay after a call, and are compared.
    fails: eager too fails in some calls. may_refuse: a named error will do, if it leaves no trace. options: further
    options of `compile_step`. steps: turns to take, None for the default.
    """

    name: str
    build: Callable[[], Twin]
    captures: int | None = 1
    eager_calls: int | None = 0
    at_most: int = 8
    keep_grads: bool = True
    fails: bool = False
    may_refuse: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None

    def __str__(self) -> str:
        return self.name

    def twin(self, seed: int = 0) -> Twin:
        """One side; equal seeds give equal sides. Torch's generator stays where it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def compile(self, twin: Twin) -> dict[str, Any]:
        """Every step of a side, compiled."""
        options = {"keep_grads": self.keep_grads, **self.options}
        return {name: dovetail.compile_step(step, **options) for name, step in twin.steps.items()}


def agree(case: Case, steps: int = STEPS) -> dict[str, Any]:
    """Run both sides and compare. Returns the compiled steps. Raises: Differs, with the first thing that differs."""
    run, count = _Comparison(case), case.steps or steps
    try:
        for number in range(count):
            run.turn(number, run.compiled)
        check_stats(case, run.compiled)
        for number in (count, count + 1):
            run.turn(number, run.twins[1].steps, " (both eager)")
        run.turn(count + 2, run.compiled, " (compiled again)")
    except _Refused:
        return run.compiled
    run.compare_kept()
    return run.compiled


def programs_of(stats: Any) -> int:
    """How many kinds of calls have a program: one that makes state is not counted besides that of later calls."""
    return sum(not variant.is_once for variant in stats.variants)


def check_stats(case: Case, compiled: dict[str, Any]) -> None:
    """Whether the steps were recorded, and ran eagerly, as often as the case says. Raises: Differs."""
    every = [step.stats for step in compiled.values()]
    programs, eager_calls = sum(map(programs_of, every)), sum(it.eager_calls for it in every)
    for label, found, expected in (
        ("programs", programs, case.captures),
        ("eager calls", eager_calls, case.eager_calls),
    ):
        if found != expected if expected is not None else found > case.at_most:
            wanted = f"at most {case.at_most}" if expected is None else expected
            raise Differs(f"{case}: {found} {label}, expected {wanted}: {every}")


class _Comparison:
    """Two sides of a case, eager first, and what their calls have returned."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.twins = (case.twin(), case.twin())
        before = copied(self.twins[1].state(grads=True))
        self.compiled = case.compile(self.twins[1])
        if found := difference(before, self.twins[1].state(grads=True), "state"):
            raise Differs(f"{case}: compile_step itself changed the {found}")
        self.held: tuple[list[Any], list[Any]] = ([], [])
        self.objects = [labelled_tensors(twin.state(grads=False)) for twin in self.twins]
        self.what = ""
        self.drawn: str | None = None

    def turn(self, number: int, steps: dict[str, Step], note: str = "") -> None:
        """Take turn `number` on both sides, the second with these steps, and compare."""
        self.what = f"{self.case}: call {number}{note}"
        self._both(lambda twin: twin.before(number))
        before = copied(self.twins[1].state(grads=True)) if self.case.may_refuse else None
        misses = self._misses()
        (wanted, made), (found, given) = self._both(
            lambda twin: _called(twin, twin.steps if twin is self.twins[0] else steps, number)
        )
        if isinstance(wanted, Exception) and not self.case.fails:
            raise EagerFails(f"{self.what}: {type(wanted).__name__}: {wanted}") from wanted
        if isinstance(found, DovetailError):
            self._refused(found, before, began=self._misses() > misses)
        if isinstance(wanted, Exception) or isinstance(found, Exception):
            self._same_errors(wanted, found)
            wanted = found = None
        self._refuse(self.drawn)
        grads = self.case.keep_grads
        items = [
            {
                "result": result,
                "arguments": call.arguments,
                "keywords": dict(call.keywords),
                "state": twin.state(grads=grads),
            }
            for twin, result, call in zip(self.twins, (wanted, found), (made, given), strict=True)
        ]
        self._refuse(difference(items[0], items[1]))
        tensors = [labelled_tensors(item) for item in items]
        self._refuse(difference(identities(tensors[0]), identities(tensors[1]), "tensors that are one object"))
        self._refuse(difference(sharing(tensors[0]), sharing(tensors[1]), "tensors that share memory"))
        self._same_replacements([labelled_tensors(item["state"]) for item in items])
        self._refuse(difference(_hook_counts(self.twins[0]), _hook_counts(self.twins[1]), "number of hooks"))
        self._refuse(difference(_modes(), _DEFAULT_MODES, "modes after the call"))
        for kept, item in zip(self.held, items, strict=True):
            kept.append((item["result"], item["arguments"]))

    def compare_kept(self) -> None:
        """Whether what earlier calls returned, and were given, is still equal."""
        self.what = f"{self.case}: at the end"
        self._refuse(difference(self.held[0], self.held[1], "results and arguments of call"))

    def _both(self, act: Callable[[Twin], T]) -> tuple[T, T]:
        """Let both sides act from one state of the generator. drawn: what is wrong with how it ends."""
        before = torch.get_rng_state()
        first = act(self.twins[0])
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        second = act(self.twins[1])
        self.drawn = None
        if not torch.equal(after, torch.get_rng_state()):
            moved = not torch.equal(before, torch.get_rng_state())
            self.drawn = f"torch's generator {'ends elsewhere' if moved else 'did not move'}"
        return first, second

    def _misses(self) -> int:
        return sum(step.stats.guard_misses for step in self.compiled.values())

    def _refused(self, error: DovetailError, before: Any, *, began: bool) -> NoReturn:
        """Raises: the error, or Refused where that will do and nothing has changed.

        began: whether a program ran up to a check that did not pass: what it drops before any check is gone.
        """
        error.add_note(f"in {self.what}")
        if not self.case.may_refuse or isinstance(error, StepInterrupted):
            raise error
        now = self.twins[1].state(grads=True)
        if began:
            forget_freed(before, now)
        if changed := difference(before, now, "state"):
            raise Differs(f"{self.what}: the refused call changed the {changed}") from error
        raise _Refused from error

    def _same_errors(self, wanted: Any, found: Any) -> None:
        a, b = (
            f"{type(item).__name__}: {item}" if isinstance(item, Exception) else "results" for item in (wanted, found)
        )
        if a != b:
            error = found if isinstance(found, Exception) else wanted
            raise Differs(f"{self.what}: eager gives {a}, and here is {b}") from error

    def _same_replacements(self, now: list[list[tuple[str, Any]]]) -> None:
        """A tensor of the state is another object than before on both sides, or on neither."""
        replaced = []
        for before, after in zip(self.objects, now, strict=True):
            known = dict(before)
            replaced.append([label for label, tensor in after if label in known and known[label] is not tensor])
        self.objects = now
        self._refuse(difference(replaced[0], replaced[1], "tensors that are other objects now"))

    def _refuse(self, found: str | None) -> None:
        if found is not None:
            raise Differs(f"{self.what}: {found}")


def _called(twin: Twin, steps: dict[str, Step], number: int) -> tuple[Any, Call]:
    call = twin.call(number)
    with twin.around(number):
        try:
            return steps[call.step](*call.arguments, **call.keywords), call
        except Exception as error:
            return error, call


def _hook_counts(twin: Twin) -> list[int]:
    return [len(table) for table in twin.hooks()]


def _modes() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


_DEFAULT_MODES = _modes()
