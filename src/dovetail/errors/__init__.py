"""Every error dovetail raises on purpose: one class per mistake, each with its code and template.

A raise site passes only facts (keyword arguments); the class turns them into the message. Each message says
what happened, where in the user's code, why, and what to do about it:

    DT-CAPTURE-003 NoFakeKernel: operator mylib.attention has no fake kernel, so its output shape is unknown.
      from      train.py:41 in forward   (layers.3.mlp)
      because   capture runs the program on fake tensors
      try       register one with torch.library.register_fake, or move the operator out of the compiled function
"""

from __future__ import annotations

from dovetail.errors.artifacts import BadArtifact as BadArtifact
from dovetail.errors.artifacts import BadSavePath as BadSavePath
from dovetail.errors.artifacts import NoSampleInputs as NoSampleInputs
from dovetail.errors.artifacts import NotSerializable as NotSerializable
from dovetail.errors.artifacts import OtherArtifactVersion as OtherArtifactVersion
from dovetail.errors.artifacts import RefusedOperands as RefusedOperands
from dovetail.errors.base import DovetailError as DovetailError
from dovetail.errors.base import DovetailWarning as DovetailWarning
from dovetail.errors.compilers import BadCompiledResult as BadCompiledResult
from dovetail.errors.compilers import BadCompiler as BadCompiler
from dovetail.errors.compilers import CompilerUnavailable as CompilerUnavailable
from dovetail.errors.compilers import GraphMismatch as GraphMismatch
from dovetail.errors.constants import FoldedOtherwise as FoldedOtherwise
from dovetail.errors.distributed import CollectiveFailed as CollectiveFailed
from dovetail.errors.distributed import CollectivesDiffer as CollectivesDiffer
from dovetail.errors.distributed import ModuleToPrepare as ModuleToPrepare
from dovetail.errors.distributed import RankFailed as RankFailed
from dovetail.errors.distributed import UnsupportedDistributed as UnsupportedDistributed
from dovetail.errors.donation import BadDonation as BadDonation
from dovetail.errors.donation import UnusableDonation as UnusableDonation
from dovetail.errors.environment import UnsupportedDevice as UnsupportedDevice
from dovetail.errors.environment import UnsupportedTorchVersion as UnsupportedTorchVersion
from dovetail.errors.environment import UntestedDevice as UntestedDevice
from dovetail.errors.freezing import BadDynamicShapes as BadDynamicShapes
from dovetail.errors.freezing import BadWeights as BadWeights
from dovetail.errors.freezing import DiscardedParameter as DiscardedParameter
from dovetail.errors.freezing import FrozenCallMismatch as FrozenCallMismatch
from dovetail.errors.freezing import FrozenElsewhere as FrozenElsewhere
from dovetail.errors.freezing import FrozenIsFixed as FrozenIsFixed
from dovetail.errors.freezing import FrozenNeedsNoGrad as FrozenNeedsNoGrad
from dovetail.errors.freezing import NoSources as NoSources
from dovetail.errors.freezing import NotExportable as NotExportable
from dovetail.errors.freezing import NotFreezable as NotFreezable
from dovetail.errors.freezing import SlowerThanEager as SlowerThanEager
from dovetail.errors.freezing import StaleWeights as StaleWeights
from dovetail.errors.memory import InvalidPlacement as InvalidPlacement
from dovetail.errors.memory import OffloadFailed as OffloadFailed
from dovetail.errors.memory import OffloadFailedLate as OffloadFailedLate
from dovetail.errors.memory import OffloadUnavailable as OffloadUnavailable
from dovetail.errors.options import BadOptionValue as BadOptionValue
from dovetail.errors.options import NotYetSupported as NotYetSupported
from dovetail.errors.options import UnknownOption as UnknownOption
from dovetail.errors.outside import GradientAccess as GradientAccess
from dovetail.errors.outside import IteratorRead as IteratorRead
from dovetail.errors.outside import OtherSettingsInside as OtherSettingsInside
from dovetail.errors.outside import OutsideRead as OutsideRead
from dovetail.errors.outside import WrittenArray as WrittenArray
from dovetail.errors.reduction import BadCheck as BadCheck
from dovetail.errors.reduction import DoesNotFail as DoesNotFail
from dovetail.errors.reduction import FlakyFailure as FlakyFailure
from dovetail.errors.reduction import OtherSearch as OtherSearch
from dovetail.errors.reduction import OutputInTheWay as OutputInTheWay
from dovetail.errors.reports import DumpNotWritten as DumpNotWritten
from dovetail.errors.reports import NothingToExplain as NothingToExplain
from dovetail.errors.reports import ReportNotWritten as ReportNotWritten
from dovetail.errors.step import FreedGraph as FreedGraph
from dovetail.errors.step import GuardMiss as GuardMiss
from dovetail.errors.step import MemoryLimitTooLow as MemoryLimitTooLow
from dovetail.errors.step import ReturnedState as ReturnedState
from dovetail.errors.step import StateChangedOtherwise as StateChangedOtherwise
from dovetail.errors.step import StepInterrupted as StepInterrupted
from dovetail.errors.step import UnownedState as UnownedState
from dovetail.errors.step import UnsupportedStep as UnsupportedStep

