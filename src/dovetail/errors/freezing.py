"""Errors about frozen programs."""

from __future__ import annotations

from dovetail.errors.base import DovetailError, DovetailWarning


class NotFreezable(DovetailError):
    """A model, or one of its methods, cannot be frozen."""

    code = "DT-FREEZE-001"
    summary = "{what} cannot be frozen: {reason}."
    because = "a frozen program contains its weights and runs without the model's code"
    way_out = "{hint}"


class BadDynamicShapes(DovetailError):
    """`dynamic_shapes` does not match the example inputs, or names a size that cannot vary."""

    code = "DT-FREEZE-002"
    summary = "the sizes declared in dynamic_shapes cannot all vary: {reason}."
    because = "the program must be valid for every declared size"
    way_out = "{hint}"


class FrozenCallMismatch(DovetailError):
    """A call does not match what the program was frozen for."""

    code = "DT-FREEZE-003"
    summary = "this call does not match what {name} was frozen for: {reason}."
    because = "{because}"
    way_out = "{hint}"


class FrozenNeedsNoGrad(DovetailError):
    """A frozen program was called with an input that requires a gradient."""

    code = "DT-FREEZE-004"
    summary = "{name} is frozen and computes no gradients, but {argument} requires one."
    because = "a frozen program is for inference: its weights are constants and nothing is saved for backward"
    way_out = "call it under torch.no_grad(), detach the input, or freeze with on_grad='original'"


class StaleWeights(DovetailError):
    """The model's weights have changed since it was frozen."""

    code = "DT-FREEZE-005"
    summary = "the model has changed since it was frozen: {changed}."
    because = "the frozen program holds the old weights, some of them folded into others"
    way_out = "call frozen.refresh(), freeze again, or freeze with on_stale='refresh' or 'ignore'"


class DiscardedParameter(DovetailError):
    """A model was used after its parameters were moved to a frozen program."""

    code = "DT-FREEZE-006"
    summary = "{name} of {module} was discarded on {when}."
    because = "the model was frozen with discard_originals=True, which moves its memory to the frozen program"
    way_out = "{hint}"


class BadWeights(DovetailError):
    """Weights do not match a frozen program."""

    code = "DT-FREEZE-007"
    summary = "the weights do not fit: {reason}."
    because = "each weight replaces the one with the same name, shape and dtype"
    way_out = "{hint}"


class NoSources(DovetailError):
    """The original weights are needed, but were not kept."""

    code = "DT-FREEZE-008"
    summary = "{what} needs the original, unfolded weights, which were not kept."
    because = "a frozen program holds only its folded constants; keeping the originals too would double their memory"
    way_out = "freeze with keep_sources='memory' or 'file'{hint}"


class FrozenElsewhere(DovetailError):
    """A file holds a frozen program for another torch version, or for a device or instructions that are missing."""

    code = "DT-FREEZE-010"
    summary = "{path} is for {wanted}, but this machine has {found}."
    because = "a program calls the operators of one torch version, on the devices that it was frozen for"
    way_out = "{hint}"


class NotExportable(DovetailError):
    """A frozen method cannot be written as a torch.export program."""

    code = "DT-FREEZE-011"
    summary = "{method} cannot be exported: {reason}."
    because = "torch.export has to trace the frozen program again"
    way_out = "{hint}"


class FrozenIsFixed(DovetailError):
    """A frozen program was asked to do something that only a model can do."""

    code = "DT-FREEZE-009"
    summary = "a frozen program cannot {what}."
    because = "its behaviour was fixed when it was frozen"
    way_out = "do it with the model, then freeze the model again"


class SlowerThanEager(DovetailWarning):
    """A frozen method took longer than the model's own when it was measured."""

    def __init__(self, method: str, measured: str) -> None:
        super().__init__(
            f"frozen {method} takes {measured}, measured on this machine with the example's arguments. "
            'Try passes="fast", or keep the model as it is. Where a call runs only a few operators, checking its '
            "arguments costs more than the program saves."
        )
