"""Search for programs that give other results where inputs are donated: random programs, random donations.

    python -m tests.donation_sweep --minutes 20 --shard 0/2 --state donation-0.json
    python -m tests.donation_sweep --first 4711 --programs 1

Results, gradients, aliases and random numbers are compared with eager bit by bit, and inputs that are not donated. The
program is compiled by `dovetail.compile`, by `aot_function` with a compiler that works in place, or with recomputation,
in turn. A call whose donation is refused counts as refused, and must leave everything as it was. The exit status is 1
when something failed.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

import dovetail
from dovetail.errors import UnusableDonation
from dovetail.ir.graph_signature import GraphSignature
from tests.harness.agreement import Observation, first_difference, observe
from tests.harness.aliasing import AliasProgram, alias_program
from tests.harness.programs import RandomProgram, random_program
from tests.recompute_sweep import program as chain_program
from tests.searching import Standing, begin, keep, parser_of


@dataclass
class State(Standing):
    """Where a search stands. next: the first seed that was not tried.

    offered, used: calls in which a donated input could be worked in, and in which a result lay in one. stopped: calls
    after which autograd did not take what it had saved of a donated input before. others: programs that fail, or are
    refused, without donations as well.
    """

    refused: int = 0
    offered: int = 0
    used: int = 0
    stopped: int = 0
    others: int = 0


def in_place(gm: torch.fx.GraphModule, example_inputs: list[Any], *, signature: GraphSignature) -> Callable[..., Any]:
    """A compiler that works in what it is given."""
    return dovetail.passes.reinplace(gm, donate=signature.donated)


def compiled_for(seed: int, function: Callable[..., Any], donate: list[int | str]) -> Any:
    """The function, compiled in one of several ways."""
    way = seed % 5
    if way == 0:
        return dovetail.aot_function(function, in_place, donate=donate)
    if way == 1:
        return dovetail.compile(function, donate=donate, partition="min_cut")
    if way == 2:
        return dovetail.compile(function, donate=donate, dynamic=True)
    return dovetail.compile(function, donate=donate, verify=2 if way == 3 else 0)


@dataclass(frozen=True)
class ChainProgram:
    """A differentiable program over tensors of one size, most of whose operators could work in what they are given."""

    seed: int
    seeds: tuple[int, ...] = (0, 1)

    def source(self) -> str:
        """What to call it."""
        return f"tests.recompute_sweep.program({self.seed})"

    def build(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The function, and what makes its arguments."""
        wants = [random.Random(f"{self.seed}/{k}").random() < 0.5 for k in range(3)]

        def inputs(seed: int) -> tuple[list[Any], list[torch.Tensor]]:
            g = torch.Generator().manual_seed(seed)
            made = [torch.randn(*shape, generator=g) for shape in ((6, 6), (6, 6), (6,))]
            leaves = [x.requires_grad_() for x, wanted in zip(made, wants, strict=True) if wanted]
            return made, leaves

        return chain_program(self.seed), inputs


AnyProgram: TypeAlias = RandomProgram | AliasProgram | ChainProgram


def program_of(seed: int) -> AnyProgram:
    """The program of a seed, of one kind or another."""
    return alias_program(seed) if seed % 7 == 0 else ChainProgram(seed) if seed % 2 else random_program(seed)


def check(program: AnyProgram, state: State) -> None:
    """Raise AssertionError unless the program, with donated inputs, gives what eager gives without."""
    rng = random.Random(f"donate/{program.seed}")
    function, make = program.build()
    count = len(make(program.seeds[0])[0])
    donated = sorted(rng.sample(range(count), rng.randint(1, count)))
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    compiled = compiled_for(program.seed, function, [k if rng.random() < 0.5 else names[k] for k in donated])
    for seed in program.seeds:
        hidden = [_Hidden(call, make, donated) for call in (function, compiled)]
        expected = observe(hidden[0].call, hidden[0].inputs, seed)
        try:
            actual = observe(hidden[1].call, hidden[1].inputs, seed)
        except UnusableDonation:
            state.refused += 1
            assert not hidden[1].is_changed(), f"inputs({seed}): the call was refused, and an input changed"
            continue
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            state.stopped += 1
            continue
        state.offered += any(graph.donated.offered for graph in compiled.graphs)
        state.used += hidden[1].is_used and not hidden[0].is_used
        if hidden[0].is_used:  # autograd adds up what arrives there by several ways, in an order of its own
            _drop_close_gradients(expected, actual)
        difference = first_difference(expected, actual)
        assert difference is None, f"inputs({seed}), donated {donated}: {difference}\n\n{program.source()}"


class _Hidden:
    """A function whose donated arguments nobody looks at; `observe` sees the others.

    is_used: whether a result lies in their memory.
    """

    def __init__(self, function: Callable[..., Any], make: Callable[..., Any], donated: list[int]) -> None:
        self._function, self._make, self._donated = function, make, donated
        self.is_used = False

    def inputs(self, seed: int) -> tuple[list[Any], list[torch.Tensor]]:
        """What `make` makes, without the donated ones."""
        self._all, leaves = self._make(seed)
        self._before = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in self._all]
        return [x for k, x in enumerate(self._all) if k not in self._donated], leaves

    def call(self, *_: Any) -> Any:
        """Call the function with all arguments."""
        given = {_storage(self._all[k]) for k in self._donated} - {0}
        results = self._function(*self._all)
        self.is_used = bool(given & set(map(_storage, results)))
        return results

    def is_changed(self) -> bool:
        """Whether an argument is not what it was."""
        return not all(map(_same, self._all, self._before))


def _drop_close_gradients(expected: Observation, actual: Observation) -> None:
    for label in [label for label in expected if label.startswith("gradient") and label in actual]:
        a, b = expected[label], actual[label]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype is b.dtype:
            tolerance = 1e-4 if a.dtype in (torch.float32, torch.complex64) else 1e-10
            if a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
                del expected[label], actual[label]


def _storage(item: object) -> int:
    return item.untyped_storage().data_ptr() if isinstance(item, torch.Tensor) else 0


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a.detach().nan_to_num(), b.nan_to_num())
    return a == b


def _fails_without(program: AnyProgram) -> bool:
    """Whether the program fails in the same way of compiling when nothing is donated."""
    function, make = program.build()
    try:
        compiled = compiled_for(program.seed, function, [])
        for seed in program.seeds:
            if first_difference(observe(function, make, seed), observe(compiled, make, seed)) is not None:
                return True
    except Exception:
        return True
    return False


def search(state: State, step: int, seconds: float, programs: int | None) -> None:
    """Try seeds `state.next`, `state.next + step`, ... up to a limit; `state` is kept up to date."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (programs is None or state.tried < programs):
        program = program_of(state.next)
        try:
            check(program, state)
        except Exception as error:
            if _fails_without(program):
                state.others += 1
            else:
                state.failures[str(state.next)] = f"{type(error).__name__}: {error}"
        state.tried += 1
        state.next += step


def main(argv: list[str] | None = None) -> int:
    """Search, and print what was found."""
    parser = parser_of("tests.donation_sweep", __doc__)
    options = parser.parse_args(argv)
    state, shards = begin(options, State(0))
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end and (options.programs is None or state.tried < options.programs):
        search(state, shards, min(20.0, end - time.monotonic()), options.programs)
        keep(options, state)
        print({k: v for k, v in asdict(state).items() if k != "failures"}, "failures", len(state.failures), flush=True)
    for seed, error in state.failures.items():
        print(f"--first {seed} --programs 1: {error}")
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
