"""`dovetail.estimate(step_or_model, *args)`: the memory that a step or a model will need, and nothing of it runs.

A step is recorded on fakes as `compile_step` records it, a model as `compile` does. Tensors may be real, fake, or on
device meta, which stands for the CPU here. What operators take for themselves is measured at small sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from dovetail.capture.exclusive import RECORDING, recording_alone
from dovetail.errors import BadOptionValue
from dovetail.frontends.batch_sizes import batch_of, largest_that_fits, positional_names, with_batch
from dovetail.frontends.described_call import Call
from dovetail.frontends.estimate_on_mesh import estimate_on_mesh, is_mesh
from dovetail.frontends.freezing.module import FrozenModule
from dovetail.frontends.function import CompiledFunction, target_of
from dovetail.frontends.inputs import size_hints
from dovetail.frontends.recorded_call import recorded
from dovetail.frontends.step.description import DescribedSteps
from dovetail.frontends.step.guard import StepCall
from dovetail.frontends.step.step import CompiledStep
from dovetail.frontends.structure import Structure, flatten_call
from dovetail.frontends.variant_cache import VariantCache
from dovetail.ir.signature import Constant, UserInput
from dovetail.ir.text import identifier
from dovetail.pipeline.doors import COMPILE, COMPILE_STEP
from dovetail.pipeline.driver import PASS_NAMES
from dovetail.pipeline.estimate import (
    PARTS,
    Consumer,
    Figures,
    StateItem,
    figures_of_forward,
    figures_of_step,
)
from dovetail.pipeline.memory_limit import memory_limit, readable
from dovetail.pipeline.options import Options, resolve_options
from dovetail.pipeline.recompute import PlanPoint
from dovetail.torch_compat.dispatch import without_modes
from dovetail.torch_compat.fakes import fake_apart, has_no_numbers, new_fake_mode, parameter_of_fake
from dovetail.torch_compat.swapping import exchange_back, exchange_tensors
from dovetail.torch_compat.version import ensure_supported_torch

_SHOWN = 8
_CPU = torch.device("cpu")

Figured: TypeAlias = Callable[[list[Any], Structure], Figures]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call needs; print it.

    peak_bytes: with state. floor_bytes: the lowest peak of any plan that is found, which `memory_limit=` can ask for;
    it is looked for when it is read, or printed, which takes longer than all the rest for large programs.
    transient_bytes, floor_transient_bytes: the same above state and arguments. breakdown: what the peak is made of, to
    the byte. consumers: the pieces of memory at the peak, the largest first. unknown_needs: operators that could not be
    tried, which count as taking nothing for themselves. extrapolated: those that were tried at smaller sizes.
    bytes_sent: what this rank hands to collectives, by operator and process group (or dimension of the mesh).
    """

    name: str
    peak_bytes: int
    transient_bytes: int
    breakdown: Mapping[str, int]
    consumers: tuple[Consumer, ...]
    unknown_needs: tuple[str, ...]
    extrapolated: tuple[str, ...]
    bytes_sent: Mapping[tuple[str, str], int]
    _figures: Figures = field(repr=False, compare=False)
    _again: Figured = field(repr=False, compare=False)
    _call: tuple[list[Any], Structure] = field(repr=False, compare=False)
    _names: tuple[str, ...] = field(repr=False, compare=False)

    def plans(self) -> tuple[PlanPoint, ...]:
        """What lower limits cost, for a step: peaks above state and arguments, the lowest found first, each with
        the work of what runs again, as a part of all work. Empty for a model.
        """
        return self._figures.plans.points

    @property
    def floor_bytes(self) -> int:
        """The lowest peak of any plan that is found, with state; looked for when it is asked for."""
        return self._figures.state_bytes + self.floor_transient_bytes

    @property
    def floor_transient_bytes(self) -> int:
        """The same above state and arguments."""
        return self._figures.floor_transient_bytes

    def fits(self, limit: str | int) -> bool:
        """Whether some plan keeps a limit, as `memory_limit=` takes it: "80GiB", "transient:2GiB", bytes.

        Of a model, its forward alone: a limit of a compiled model that is trained counts backward, too.

        Raises: BadOptionValue.
        """
        return self._figures.fits(memory_limit(limit).above(self._figures.state_bytes))

    def max_batch(self, limit: str | int, *, batch_dim: int | Mapping[int | str, int] = 0) -> int:
        """The largest batch for which some plan keeps a limit; 0 where not even a batch of 1 does.

        The call is recorded again for each size that is tried, five to ten as a rule.

        Args:
            limit: as for `fits`.
            batch_dim: the dimension of all tensor arguments that is the batch; or that of each argument that has one,
                by position or name. Other arguments stay as they are.

        Raises:
            BadOptionValue: the limit is none, or it is not clear which size is the batch.
            DovetailError: the call cannot be recorded at another size.
        """
        most = memory_limit(limit)
        leaves, structure = self._call
        dims, size = batch_of(leaves, structure, batch_dim, self._names)

        def needed(batch: int) -> int:
            figures = self._again(with_batch(leaves, dims, batch), structure)
            return figures.floor_transient_bytes + (0 if most.is_transient else figures.state_bytes)

        known = self.floor_transient_bytes if most.is_transient else self.floor_bytes
        return largest_that_fits(needed, most.bytes, size, known, limit)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}: peak {readable(self.peak_bytes)} ({self.peak_bytes:,} bytes)"
        yield f"  lowest found {readable(self.floor_bytes)} ({self.floor_bytes:,} bytes)"
        above = f"{readable(self.transient_bytes)}, lowest {readable(self.floor_transient_bytes)}"
        yield f"  above state and arguments {above}"
        for part, size in self.breakdown.items():
            yield f"  {part:<16}{size:>20,}  {100 * size / max(self.peak_bytes, 1):5.1f} %"
        for (what, group), size in self.bytes_sent.items():
            yield f"  sends {readable(size)} ({size:,} bytes) by {what} in group {group}"
        yield "  largest at the peak"
        for consumer in self.consumers[:_SHOWN]:
            where = f"  {consumer.line}" if consumer.line else ""
            yield f"    {readable(consumer.bytes):>12}  {consumer.part}: {consumer.name}{where}"
        for title, names in (
            ("not counted: what these take for themselves", self.unknown_needs),
            ("measured at smaller sizes", self.extrapolated),
        ):
            if names:
                yield f"  {title}: {', '.join(names)}"


