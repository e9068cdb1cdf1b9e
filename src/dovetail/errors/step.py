"""Mistakes in a training step that is compiled as a whole."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class UnsupportedStep(DovetailError):
    """The step does something that no program of it could repeat."""

    code = "DT-STEP-001"
    summary = "the step {what}."
    because = "{why}"
    way_out = "{hint}; or compile_step(..., on_unsupported='eager')"
    rows = ("origin",)


class UnownedState(DovetailError):
    """The step writes a tensor that existed before and that nothing it reaches holds."""

    code = "DT-STEP-002"
    summary = "the step writes {name}, and no module, optimizer, variable or argument that it reaches holds it."
    because = "the tensor could be another one in the next call, and nobody would notice"
    way_out = "name the tensor, or what holds it: compile_step(step, state=[...])"
    rows = ("origin",)


class StepInterrupted(DovetailError):
    """A step failed after it had begun to write its state."""

    code = "DT-STEP-003"
    summary = "the step failed after {count} of {total} tensors were updated: {names}."
    because = "{error}"
    way_out = "load a checkpoint, as after an error in the middle of an eager step"
    rows = ("origin",)


class ReturnedState(DovetailError):
    """The step returns memory of its state."""

    code = "DT-STEP-004"
    summary = "the step returns {what}, whose memory belongs to {name}."
    because = "later steps write that memory in place, and may use it for something else in between"
    way_out = "return a copy (x.clone()), or read it from its owner after the step"
    rows = ("origin",)


class StateChangedOtherwise(DovetailError):
    """The step changes a state tensor, or what holds it, in another way than by writing its contents."""

    code = "DT-STEP-005"
    summary = "the step {what}."
    because = "{why}"
    way_out = "{hint}"
    rows = ("origin",)


class FreedGraph(DovetailError):
    """Backward through a result of a compiled step."""

    code = "DT-STEP-006"
    summary = "a result of a compiled step has no graph to run backward through."
    because = "the step ran forward and backward as one program, which keeps nothing for later"
    way_out = "call backward inside of the step, or return x.detach()"
    rows = ()


class GuardMiss(Exception):
    """A question about numbers got another answer than when the program was recorded. Never reaches the user.

    number: which question it was.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
