"""Derivatives of derivatives: gradients that can be differentiated again.

A compiled backward is a fixed program and carries no gradient graph. When backward is called with create_graph=True,
the function that was compiled is run again in eager mode, from the inputs that forward kept for this, and its gradients
are taken with a graph. That costs as much as eager, and only then; the option `double_backward` keeps the inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dovetail.errors import DoubleBackwardUnsupported
from dovetail.ir.calling import CallPlan, FromSlot, Rewritten

Recomputation: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""The compiled function in eager mode: takes the inputs of the call, then constants; returns the outputs, flat."""

HINT = "compute the inner gradient inside the compiled function, or leave this function uncompiled"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run depends on besides its inputs: the random generators and autocast, as they were before it."""

    generators: tuple[tuple[str, torch.Tensor], ...]
    own: tuple[tuple[torch.Generator, torch.Tensor], ...]
    autocast: tuple[tuple[str, torch.dtype], ...]

    @staticmethod
    def now(*, draws: bool, own: Sequence[torch.Generator] = ()) -> Circumstances:
        """Those of this moment. draws: random numbers are drawn, so that the generators matter. own: the user's."""
        generators = [("cpu", torch.get_rng_state())] if draws else []
        if draws and torch.cuda.is_available():
            generators.append(("cuda", torch.cuda.get_rng_state()))
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        autocast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)
        return Circumstances(tuple(generators), tuple((g, g.get_state()) for g in own), autocast)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """While active, these hold again; the generators then go on from where they are."""
        with contextlib.ExitStack() as stack:
            if self.generators:
                stack.enter_context(torch.random.fork_rng(enabled=True))
                for kind, state in self.generators:
                    torch.set_rng_state(state) if kind == "cpu" else torch.cuda.set_rng_state(state)
            for generator, before in self.own:
                stack.callback(generator.set_state, generator.get_state())
                generator.set_state(before)
            for kind in ("cpu", "cuda"):
                dtype = dict(self.autocast).get(kind)
                if dtype is not None or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
            yield


@dataclass(frozen=True, slots=True)
class Kept:
    """What forward keeps of a call besides the tensors themselves, which autograd keeps.

    copies: by place, what inputs held that the program changes. numbers: by place, inputs that are not tensors. lost:
    such inputs whose gradient path the copies do not have.
    """

    circumstances: Circumstances
    copies: Mapping[int, torch.Tensor]
    numbers: Mapping[int, Any]
    lost: tuple[int, ...]

    @staticmethod
    def of(plan: CallPlan, inputs: Sequence[Any], circumstances: Circumstances) -> Kept:
        """Keep what the program is about to change."""
        changed = (
            {w.input for w in plan.writes} | {c.input for c in plan.metadata} | {flag.input for flag in plan.flags}
        )
        return Kept(
            circumstances,
            {place: inputs[place].detach().clone() for place in sorted(changed)},
            {place: value for place, value in enumerate(inputs) if not isinstance(value, torch.Tensor)},
            tuple(sorted(place for place in changed if inputs[place].requires_grad)),
        )

    def to_save(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The inputs that autograd is to keep."""
        return [x for place, x in enumerate(inputs) if place not in self.copies and place not in self.numbers]

    def inputs(self, saved: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs of the call, in order. saved: what `to_save` gave."""
        left, count = iter(saved), len(saved) + len(self.copies) + len(self.numbers)
        known = {**self.numbers, **{place: copy.clone() for place, copy in self.copies.items()}}
        return [known[place] if place in known else next(left) for place in range(count)]


def differentiable_gradients(
    source: Recomputation,
    plan: CallPlan,
    inputs: Sequence[Any],
    kept: Kept,
    constants: int,
    arrived: Mapping[int, torch.Tensor],
) -> list[torch.Tensor | None]:
    """The gradient of each input, with a graph of its own.

    source: the compiled function. inputs: what forward was called with; they carry their gradient paths. kept: what
    forward kept besides. constants: how many of the inputs, the last ones, are tensors that the function closes over.
    arrived: the gradients that arrive, by output slot.
    Raises: DoubleBackwardUnsupported.
    """
    position = {rule.slot: place for place, rule in enumerate(plan.outputs) if isinstance(rule, FromSlot | Rewritten)}
    if not arrived.keys() <= position.keys() or plan.packs:
        raise DoubleBackwardUnsupported(
            reason="a gradient arrives for a written input, for outputs that share memory, or for a subclass", hint=HINT
        )
    own = len(inputs) - constants
    if kept.lost or any(place >= own for place in kept.copies):
        raise DoubleBackwardUnsupported(
            reason="it writes an input that requires a gradient, or a tensor that it closes over", hint=HINT
        )
    shown = [_own_path(value) if place < own else value for place, value in enumerate(inputs)]
    with torch.enable_grad(), kept.circumstances.again():
        outputs = source(shown)
        wanted = [place for place, value in enumerate(shown) if isinstance(value, torch.Tensor) and value.requires_grad]
        found = torch.autograd.grad(
            [outputs[position[slot]] for slot in arrived],
            [shown[place] for place in wanted],
            list(arrived.values()),
            create_graph=True,
            allow_unused=True,
        )
    gradients: list[torch.Tensor | None] = [None] * len(shown)
    for place, gradient in zip(wanted, found, strict=True):
        gradients[place] = gradient
    return gradients


def _own_path(value: Any) -> Any:
    """The value with a gradient path of its own: what leads to one input may lead through another."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    with torch.enable_grad():
        return value.view_as(value)