# --- capture --------------------------------------------------------------------------------------------------------


class CaptureFailed(DovetailError):
    """The program raised while it was recorded on fake tensors; the original error is the cause."""

    code = "DT-CAPTURE-001"
    summary = "the program could not be recorded: {error}"
    because = "capture runs it once on fake tensors (shapes without data), and that run raised"
    way_out = (
        "check whether it raises in eager mode too; if not, and sizes are symbols, compile for known ones "
        "(dynamic=False); else leave this part uncompiled"
    )


class DataDependentControlFlow(DovetailError):
    """Python control flow, or a shape, depends on the data in a tensor."""

    code = "DT-CAPTURE-002"
    summary = "control flow or a shape depends on tensor data, which is known only at run time."
    because = "`.item()`, `bool(tensor)`, `nonzero` and the like need the data, and capture has only shapes"
    way_out = (
        "use torch.where, torch.cond or a fixed size, or move this part out of the compiled function; "
        'torch.compile(model, backend="dovetail") breaks its graph there, and runs this part in eager mode'
    )


class NoFakeKernel(DovetailError):
    """An operator cannot run on fake tensors."""

    code = "DT-CAPTURE-003"
    summary = "operator {operator} has no fake kernel, so its output shape is unknown."
    because = "capture runs the program on fake tensors"
    way_out = "register one with torch.library.register_fake, or move the operator out of the compiled function"
    rows = ("origin", "stage")


class UnsupportedTensor(DovetailError):
    """A tensor of a layout or class that dovetail does not support."""

    code = "DT-CAPTURE-004"
    summary = "{name} is {kind}, which is not supported."
    because = "dovetail records plain strided tensors only, because it has to know which bytes they occupy"
    way_out = "{hint}"


class UnsupportedOutput(DovetailError):
    """The compiled function returned an object that cannot be reconstructed."""

    code = "DT-CAPTURE-005"
    summary = "the function returned {what}, which cannot be returned from a compiled program."
    because = "{reason}"
    way_out = "{hint}"


class UnsupportedHigherOrderOperator(DovetailError):
    """A higher-order operator (cond, scan, ...) whose subgraphs cannot be captured."""

    code = "DT-CAPTURE-006"
    summary = "the higher-order operator {operator} is not supported yet."
    because = (
        "subgraphs are captured for cond, map, scan and while_loop only, where they do not write their inputs "
        "and torch can trace them and their gradients"
    )
    way_out = "return the new value instead of writing an input, or move this part out of the compiled function"
    rows = ("origin", "stage")


class PythonSideEffect(DovetailError):
    """The program changed a Python object while it was recorded; a compiled program would not repeat the change."""

    code = "DT-CAPTURE-007"
    summary = "the program {what} while it was recorded."
    because = "only tensor operations are recorded, so the change would happen once and never again"
    way_out = 'keep such state in a buffer and update it in place, or use torch.compile(backend="dovetail")'


class BackwardInside(DovetailError):
    """The program calls backward() itself, which accumulates gradients in the `.grad` of leaf tensors."""

    code = "DT-CAPTURE-011"
    summary = "the program calls backward() while it is recorded."
    because = "gradients written to `.grad` are not outputs, so a compiled program would not produce them"
    way_out = "compile the whole step with dovetail.compile_step, or return the loss and call backward on it outside"
    rows = ("origin",)


