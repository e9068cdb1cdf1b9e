"""Every error dovetail raises on purpose: one class per mistake, each with its code and template.

A raise site gives facts only (keyword arguments); the class turns them into the message. Each message names
what happened, where in the user's code, because of what, and the way out:

    DT-CAPTURE-002 DataDependentControlFlow: the program branches on a value that is only known when it runs.
      operator  aten._local_scalar_dense.default
      from      train.py:41 in forward   (layers.3.mlp)
      because   `.item()`, `bool(tensor)` or `int(tensor)` needs the numbers, and capture has only shapes
      try       use torch.where, or keep this branch outside of the compiled function
"""

from __future__ import annotations

from dovetail.errors.artifacts import BadArtifact as BadArtifact
from dovetail.errors.artifacts import NotSerializable as NotSerializable
from dovetail.errors.artifacts import OtherArtifactVersion as OtherArtifactVersion
from dovetail.errors.base import DovetailError as DovetailError
from dovetail.errors.base import DovetailWarning as DovetailWarning
from dovetail.errors.compilers import BadCompiledResult as BadCompiledResult
from dovetail.errors.compilers import BadCompiler as BadCompiler
from dovetail.errors.compilers import CompilerUnavailable as CompilerUnavailable
from dovetail.errors.compilers import GraphMismatch as GraphMismatch
from dovetail.errors.constants import FoldedOtherwise as FoldedOtherwise
from dovetail.errors.donation import BadDonation as BadDonation
from dovetail.errors.donation import UnusableDonation as UnusableDonation
from dovetail.errors.environment import MissingDependency as MissingDependency
from dovetail.errors.environment import UnsupportedDevice as UnsupportedDevice
from dovetail.errors.environment import UnsupportedTorchVersion as UnsupportedTorchVersion
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
from dovetail.errors.freezing import StaleWeights as StaleWeights
from dovetail.errors.reduction import BadCheck as BadCheck
from dovetail.errors.reduction import DoesNotFail as DoesNotFail
from dovetail.errors.reduction import FlakyFailure as FlakyFailure
from dovetail.errors.reduction import OtherSearch as OtherSearch
from dovetail.errors.reduction import OutputInTheWay as OutputInTheWay
from dovetail.errors.reports import NothingToExplain as NothingToExplain
from dovetail.errors.reports import ReportNotWritten as ReportNotWritten
from dovetail.errors.step import FreedGraph as FreedGraph
from dovetail.errors.step import GuardMiss as GuardMiss
from dovetail.errors.step import ReturnedState as ReturnedState
from dovetail.errors.step import StateChangedOtherwise as StateChangedOtherwise
from dovetail.errors.step import StepInterrupted as StepInterrupted
from dovetail.errors.step import UnownedState as UnownedState
from dovetail.errors.step import UnsupportedStep as UnsupportedStep

# --- options ------------------------------------------------------------------------------------------------------


class UnknownOption(DovetailError):
    """An option name that does not exist."""

    code = "DT-OPTION-001"
    summary = "there is no option {option!r}."
    because = "known options: {known}"
    way_out = "{suggestion}"
    rows = ()


class BadOptionValue(DovetailError):
    """An option was given a value of the wrong type or range."""

    code = "DT-OPTION-002"
    summary = "option {option!r} cannot be {value!r}."
    because = "{reason}"
    way_out = "give {expected}"
    rows = ()


class NotYetSupported(DovetailError):
    """A documented feature that a later version brings."""

    code = "DT-OPTION-003"
    summary = "{feature} is not supported yet."
    because = "{reason}"
    way_out = "{hint}"


# --- capture --------------------------------------------------------------------------------------------------------


class CaptureFailed(DovetailError):
    """The program raised while it was recorded on fake tensors; the original error is the cause."""

    code = "DT-CAPTURE-001"
    summary = "the program could not be recorded: {error}"
    because = "it was run once on fake tensors (shapes without numbers) and raised"
    way_out = "run it in eager mode to see whether it raises there too; if it does not, leave this part uncompiled"


class DataDependentControlFlow(DovetailError):
    """Python control flow, or a shape, depends on the numbers in a tensor."""

    code = "DT-CAPTURE-002"
    summary = "the program branches on, or sizes a tensor by, a value that is only known when it runs."
    because = "`.item()`, `bool(tensor)`, `nonzero` and the like need the numbers, and capture has only shapes"
    way_out = "use torch.where or a fixed size, or keep this part outside of the compiled function"


class NoFakeKernel(DovetailError):
    """An operator cannot be run on fake tensors."""

    code = "DT-CAPTURE-003"
    summary = "operator {operator} has no fake kernel, so its output shape is unknown."
    because = "capture runs the program on fake tensors"
    way_out = "register one with torch.library.register_fake, or keep the operator outside of the compiled function"
    rows = ("origin", "stage")


