"""Errors about frozen programs."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class NotFreezable(DovetailError):
    """A model, or a method of it, cannot be frozen."""

    code = "DT-FREEZE-001"
    summary = "{what} cannot be frozen: {reason}."
    because = "a frozen program has its weights inside, and runs without the model's code"
    way_out = "{hint}"


class BadDynamicShapes(DovetailError):
    """`dynamic_shapes` does not fit the example inputs, or a size that it names is not free."""

    code = "DT-FREEZE-002"
    summary = "the sizes asked for in dynamic_shapes cannot be free: {reason}."
    because = "the program must hold for every size that is declared"
    way_out = "{hint}"


class FrozenCallMismatch(DovetailError):
    """A call does not fit what the program was frozen for."""

    code = "DT-FREEZE-003"
    summary = "{name} was frozen for other calls: {reason}."
    because = "{because}"
    way_out = "{hint}"


class FrozenNeedsNoGrad(DovetailError):
    """A frozen program is called with an input that wants a gradient."""

    code = "DT-FREEZE-004"
    summary = "{name} is frozen and gives no gradients, and {argument} requires one."
    because = "a frozen program is for inference: its weights are constants and nothing is kept for a backward"
    way_out = "call it under torch.no_grad(), detach the input, or freeze with on_grad='original'"


class StaleWeights(DovetailError):
    """The model's weights have changed since it was frozen."""

    code = "DT-FREEZE-005"
    summary = "the model has changed since it was frozen: {changed}."
    because = "the frozen program holds the weights from before, some of them folded into others"
    way_out = "call frozen.refresh(), freeze again, or freeze with on_stale='refresh' or 'ignore'"


class DiscardedParameter(DovetailError):
    """A model is used whose parameters went to a frozen program."""

    code = "DT-FREEZE-006"
    summary = "{name} of {module} was discarded on {when}."
    because = "the model was frozen with discard_originals=True, which hands its memory to the frozen program"
    way_out = "{hint}"


class BadWeights(DovetailError):
    """Weights do not fit a frozen program."""

    code = "DT-FREEZE-007"
    summary = "the weights do not fit: {reason}."
    because = "every weight takes the place of one of the same name, shape and dtype"
    way_out = "{hint}"


class NoSources(DovetailError):
    """The weights from before folding are asked for, and were not kept."""

    code = "DT-FREEZE-008"
    summary = "{what} needs the weights as they were before folding, which were not kept."
    because = "a frozen program holds its constants as they are used; keeping both costs their memory twice"
    way_out = "freeze with keep_sources='memory' or 'file'{hint}"


class FrozenElsewhere(DovetailError):
    """A file holds a frozen program for another torch, or for a device that is not here."""

    code = "DT-FREEZE-010"
    summary = "{path} is for {wanted}, and here is {found}."
    because = "a program calls the operators of one version of torch, on the devices that it was frozen for"
    way_out = "{hint}"


class NotExportable(DovetailError):
    """A frozen method cannot be written as an exported program of torch's."""

    code = "DT-FREEZE-011"
    summary = "{method} cannot be exported: {reason}."
    because = "torch.export has to trace the frozen program once more"
    way_out = "save it with frozen.save(path), which dovetail.load reads without torch.export"


class FrozenIsFixed(DovetailError):
    """Something is asked of a frozen program that only a model can do."""

    code = "DT-FREEZE-009"
    summary = "a frozen program cannot {what}."
    because = "what it does was decided when it was frozen"
    way_out = "do it to the model, then freeze it again"
