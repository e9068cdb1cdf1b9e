"""The passes over constants as functions on `torch.fx.GraphModule`: its tensor attributes are the constants.

As in `passes.shelf`, each is a pair, `X(gm, *sample_inputs) -> gm` and `plan_X(gm, *sample_inputs) -> XReport`, and the
given graph module is never edited.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from dovetail.analysis.infer import MetaInference
from dovetail.ir.fx_attributes import attribute_of
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower
from dovetail.ir.program import Program
from dovetail.ir.signature import Constant
from dovetail.passes.fold_constants import fold_constants as fold_program
from dovetail.passes.fold_plan import FoldingPlan, plan_folding
from dovetail.passes.remove_dropout import DropoutReport
from dovetail.passes.remove_dropout import remove_dropout as remove_dropout_of


def fold_constants(
    gm: fx.GraphModule, *sample_inputs: object, asked: Collection[str] = (), everything: bool = False
) -> fx.GraphModule:
    """A graph module in which what depends on its tensor attributes alone has been computed once.

    Args:
        gm: a graph of ATen operators, with static or symbolic sizes. Attributes that it writes, or whose memory it
            returns, are left alone; all others must keep their contents from now on.
        sample_inputs: arguments of a call (real, fake or meta tensors); only their layout is looked at. Not needed
            where placeholders have `meta["val"]`.
        asked: names of nodes that are to be computed once although attributes take more bytes then.
        everything: the same for all nodes.

    Returns:
        A new module with the same calling convention, results and effects. Its new attributes are buffers; those that
        nothing reads any more are not in it. Without `asked` and `everything` its attributes take no more bytes. What
        was folded takes no part in autograd: the module is for inference.

    Raises: SampleMismatch; MissingSamples; InvalidGraphModule for a node that is no call of an operator with a schema;
        NotAGraphModule.

    What is not folded, and why: `plan_fold_constants`. Cost: one run on fake tensors, one of what is folded.
    """
    lifted, plan = _plan(gm, sample_inputs, asked, everything)
    paths = _constants(lifted.program)
    tensors: dict[str, torch.Tensor] = {name: attribute_of(gm, path) for name, path in paths.items()}
    (program,), report = fold_program([lifted.program], tensors, plan)
    held = {path: tensors[name] for name, path in paths.items() if name in tensors}
    held.update((name, tensors[name]) for name in report.stored)
    return lower(lifted, program, held, unwanted=[paths[name] for name in report.dropped])


def plan_fold_constants(
    gm: fx.GraphModule, *sample_inputs: object, asked: Collection[str] = (), everything: bool = False
) -> FoldingPlan:
    """What `fold_constants` does with these arguments, value by value, with reasons and bytes. Nothing is computed."""
    return _plan(gm, sample_inputs, asked, everything)[1]


def remove_dropout(gm: fx.GraphModule, *sample_inputs: object) -> fx.GraphModule:
    """A graph module without dropout that drops nothing: as evaluated, or of probability 0.

    Raises: as `fold_constants`. Cost: one run on fake tensors, then linear.
    """
    lifted = lift(gm, sample_inputs)
    return lower(lifted, _without_dropout(lifted)[0])


def plan_remove_dropout(gm: fx.GraphModule, *sample_inputs: object) -> DropoutReport:
    """Which dropouts `remove_dropout` removes with these arguments, and why others stay."""
    return _without_dropout(lift(gm, sample_inputs))[1]


def _plan(
    gm: fx.GraphModule, samples: Sequence[object], asked: Collection[str], everything: bool
) -> tuple[Lifted, FoldingPlan]:
    lifted = lift(gm, samples)
    constants = _constants(lifted.program)
    # A module has many other attributes, whose names are taken as well.
    return lifted, plan_folding([lifted.program], constants, asked, everything=everything, taken=dir(gm))


def _constants(program: Program) -> dict[str, str]:
    """The attribute that each constant input stands for, by the name of the input."""
    roles = zip(program.signature.inputs, program.inputs, strict=True)
    return {value.name: role.name for role, value in roles if isinstance(role, Constant)}


def _without_dropout(lifted: Lifted) -> tuple[Program, DropoutReport]:
    infer = MetaInference(lifted.mode, lifted.numbers())
    return remove_dropout_of(lifted.program, (), infer)
