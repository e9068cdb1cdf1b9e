"""The passes that compute other weights, as functions on `torch.fx.GraphModule`, for backend authors.

The tensors that a graph module holds (its `get_attr` nodes) are the constants. What computes other weights from them
stays in the graph, in front of what reads it, so that a module is right even if its tensors change later; it is run
once, ahead of time, by whatever folds constants afterwards. The given graph module is never edited.
"""

from __future__ import annotations

from dovetail.ir.fx_lift import Lifted
from dovetail.passes.fold_batch_norms import FoldBatchNormsReport
from dovetail.passes.fold_batch_norms import fold_batch_norms as fold_in_program
from dovetail.passes.merge_linears import MergeLinearsReport
from dovetail.passes.merge_linears import merge_linears as merge_in_program
from dovetail.passes.on_graphs import Rewrite, contents_of, on_graphs, rewritten, with_constants
from dovetail.torch_compat.fakes import is_fake


@on_graphs
def fold_batch_norms(lifted: Lifted, *, half: bool = False) -> Rewrite[FoldBatchNormsReport]:
    """A graph module in which the layers before batch norms do the work of those norms, too.

    Args:
        gm: a graph of ATen operators, with static or symbolic sizes, that holds the weights.
        sample_inputs: arguments of a call (real, fake or meta tensors); only their descriptions are looked at. Not
            needed where placeholders have `meta["val"]`.
        half: whether layers in float16 are folded; nobody checks that their new weights are in range.

    Returns: a new module with the same calling convention; its results are those of the given one up to rounding.

    Raises: SampleMismatch; MissingSamples; InvalidGraphModule for a node that is no call of an operator with a schema;
        NotAGraphModule.

    What stays, and why: `plan_fold_batch_norms`. Cost: linear.
    """
    known = {name: t for name, t in contents_of(lifted).items() if not is_fake(t) and not t.is_meta}
    return rewritten(lifted, fold_in_program(*with_constants(lifted), half=half, contents=known))


@on_graphs
def merge_linears(lifted: Lifted) -> Rewrite[MergeLinearsReport]:
    """A graph module in which linear layers that read the same tensor are one, where nobody can tell but for rounding.

    Args, Raises and Cost are those of `fold_batch_norms`. Returns: a new module with the same calling convention, whose
    results lie as they did. What stays, and why: `plan_merge_linears`. Whether it is faster depends on the device: see
    `passes.merge_linears`.
    """
    return rewritten(lifted, merge_in_program(*with_constants(lifted)))


plan_fold_batch_norms = fold_batch_norms.plan
plan_merge_linears = merge_linears.plan
