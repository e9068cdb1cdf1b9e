"""A step as it is recorded for an estimate: its programs and what it finds there before, and nothing of it runs.

Tensors without numbers (on device meta, or fakes) are recorded as tensors of their device; those on meta as on the CPU.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dovetail.capture.item_log import ItemHints
from dovetail.capture.step_programs import StepPrograms
from dovetail.capture.step_recording import StepRecording
from dovetail.errors import UnsupportedStep
from dovetail.frontends.step.attempts import StateToMake, free_locals
from dovetail.frontends.step.capture import StepCapture
from dovetail.frontends.step.captures import StepCaptures
from dovetail.frontends.step.guard import StepCall
from dovetail.frontends.step.made_state import MadeState, take_away
from dovetail.frontends.step.recorded import Recorded
from dovetail.frontends.step.searches import SearchCalled
from dovetail.frontends.step.tensor_kinds import kept_sources
from dovetail.ir.calling import FromSlot
from dovetail.ir.program import Value
from dovetail.ir.signature import Constant, UserInput
from dovetail.ir.sizes import Number, Size
from dovetail.passes.collection import collection_paused
from dovetail.pipeline.estimate import StateItem
from dovetail.torch_compat.dispatch import without_modes
from dovetail.torch_compat.dtensors import is_dtensor
from dovetail.torch_compat.fakes import mode_of, new_fake_mode, number_behind


@dataclass(frozen=True, slots=True)
class StepDescription:
    """state: what is there when a call begins. late: tensors whose old gradients are dropped once checks have passed.

    hints: a number for each size symbol.
    """

    programs: StepPrograms
    state: tuple[StateItem, ...]
    late: tuple[StateItem, ...]
    hints: Mapping[str, Number]


class _Describing(StepCapture):
    recording = partial(StepRecording, meta_stands_for=torch.device("cpu"))

    def variant(
        self, name: str, hints: ItemHints, *, assume_cleared: bool = False, calls_hooks: bool = False
    ) -> tuple[None, Recorded]:
        """A recording, and no program of it."""
        with collection_paused():
            try:
                return None, self._recorded(name, hints, assume_cleared, calls_hooks)
            except BaseException as error:
                free_locals(error)
                raise


class _DescribedState(MadeState):
    def stand_ins(self) -> dict[int, torch.Tensor]:
        """Tensors like those that the step computes; those of more than one number on device meta."""
        with torch.device("cpu"):
            made = self.alike(_place_of)
        for place, tensor in made.items():
            if tensor.device.type != "meta":
                self._begin(place, tensor)
        return made


def _place_of(item: torch.Tensor) -> torch.device:
    is_number = item.untyped_storage().nbytes() == item.element_size()
    return item.device if is_number or item.device.type != "cpu" else torch.device("meta")


def _leaves_that_get_gradients(recorded: Recorded) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors of the state in which a first call leaves gradients that later calls look at, each with such a one.

    They add to it, or fill it with zeros. A step that begins by dropping gradients finds none that counts.
    """
    programs, tensors = recorded.programs, recorded.recording.tensors
    found = []
    for gradient in programs.plan.gradients:
        leaf, rule = tensors[gradient.input], gradient.exit
        is_new = isinstance(rule, FromSlot) and not (gradient.had or gradient.is_cleared)
        if isinstance(rule, FromSlot) and is_new and not isinstance(leaf.role, UserInput):
            value = programs.functional.outputs[rule.slot]
            if isinstance(value, Value) and not is_dtensor(leaf.tensor):
                found.append((leaf.tensor, _gradient_of(leaf.tensor, value.tensor.stride)))
    return found


def _gradient_of(leaf: torch.Tensor, stride: Sequence[Size]) -> torch.Tensor:
    """What may be assigned to the `.grad` of a tensor, and has no memory."""
    steps = [step for step in stride if isinstance(step, int)]
    with without_modes(), contextlib.nullcontext() if leaf.device.type == "meta" else mode_of(leaf) or new_fake_mode():
        return torch.empty_strided(leaf.shape, steps, dtype=leaf.dtype, device=leaf.device)


class DescribedSteps(StepCaptures):
    """The captures of a step that is described only."""

    capture = _Describing

    def described(self, call: StepCall) -> StepDescription:
        """A description of a call as later calls find it. Nothing runs. Raises: DovetailError; all is as it was."""
        self.begin(call)
        try:
            _, recorded = self._attempted(self._reachable(call), call)
            made = _DescribedState(recorded) if recorded.made else None
            leaves = _leaves_that_get_gradients(recorded)
            is_state_known = made is not None and made.can_be_stood_in_for
            if is_state_known or leaves:
                before = made.before if made is not None and is_state_known else []
                try:
                    if made is not None and is_state_known:
                        made.put(made.stand_ins())
                    for leaf, gradient in leaves:
                        leaf.grad = gradient
                    del made, recorded  # two recordings at a time would take twice the memory
                    gc.collect()
                    _, recorded = self._attempted(self._reachable(call), call)
                finally:
                    for leaf, _ in leaves:
                        leaf.grad = None
                    take_away(before)
            return _description(recorded)
        except SearchCalled:
            raise UnsupportedStep(
                what="calls LBFGS",
                why="how often its search runs the closure depends on the losses",
                hint="estimate the closure by itself",
            ) from None
        except StateToMake as making:
            raise making.error from None


def _description(recorded: Recorded) -> StepDescription:
    recording, programs, sources = recorded.recording, recorded.programs, recorded.sources
    gradients = programs.plan.gradients
    cleared = {gradient.input for gradient in gradients if gradient.is_cleared}
    behind = {id(number_behind(x.tensor)) for x in recording.tensors}
    items = [StateItem(x.label, x.role, x.tensor) for x in recording.tensors]
    kept = [
        items[x]
        for x in kept_sources(sources, cleared)
        if not is_dtensor(items[x].tensor) and id(items[x].tensor) not in behind
    ]
    met = [StateItem("a tensor found while recording", Constant(""), x) for x in programs.constants]
    late = [items[g.input] for g in gradients if g.is_cleared and not g.is_first]
    return StepDescription(programs, (*kept, *met), tuple(late), recording.size_hints)