class UnsupportedTensor(DovetailError):
    """A tensor of a layout or class that dovetail does not support."""

    code = "DT-CAPTURE-004"
    summary = "{name} is {kind}, which is not supported."
    because = "programs are recorded over strided tensors whose bytes are known"
    way_out = "{hint}"


class UnsupportedOutput(DovetailError):
    """The compiled function returned an object that cannot be rebuilt."""

    code = "DT-CAPTURE-005"
    summary = "the function returned {what}, which cannot be returned from a compiled program."
    because = "outputs are tensors, numbers, strings or None inside of tuples, lists, dicts and registered pytrees"
    way_out = "return tensors, or register the class with torch.utils._pytree.register_pytree_node"


class UnsupportedHigherOrderOperator(DovetailError):
    """A higher-order operator (cond, scan, ...) whose sub-programs cannot be captured."""

    code = "DT-CAPTURE-006"
    summary = "the higher-order operator {operator} is not supported yet."
    because = (
        "sub-programs are captured for cond, map, scan and while_loop, where they write nothing that they are given "
        "and torch can make a graph of them and of their gradients"
    )
    way_out = "return what is written instead, or keep this part outside of the compiled function"
    rows = ("origin", "stage")


class PythonSideEffect(DovetailError):
    """The program changed a Python object while it ran; a compiled program would not repeat that."""

    code = "DT-CAPTURE-007"
    summary = "the program {what} while it was recorded."
    because = "only tensor operations are recorded, so the change would happen once and never again"
    way_out = 'keep such state in a buffer that is written in place, or use torch.compile(backend="dovetail")'


class BackwardInside(DovetailError):
    """The program calls backward() itself, which leaves gradients in the `.grad` of leaves."""

    code = "DT-CAPTURE-011"
    summary = "the program calls backward() while it is recorded."
    because = "gradients that it leaves in `.grad` are no results, and a compiled program would not leave them there"
    way_out = "compile the whole step with dovetail.compile_step, or return the loss and call backward on it outside"
    rows = ("origin",)


class GeneratorMadeInside(DovetailError):
    """The program makes a random generator of its own."""

    code = "DT-CAPTURE-009"
    summary = "the program makes a torch.Generator."
    because = "the generator would be made once, while recording, and run on in later calls"
    way_out = "make it outside and hand it in or close over it, or draw from torch's default generator"


class InvalidGraphModule(DovetailError):
    """A torch.fx.GraphModule that is not a graph of ATen operators with described values."""

    code = "DT-CAPTURE-008"
    summary = "node {node} of the graph module cannot be read: {reason}."
    because = (
        "a program is made of operator calls with a schema (`torch.ops.aten.add.Tensor`), run once on fake tensors"
    )
    way_out = "make the graph with make_fx, or with torch.export: `ep.graph_module` or `ep.module(check_guards=False)`"
    rows = ()


# --- passes over graph modules ---------------------------------------------------------------------------


class SampleMismatch(DovetailError):
    """The sample inputs of a pass are not what its graph module was made for."""

    code = "DT-PASS-001"
    summary = "{name} is {given}, and the graph module takes {expected}."
    because = "the graph was traced for other inputs: it may compute something else, or nothing, for these"
    way_out = "give samples like the traced inputs, or none where each placeholder has its meta['val']"


class MissingSamples(DovetailError):
    """Nothing says what an input of a graph module is like."""

    code = "DT-PASS-002"
    summary = "placeholder {name} of the graph module is not described."
    because = "it has no meta['val'], and no sample inputs were given"
    way_out = "give sample inputs, `the_pass(module, x, y)`: tensors, fake tensors or tensors of device meta"


class NotAGraphModule(DovetailError):
    """A pass over graph modules was given something else."""

    code = "DT-PASS-003"
    summary = "{given} is no torch.fx.GraphModule."
    because = "passes read graphs of ATen operators; a module or a function has none until it is traced"
    way_out = "trace it: make_fx(f)(*inputs), or torch.export.export(model, inputs).graph_module"
    rows = ()


# --- aliasing and mutation ----------------------------------------------------------------------------------


class OverlappingMutatedInputs(DovetailError):
    """Inputs share memory, of which the program writes a part, in a way for which no program can be made."""

    code = "DT-ALIAS-001"
    summary = "input {written} is written by the program, or lies in memory that is, together with {other}."
    because = "{reason}"
    way_out = "pass a clone of one of them, or keep the write outside of the compiled function"


class UnsupportedInputMutation(DovetailError):
    """A mutation of an input that cannot be replayed."""

    code = "DT-ALIAS-002"
    summary = "the program changes {what} of input {name}."
    because = "a compiled program writes data of inputs, and repeats changes of shape, strides and requires_grad only"
    way_out = "do it outside of the compiled function, or work on a clone"


