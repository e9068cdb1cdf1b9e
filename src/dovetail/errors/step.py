"""Errors about compiled training steps."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class UnsupportedStep(DovetailError):
    """The step does something that a compiled program cannot repeat."""

    code = "DT-STEP-001"
    summary = "the step {what}."
    because = "{why}"
    way_out = "{hint}; or compile_step(..., on_unsupported='eager')"
    rows = ("origin",)


class UnownedState(DovetailError):
    """The step writes an existing tensor that nothing within its reach owns."""

    code = "DT-STEP-002"
    summary = "the step writes {name}, and no module, optimizer, variable or argument within its reach owns it."
    because = "the next call might use a different tensor, which dovetail could not notice"
    way_out = "name the tensor or its owner: compile_step(step, state=[...])"
    rows = ("origin",)


class StepInterrupted(DovetailError):
    """A step failed after it had started to update its state, or behind a collective, when other ranks had gone on."""

    code = "DT-STEP-003"
    summary = "the step failed after {count} of {total} tensors were updated: {names}."
    because = "{error}"
    way_out = "{hint}"
    rows = ("origin",)


class ReturnedState(DovetailError):
    """The step returns memory that belongs to its state."""

    code = "DT-STEP-004"
    summary = "the step returns {what}, whose memory belongs to {name}."
    because = "later steps overwrite that memory, and may use it for other values in between"
    way_out = "return a copy (x.clone()), or read it from its owner after the step"
    rows = ("origin",)


class StateChangedOtherwise(DovetailError):
    """The step changes a state tensor or its owner other than by writing the tensor's contents."""

    code = "DT-STEP-005"
    summary = "the step {what}."
    because = "{why}"
    way_out = "{hint}"
    rows = ("origin",)


class FreedGraph(DovetailError):
    """Backward was called on a result of a compiled step."""

    code = "DT-STEP-006"
    summary = "the result of a compiled step has no autograd graph."
    because = "the step ran forward and backward as one program, which saves nothing for later"
    way_out = "call backward inside the step, or return x.detach()"
    rows = ()


class GuardMiss(Exception):
    """A question about tensor data was answered differently than at recording. Never reaches the user.

    number: which question it was.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class MemoryLimitTooLow(DovetailError):
    """No plan was found that keeps a program under the memory limit."""

    code = "DT-MEMORY-001"
    summary = "the {what} does not fit in {limit}."
    because = "the lowest peak found is {floor} ({floor_bytes} bytes): {transient} above {state}"
    way_out = "raise it to {least}, {others}"
    rows = ()