def estimate(step_or_model: Any, /, *args: Any, **kwargs: Any) -> Estimate:
    """The memory that a call of a training step, or of a model, will need.

    Nothing runs, and nothing of the model's size is allocated; parameters, optimizer state, gradients and generators
    are as they were.

    Args:
        step_or_model: a step as `compile_step` takes it, or what that returns; or a module, or what `compile` returns:
            of these the forward, in the modes that the caller is in, with what is saved for backward where gradients
            are on and something requires them.
        args, kwargs: of the call. Tensors may be real, fake, or on device meta, which stands for the CPU. Or
            `mesh={"data": 64, "tensor": 8}` alone: then the first argument is a function that is called with a
            `DeviceMesh` of these sizes, and gives the step of one rank and its arguments. No process is started.

    Returns:
        The peak of a call like those that follow, and the lowest that a memory limit can ask for.

    Raises:
        BadOptionValue: the target is none of these.
        MemoryLimitTooLow: the step has a limit that no plan keeps.
        DovetailError: the call cannot be recorded, or sizes depend on data.
    """
    ensure_supported_torch()
    if not args and list(kwargs) == ["mesh"] and is_mesh(kwargs["mesh"]):
        on_mesh: Estimate = estimate_on_mesh(estimate, step_or_model, kwargs["mesh"])
        return on_mesh
    name, again = _figured(step_or_model)
    call = flatten_call(args, kwargs)
    figures = again(*call)
    return Estimate(
        name=name,
        peak_bytes=figures.state_bytes + figures.transient_bytes,
        transient_bytes=figures.transient_bytes,
        breakdown={part: figures.parts[part] for part in PARTS},
        consumers=figures.consumers,
        unknown_needs=figures.unknown_needs,
        extrapolated=figures.extrapolated,
        bytes_sent=figures.bytes_sent,
        _figures=figures,
        _again=again,
        _call=call,
        _names=positional_names(_called(step_or_model)),
    )


