"""The passes that compute other weights, as functions on `torch.fx.GraphModule`, for backend authors.

The tensors that a graph module holds (its `get_attr` nodes) are the constants. What computes other weights from them
stays in the graph, in front of what reads it, so that a module is right even if its tensors change later; it is run
once, ahead of time, by whatever folds constants afterwards. The given graph module is never edited.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from dovetail.analysis.infer import MetaInference
from dovetail.ir.fx_attributes import attribute_of
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower
from dovetail.ir.program import Program
from dovetail.ir.signature import Constant
from dovetail.passes.fold_batch_norms import FoldBatchNormsReport
from dovetail.passes.fold_batch_norms import fold_batch_norms as fold_in_program
from dovetail.passes.merge_linears import MergeLinearsReport
from dovetail.passes.merge_linears import merge_linears as merge_in_program
from dovetail.torch_compat.fakes import is_fake


def fold_batch_norms(gm: fx.GraphModule, *sample_inputs: object, half: bool = False) -> fx.GraphModule:
    """A graph module in which the layers before batch norms do the work of those norms, too.

    Args:
        gm: a graph of ATen operators, with static or symbolic sizes, that holds the weights.
        sample_inputs: arguments of a call (real, fake or meta tensors); only their descriptions are looked at. Not
            needed where placeholders have `meta["val"]`.
        half: whether layers in float16 are folded; nobody checks that their new weights are in range.

    Returns: a new module with the same calling convention; its results are those of the given one up to rounding.

    Raises: SampleMismatch; MissingSamples; InvalidGraphModule for a node that is no call of an operator with a schema;
        NotAGraphModule.

    What stays, and why: `plan_fold_batch_norms`. Cost: one run on fake tensors.
    """
    lifted = lift(gm, sample_inputs)
    return lower(lifted, _folded(lifted, half)[0])


def plan_fold_batch_norms(gm: fx.GraphModule, *sample_inputs: object, half: bool = False) -> FoldBatchNormsReport:
    """What `fold_batch_norms` does with these arguments, norm by norm, with reasons."""
    return _folded(lift(gm, sample_inputs), half)[1]


def merge_linears(gm: fx.GraphModule, *sample_inputs: object) -> fx.GraphModule:
    """A graph module in which linear layers that read the same tensor are one, where nobody can tell but for rounding.

    Args, Raises and Cost are those of `fold_batch_norms`. Returns: a new module with the same calling convention, whose
    results lie as they did. What stays, and why: `plan_merge_linears`. Whether it is faster depends on the device: see
    `passes.merge_linears`.
    """
    lifted = lift(gm, sample_inputs)
    return lower(lifted, _merged(lifted)[0])


def plan_merge_linears(gm: fx.GraphModule, *sample_inputs: object) -> MergeLinearsReport:
    """What `merge_linears` does with these arguments, group by group, with reasons."""
    return _merged(lift(gm, sample_inputs))[1]


def _merged(lifted: Lifted) -> tuple[Program, MergeLinearsReport]:
    return merge_in_program(lifted.program, _constants(lifted.program), _inference(lifted))


def _folded(lifted: Lifted, half: bool) -> tuple[Program, FoldBatchNormsReport]:
    constants = _constants(lifted.program)
    return fold_in_program(lifted.program, constants, _inference(lifted), half=half, contents=_contents(lifted))


def _constants(program: Program) -> Sequence[str]:
    pairs = zip(program.inputs, program.signature.inputs, strict=True)
    return [value.name for value, role in pairs if isinstance(role, Constant)]


def _contents(lifted: Lifted) -> dict[str, torch.Tensor]:
    """The tensors that the module holds, by the names of values; not those that have no contents."""
    pairs = zip(lifted.program.inputs, lifted.program.signature.inputs, strict=True)
    held = {v.name: attribute_of(lifted.module, role.name) for v, role in pairs if isinstance(role, Constant)}
    return {name: t for name, t in held.items() if not is_fake(t) and not t.is_meta}


def _inference(lifted: Lifted) -> MetaInference:
    return MetaInference(lifted.mode, lifted.numbers())