class OrderDependentWrite(DovetailError):
    """An operator writes memory that another of its operands reads or writes as well, in part."""

    code = "DT-ALIAS-003"
    summary = "the operator writes {written}, which overlaps {other}, another of its operands."
    because = "what comes out depends on the order in which elements are visited, which nobody promises"
    way_out = "clone the operand that is read, or write one tensor after the other"


class DtypeChangingWrite(DovetailError):
    """An operator in place, or with `out=`, whose result has a dtype that does not fit into the written tensor."""

    code = "DT-ALIAS-004"
    summary = "the result type {made} can't be cast to {wanted}, that of the tensor which the operator writes in-place."
    because = "eager refuses the write: numbers would be lost"
    way_out = "write y = ... instead of in-place, or convert the operands first"


class UnexpectedSize(DovetailError):
    """A size that depends on data is not what the recorded program relies on."""

    code = "DT-CAPTURE-010"
    summary = "a size that depends on data is not as expected: {fact} does not hold."
    because = "the program was recorded before that size was known, and takes this for granted (for a broadcast, say)"
    way_out = "torch._check the size before it is used, or keep this part outside of the compiled function"


# --- autograd -----------------------------------------------------------------------------------------------


class DoubleBackwardUnsupported(DovetailError):
    """A second derivative through a compiled program was asked for."""

    code = "DT-AUTOGRAD-001"
    summary = "backward was called with create_graph=True through a compiled program."
    because = "the compiled backward is a fixed program and is not differentiable itself, and {reason}"
    way_out = "{hint}"


class ForwardModeUnsupported(DovetailError):
    """Forward-mode derivatives were asked for through a compiled program that trains."""

    code = "DT-AUTOGRAD-004"
    summary = "an input of a compiled program carries a forward-mode tangent (`torch.autograd.forward_ad`)."
    because = "the compiled forward is a fixed program and has no forward-mode derivative"
    way_out = "use torch.func.jvp inside of the compiled function, or leave this function uncompiled"


class BackwardNeedsUnsavedValue(DovetailError):
    """A backward for another pattern of defined output gradients reads a value that forward did not save."""

    code = "DT-AUTOGRAD-002"
    summary = "backward for the outputs {pattern} reads {names}, which forward did not save."
    because = "forward was compiled for another set of outputs that receive gradients"
    way_out = "make every output that can receive a gradient part of the loss, or leave this function uncompiled"


class LateSizeAssumption(DovetailError):
    """A backward for an unusual set of gradients assumes something about symbolic sizes that nobody checks."""

    code = "DT-AUTOGRAD-003"
    summary = (
        "backward for the gradients {pattern} needs a fact about dynamic sizes that was not settled at compilation."
    )
    because = "sizes are guarded when the forward is compiled, and this backward was recorded later"
    way_out = "compile with dynamic=False, or let every output or only the loss receive a gradient"


# --- signatures ---------------------------------------------------------------------------------------------


class UnsupportedSignature(DovetailError):
    """A part of a graph signature that another description of signatures has no words for."""

    code = "DT-SIGNATURE-001"
    summary = "{what} cannot be said in {where}."
    because = "{reason}"
    way_out = "{hint}"


# --- running ------------------------------------------------------------------------------------------------


class SignatureMismatch(DovetailError):
    """A compiled program was called with other inputs than it was compiled for."""

    code = "DT-RUN-001"
    summary = "{what}."
    because = "{reason}"
    way_out = "{hint}"


class InvalidProgram(DovetailError):
    """A program breaks a rule of its stage: a bug in a pass, caught by the verifier."""

    code = "DT-INTERNAL-001"
    summary = "program {program} breaks a rule of stage {stage!r}: {rule}."
    because = "{detail}"
    way_out = "this is a bug in dovetail: report it with the dump of DOVETAIL_DUMP=dir"
    rows = ("node", "origin")


class PassChangedMeaning(DovetailError):
    """Running the program before and after a pass gave different results."""

    code = "DT-INTERNAL-002"
    summary = "pass {name!r} changed the result of program {program}: {detail}."
    because = "DOVETAIL_VERIFY=2 runs both sides of every pass on random inputs"
    way_out = "this is a bug in dovetail: report it with the dump of DOVETAIL_DUMP=dir; DOVETAIL_SKIP={name} avoids it"
    rows = ()


class NotFunctional(DovetailError):
    """A pass takes functional programs, and a node of this one writes an operand."""

    code = "DT-INPLACE-001"
    summary = "node {node} is not functional: {reason}."
    because = "what is already in place has an order that the pass cannot see"
    way_out = "trace with torch.func.functionalize, or take the graph of torch.export before it is made in-place"
    rows = ("origin",)


class InplaceMismatch(DovetailError):
    """A program that works in place is not the functional program it was made from, caught by its checker."""

    code = "DT-INPLACE-010"
    summary = "program {program} in place is not the functional program it was made from: {detail}."
    because = "{reason}"
    way_out = "this is a bug in dovetail: report it with the dump of DOVETAIL_DUMP=dir"
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