def _figured(target: Any) -> tuple[str, Figured]:
    """What to call a target, and how a call of it is looked at. Raises: BadOptionValue."""
    if isinstance(target, CompiledStep):
        return _step(target.step, target.state, target.options)
    if isinstance(target, CompiledFunction):
        return _forward(target_of(target), target.options)
    if isinstance(target, FrozenModule):
        reason = "a frozen module was planned when it was frozen"
        expected = "the model; or read dovetail.explain(frozen).call, which has the peak of the frozen module"
        raise BadOptionValue(option="step_or_model", value=target, reason=reason, expected=expected)
    if isinstance(target, torch.nn.Module):
        return _forward(target, resolve_options({}, PASS_NAMES, COMPILE))
    if not callable(target) or isinstance(target, type):
        expected = "a training step or a module"
        raise BadOptionValue(option="step_or_model", value=target, reason="it is called", expected=expected)
    return _step(target, (), resolve_options({}, PASS_NAMES, COMPILE_STEP))


def _called(target: Any) -> Callable[..., Any]:
    if isinstance(target, CompiledFunction):
        return target_of(target)
    called: Callable[..., Any] = target.step if isinstance(target, CompiledStep) else target
    return called


def _name_of(target: Any) -> str:
    return identifier(getattr(target, "__name__", type(target).__name__))


def _quiet(options: Options) -> Options:
    return replace(options, dump=None, compile_trace=None)


# --- steps ------------------------------------------------------------------------------------------------------------


def _step(step: Callable[..., Any], state: Any, options: Options) -> tuple[str, Figured]:
    name = _name_of(step)
    if options.dynamic:
        reason = "one program is for all sizes of the arguments, and an estimate is for those of one call"
        raise BadOptionValue(option="dynamic", value=True, reason=reason, expected="a step without it")
    return name, partial(_figures_of_step, name, step, state, _quiet(options))


def _figures_of_step(
    name: str, step: Callable[..., Any], state: Any, options: Options, leaves: list[Any], structure: Structure
) -> Figures:
    captures = DescribedSteps(VariantCache(name, 1), state, False, options)
    with recording_alone(), without_modes():
        found = captures.described(StepCall(step, leaves, structure))
        return figures_of_step(found.programs, name, found.state, found.late, options, found.hints)


# --- models -----------------------------------------------------------------------------------------------------------


def _forward(target: Callable[..., Any], options: Options) -> tuple[str, Figured]:
    name = _name_of(target)
    return name, partial(_figures_of_forward, name, target, _quiet(options))


def _figures_of_forward(
    name: str, target: Callable[..., Any], options: Options, leaves: list[Any], structure: Structure
) -> Figures:
    with RECORDING, without_modes(), _on_cpu([*_held(target), *leaves]):
        call, recorder, recording = recorded(target, Call.of(target, leaves, structure), None)
        recorder.put_back()
        everything = call.everything
        roles = [slot.role for slot in call.slots]
        state = [
            StateItem(
                call.slots[place].name if place < len(roles) else f"argument {place - len(roles)}",
                roles[place] if place < len(roles) else UserInput(place - len(roles)),
                everything[place],
            )
            for place in recorder.sources
        ]
        state += [StateItem(label, Constant(label), x) for label, x in recording.forward_constants]
        return figures_of_forward(recording, name, state, options, size_hints(recording.specs))


def _held(target: Any) -> list[torch.Tensor]:
    return [*target.parameters(), *target.buffers()] if isinstance(target, torch.nn.Module) else []


@contextlib.contextmanager
def _on_cpu(values: Sequence[Any]) -> Iterator[None]:
    """While active, tensors on device meta among the values are fakes on the CPU, and fakes belong to one mode."""
    mode = new_fake_mode(meta_stands_for=_CPU)
    done: list[tuple[torch.Tensor, torch.Tensor]] = []
    tensors = {id(x): x for x in values if isinstance(x, torch.Tensor) and has_no_numbers(x)}
    try:
        for tensor in tensors.values():
            fake = fake_apart(mode, tensor)
            if isinstance(tensor, torch.nn.Parameter):
                fake = parameter_of_fake(fake)
            exchange_tensors(tensor, fake.requires_grad_(tensor.requires_grad))
            done.append((tensor, fake))
        yield
    finally:
        for tensor, fake in reversed(done):
            exchange_back(tensor, fake)
