"""A program of a step, with its guard, bound to the objects of a reachable state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from dovetail.frontends.step.containers import Path
from dovetail.frontends.step.drawn_values import Draw, Held, Late
from dovetail.frontends.step.guard import NOTHING, UNBOUND, Bindings, StepGuard
from dovetail.frontends.step.number_slots import NumberSlot
from dovetail.frontends.step.open_slots import paths_of_new
from dovetail.frontends.step.reachable_state import ReachableState
from dovetail.frontends.step.runner import StepRunner
from dovetail.frontends.step.schedulers import HeldRates
from dovetail.frontends.variant_cache import Variant
from dovetail.reach.contents import Snapshot
from dovetail.reach.guard import PythonGuard
from dovetail.reach.guarded import Guarded
from dovetail.reach.guards import PythonGuards

StepVariant: TypeAlias = Variant[StepGuard, StepRunner]
Chosen: TypeAlias = tuple[StepVariant, list[torch.Tensor]]


def bindings_to(reachable: ReachableState, guard: StepGuard, runner: StepRunner) -> Bindings:
    """What binds a program to a reachable state whose record fits the guard's; `UNBOUND` where a tensor is gone."""
    read = [
        x.path if isinstance(x, Late) else x for x in runner.numbers if not (isinstance(x, int | Draw) or _is_rate(x))
    ]
    wanted = {*read, *(path for path, _ in runner.writes)}
    state = guard.state_in(reachable)
    if state is None:
        return UNBOUND
    bound = [path for path, _ in runner.bound]
    opened = reachable.opened(paths_of_new([*guard.opened, *bound], _fixed(runner)))
    slots = {slot.path: slot for slot in (reachable.slots if wanted else ()) if slot.path in wanted}
    writes: list[Callable[[Any], None]] = [NumberSlot.at(slots[path]).write for path, _ in runner.writes]
    try:
        held_rates = {(path, count): HeldRates(reachable.slot(path).read(), count) for path, count in runner.rates}

        def reader(x: Path | Late) -> Callable[[], Any]:
            if isinstance(x, Late) and x.rate:
                return partial(held_rates[x.path, x.rate[1]].rate, x.rate[0])
            return opened.reader(slots[x.path if isinstance(x, Late) else x])

        reads = [
            itemgetter(x)
            if isinstance(x, int)
            else itemgetter(x.which - len(runner.draws))
            if isinstance(x, Draw)
            else _reader(reader(x))
            for x in runner.numbers
        ]
        late = [(n, x.call, reader(x)) for n, x in enumerate(runner.numbers) if isinstance(x, Late) and x.call >= 0]
        known = {n for n, _, _ in late} | {n for n, x in enumerate(runner.numbers) if isinstance(x, Draw)}
        is_early = any(call.before for call in runner.host_calls)
        early = [n for n in range(len(reads)) if is_early and n not in known]
        kept = [opened.reader(reachable.slot(path)) for path in guard.kept]
        binds = [NumberSlot.at(reachable.slot(path)).binder() for path, _ in runner.bound]
        containers = [opened.reader(reachable.slot(path)) for path in runner.write_only]
        filled = [opened.reader(reachable.slot(path)) for path, _ in runner.filled]
        places = [(path, opened.reader(reachable.slot(path))) for path in runner.places]
        schedulers = [x.scheduler if x.at is None else reachable.slot(x.at).read() for x in runner.host_calls]
        sources = [
            [x.generator if x.path is None else reachable.slot(x.path).read() for x in draw.sources]
            for draw in runner.draws
        ]
        read_before = [draw.function.path for draw in runner.draws if isinstance(draw.function, Held)]
        held = {path: opened.reader(reachable.slot(path)) for path in read_before}
    except LookupError:
        return UNBOUND
    guards = PythonGuards([reachable.guard(guard.lifted, opened), guard.reads], guard.changed_word)
    if held_rates:
        asked: dict[Callable[[], Any], Any] = dict.fromkeys(held_rates.values(), True)
        guards.add(PythonGuard(Guarded(Snapshot(), is_bound=True, asked=asked)))
    return Bindings(
        guards, state, reads, writes, kept, binds, containers, filled, places, schedulers, sources, held, early, late
    )


def _fixed(runner: StepRunner) -> list[Path]:
    """Slots that are written, or looked at, where a program is bound."""
    found = [path for path, _ in runner.writes]
    found += [call.at for call in runner.host_calls if call.at is not None]
    found += [path for path, _ in runner.rates]
    return found + [x.path for draw in runner.draws for x in draw.sources if x.path is not None]


def _is_rate(number: Any) -> bool:
    return isinstance(number, Late) and number.rate is not None


def tie(variant: StepVariant, reachable: ReachableState, leaves: Sequence[Any]) -> bool:
    """Bind a program to a reachable state and to arguments, if it is for such."""
    guard = variant.guard
    return guard.record.fits(reachable.record(guard.lifted)) and guard.bind(
        bindings_to(reachable, guard, variant.runner), leaves
    )


def let_go(variants: Iterable[StepVariant], reachable: ReachableState) -> None:
    """Cut the bindings of variants to tensors that the present reachable state does not hold any more."""
    held = {id(tensor) for _, tensor in reachable.tensors} | {id(NOTHING)}
    for guard in (variant.guard for variant in variants):
        if not held.issuperset(map(id, guard.bindings.tensors)):
            guard.let_go()


def _reader(read: Callable[[], Any]) -> Callable[[Sequence[Any]], Any]:
    return lambda _: read()
