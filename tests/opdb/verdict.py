"""Compiled calls against eager ones, for each entry and each way to compile.

pass: everything that a caller sees is equal, bit by bit. rounding: but for the last bits of numbers. fail: it is not,
or the compiled call raises. refused: a named error. skipped: eager mode raises. crash: the process ended.

What eager itself gives differently a second time (uninitialized memory) is not compared. Whether it does is measured:
in the two eager calls, memory is filled with other bytes when it is allocated.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch._functorch.aot_autograd import aot_function, aot_module
from torch._functorch.compilers import nop
from torch.utils import _pytree as pytree

import dovetail
from dovetail.errors import DovetailError
from tests.fresh_memory import filled_with
from tests.harness.agreement import Observation, first_difference
from tests.opdb.calls import Entry, Sample
from tests.opdb.observation import BACKWARD_RAISES, Raised, observe

PASS, FAIL, ROUNDING, REFUSED, SKIPPED, CRASH = STATUSES = ("pass", "fail", "rounding", "refused", "skipped", "crash")
_WORST_FIRST = (FAIL, REFUSED, ROUNDING, PASS)
_TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-4, torch.complex64: 1e-4}

CompileFunction = Callable[[Callable[..., Any]], Callable[..., Any]]


def _aot(target: Callable[..., Any]) -> Callable[..., Any]:
    """As aot_eager runs a graph of Dynamo's: flat results, and no compiler below."""
    structure: list[pytree.TreeSpec] = []

    def flat(*args: Any, **kwargs: Any) -> list[Any]:
        results, found = pytree.tree_flatten(target(*args, **kwargs))
        structure[:] = [found]
        return results

    compiled = aot_module(_Flat(target, flat), nop) if isinstance(target, torch.nn.Module) else aot_function(flat, nop)

    def call(*args: Any, **kwargs: Any) -> Any:
        results = compiled(*args, **kwargs)
        return pytree.tree_unflatten(results, structure[0])

    return call


class _Flat(torch.nn.Module):
    """A module with flat results. inner: the module that `flat` calls."""

    def __init__(self, inner: torch.nn.Module, flat: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self._flat = flat

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._flat(*args, **kwargs)


def _dynamo(target: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(target, backend="dovetail", fullgraph=True)


ARMS: dict[str, CompileFunction] = {
    "dovetail": dovetail.compile,
    "aot": _aot,
    "dynamo": _dynamo,
    "dynamic": partial(dovetail.compile, dynamic=True),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an entry, compiled in one way. The reason is that of the first sample with this status."""

    status: str
    samples: dict[str, int]
    sample: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A sample, and what eager makes of it each time."""

    sample: Sample
    seen: Observation
    varies: frozenset[str]


def references(entry: Entry, count: int) -> list[Reference]:
    """The samples of an entry that eager mode can run."""
    with _quiet():
        found = []
        for sample in entry.samples(count):
            with contextlib.suppress(Exception):
                found.append(_reference(sample))
        return found


def _reference(sample: Sample) -> Reference:
    with filled_with(0x5A):
        first = _observe_eager(sample)
    with filled_with(0x3C):
        second = _observe_eager(sample)
    varies = [label for label, value in first.items() if first_difference({label: value}, {label: second.get(label)})]
    return Reference(sample, first, frozenset(varies))


def _observe_eager(sample: Sample) -> Observation:
    call = sample.fresh()
    return observe(call, call.target)


def judge(found: list[Reference], compile_function: CompileFunction) -> Verdict:
    """Compile each call and hold it against eager's; the worst that happened counts."""
    counts: Counter[str] = Counter()
    reasons: dict[str, tuple[str, str]] = {}
    with _quiet():
        for reference in found:
            status, reason = _judge_call(reference, compile_function)
            counts[status] += 1
            reasons.setdefault(status, (reference.sample.label if reason else "", reason))
    status = next((status for status in _WORST_FIRST if counts[status]), SKIPPED)
    return Verdict(status, dict(counts), *reasons.get(status, ("", "")))


def _judge_call(reference: Reference, compile_function: CompileFunction) -> tuple[str, str]:
    call = reference.sample.fresh()
    try:
        seen = observe(call, compile_function(call.target))
        if BACKWARD_RAISES in seen and BACKWARD_RAISES not in reference.seen:
            raise cast("Raised", seen[BACKWARD_RAISES]).error
    except DovetailError as error:
        status = FAIL if error.code.startswith("DT-INTERNAL") else REFUSED
        return status, f"{error.code}: {_first_line(error.__cause__ or error)}"
    except Exception as error:
        if isinstance(error.__cause__, DovetailError):
            return REFUSED, f"{error.__cause__.code}: {_first_line(error.__cause__)}"
        refused = compile_function is _aot or isinstance(error, TorchDynamoException)
        return (REFUSED if refused else FAIL), f"raises {type(error).__name__}: {_first_line(error)}"
    expected, actual = _without(reference.seen, reference.varies), _without(seen, reference.varies)
    difference = first_difference(expected, actual)
    if difference is None:
        return PASS, ""
    same = {label for label in expected if label in actual and _is_close(expected[label], actual[label])}
    wrong = first_difference(_without(expected, same), _without(actual, same))
    return (ROUNDING if wrong is None else FAIL), " ".join((wrong or difference).split())[:300]


def _without(seen: Observation, labels: Iterable[str]) -> Observation:
    return {label: value for label, value in seen.items() if label not in labels}


def _is_close(a: object, b: object) -> bool:
    """Whether two tensors of one kind differ in rounding at most."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return False
    tolerance = _TOLERANCES.get(a.dtype, 1e-9)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().split("\n") or [""])[0][:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings; the random generator, its seed and the number of threads as they were afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