class GeneratorMadeInside(DovetailError):
    """The program creates a random number generator."""

    code = "DT-CAPTURE-009"
    summary = "the program creates a torch.Generator."
    because = "the generator would be created once, during recording, instead of again in each call"
    way_out = "create it outside and pass it in or close over it, or use torch's default generator"


class InvalidGraphModule(DovetailError):
    """A torch.fx.GraphModule is not a graph of ATen operators with `meta["val"]` on its nodes."""

    code = "DT-CAPTURE-008"
    summary = "node {node} of the graph module cannot be read: {reason}."
    because = (
        "a program consists of calls of operators with a schema (`torch.ops.aten.add.Tensor`), run once on fake tensors"
    )
    way_out = (
        "trace it: make_fx(functionalize(f))(*inputs), or take an exported program `ep`: "
        "ep.run_decompositions().graph_module, or ep.run_decompositions().module(check_guards=False)"
    )
    rows = ()


# --- passes over graph modules ---------------------------------------------------------------------------


class SampleMismatch(DovetailError):
    """The sample inputs of a pass do not match the inputs of its graph module."""

    code = "DT-PASS-001"
    summary = "{name} is {given}, and the graph module takes {expected}."
    because = "the graph was traced for different inputs: for these, it may fail or compute something else"
    way_out = "pass samples like the traced inputs, or none if every placeholder has its meta['val']"


class MissingSamples(DovetailError):
    """The shape and dtype of a graph module's input are unknown."""

    code = "DT-PASS-002"
    summary = "the shape and dtype of placeholder {name} of the graph module are unknown."
    because = "it has no meta['val'], and no sample inputs were given"
    way_out = "pass sample inputs, `the_pass(module, x, y)`: tensors, fake tensors or meta tensors"


class NotAGraphModule(DovetailError):
    """A pass over graph modules was given something else."""

    code = "DT-PASS-003"
    summary = "{given} is not a torch.fx.GraphModule."
    because = "passes work on graphs of ATen operators; a module or a function has none until it is traced"
    way_out = (
        "trace it: make_fx(functionalize(f))(*inputs), or "
        "torch.export.export(model, inputs).run_decompositions().graph_module"
    )
    rows = ()


# --- aliasing and mutation ----------------------------------------------------------------------------------


class OverlappingMutatedInputs(DovetailError):
    """Inputs share memory that the program writes, in a way that cannot be compiled."""

    code = "DT-ALIAS-001"
    summary = "input {written} shares memory with {other}, and the program writes that memory."
    because = "{reason}"
    way_out = "pass a clone of one of them, or move the write out of the compiled function"


class UnsupportedInputMutation(DovetailError):
    """A mutation of an input that cannot be replayed."""

    code = "DT-ALIAS-002"
    summary = "the program changes {what} of input {name}."
    because = "a compiled program can change only the data, the shape, the strides and requires_grad of an input"
    way_out = "do it outside the compiled function, or work on a clone"


class OrderDependentWrite(DovetailError):
    """An operator writes memory that overlaps itself or another of its operands."""

    code = "DT-ALIAS-003"
    summary = "the operator writes {written}, which overlaps {other}."
    because = "the result depends on the order in which elements are visited, which is unspecified"
    way_out = "clone what overlaps: the written tensor or the operand; or write the tensors one after the other"


class DtypeChangingWrite(DovetailError):
    """The result of an in-place or `out=` operator cannot be cast to the dtype of the tensor that it writes."""

    code = "DT-ALIAS-004"
    summary = "the result type {made} can't be cast to {wanted}, the dtype of the tensor that is written in-place."
    because = "eager refuses the write: values would be lost"
    way_out = "use the out-of-place operator, or convert the operands first"


class UnexpectedSize(DovetailError):
    """Data break an assumption of the recorded program: about a size, or that a check of the code does not raise."""

    code = "DT-CAPTURE-010"
    summary = "a number that data decide is not as expected: {fact} does not hold."
    because = (
        "the program was recorded before the data were known, and assumes this (for a broadcast, or a check passed)"
    )
    way_out = "call it in eager mode with these data, which says more; torch._check sizes before they are used"


# --- autograd -----------------------------------------------------------------------------------------------


class DoubleBackwardUnsupported(DovetailError):
    """A second derivative through a compiled program was requested."""

    code = "DT-AUTOGRAD-001"
    summary = "backward was called with create_graph=True through a compiled program."
    because = "the compiled backward is a fixed program that is not itself differentiable, and {reason}"
    way_out = "{hint}"


class ForwardModeUnsupported(DovetailError):
    """Forward-mode derivatives through a compiled program were requested."""

    code = "DT-AUTOGRAD-004"
    summary = "an input of a compiled program carries a forward-mode tangent (`torch.autograd.forward_ad`)."
    because = "the compiled forward is a fixed program and has no forward-mode derivative"
    way_out = "use torch.func.jvp inside the compiled function, or leave this function uncompiled"


class BackwardNeedsUnsavedValue(DovetailError):
    """Backward, for another set of output gradients than expected, reads a value that forward did not save."""

    code = "DT-AUTOGRAD-002"
    summary = "backward for the outputs {pattern} reads {names}, which forward did not save."
    because = "forward was compiled for another set of outputs that receive gradients"
    way_out = "make every output that can receive a gradient part of the loss, or leave this function uncompiled"


class GradientOfResult(DovetailError):
    """The gradient of a result was asked for, and flows within a call, from another result of it."""

    code = "DT-AUTOGRAD-005"
    summary = "the gradient of a result is asked for that comes from another result of the same call."
    because = "all results of a compiled call are one node of autograd, and {reason}"
    way_out = "{hint}"


class LateSizeAssumption(DovetailError):
    """Backward, for an unusual set of output gradients, relies on an unchecked assumption about dynamic sizes."""

    code = "DT-AUTOGRAD-003"
    summary = (
        "backward for the gradients {pattern} relies on a fact about dynamic sizes that compilation did not check."
    )
    because = "sizes are guarded when the forward is compiled, and this backward was recorded later"
    way_out = "compile with dynamic=False, or let either every output or only the loss receive a gradient"


# --- signatures ---------------------------------------------------------------------------------------------


class UnsupportedSignature(DovetailError):
    """A part of a graph signature cannot be expressed in another signature format."""

    code = "DT-SIGNATURE-001"
    summary = "{what} cannot be expressed in {where}."
    because = "{reason}"
    way_out = "{hint}"


# --- running ------------------------------------------------------------------------------------------------


class InvalidProgram(DovetailError):
    """A program breaks a rule of its stage: a bug in a pass, caught by the verifier."""

    code = "DT-INTERNAL-001"
    summary = "program {program} breaks a rule of stage {stage!r}: {rule}."
    because = "{detail}"
    way_out = "this is a bug in dovetail: please report it with the dump that DOVETAIL_DUMP=dir writes"
    rows = ("node", "origin")


class PassChangedMeaning(DovetailError):
    """Running the program before and after a pass gave different results."""

    code = "DT-INTERNAL-002"
    summary = "pass {name!r} changed the result of program {program}: {detail}."
    because = "DOVETAIL_VERIFY=2 runs both sides of every pass on random inputs"
    way_out = "this is a bug in dovetail: report it with the dump of DOVETAIL_DUMP=dir; DOVETAIL_SKIP={name} avoids it"
    rows = ()


class NotFunctional(DovetailError):
    """A pass needs a functional program, and a node of this one writes an operand."""

    code = "DT-INPLACE-001"
    summary = "node {node} is not functional: {reason}."
    because = "in-place operators depend on an order that the pass does not see"
    way_out = (
        "trace with torch.func.functionalize, `make_fx(functionalize(f))`, or export: "
        "`torch.export.export(model, inputs).run_decompositions().graph_module`"
    )
    rows = ("origin",)


class InplaceMismatch(DovetailError):
    """An in-place program differs from the functional program it was made from: caught by the checker."""

    code = "DT-INPLACE-010"
    summary = "the in-place program {program} differs from the functional program it was made from: {detail}."
    because = "{reason}"
    way_out = "this is a bug in dovetail: please report it with the dump that DOVETAIL_DUMP=dir writes"
    rows = ("node", "origin")


def all_error_classes() -> tuple[type[DovetailError], ...]:
    """Every concrete error class, by code."""
    found: list[type[DovetailError]] = []
    queue = list(DovetailError.__subclasses__())
    while queue:
        cls = queue.pop()
        found.append(cls)
        queue.extend(cls.__subclasses__())
    return tuple(sorted(found, key=lambda cls: cls.code))
