"""The passes over constants as functions on `torch.fx.GraphModule`: its tensor attributes are the constants.

As in `passes.shelf`, each is a pair, `X(gm, *sample_inputs) -> gm` and `plan_X(gm, *sample_inputs) -> XReport`, and the
given graph module is never edited.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from dovetail.ir.fx_lift import Lifted
from dovetail.ir.fx_lower import lower
from dovetail.passes.fold_constants import fold_constants as fold_program
from dovetail.passes.fold_plan import FoldingPlan, plan_folding
from dovetail.passes.on_graphs import Rewrite, constants_of, contents_of, on_graphs, rewritten, with_constants
from dovetail.passes.remove_dropout import DropoutReport
from dovetail.passes.remove_dropout import remove_dropout as remove_dropout_of


@on_graphs
def fold_constants(lifted: Lifted, *, asked: Collection[str] = (), everything: bool = False) -> Rewrite[FoldingPlan]:
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

    What is not folded, and why: `plan_fold_constants`. Cost: linear, and one run of what is folded.
    """
    paths = constants_of(lifted.program)
    # A module has many other attributes, whose names are taken as well.
    plan = plan_folding([lifted.program], paths, asked, everything=everything, taken=dir(lifted.module))

    def made() -> fx.GraphModule:
        tensors = contents_of(lifted)
        (program,), report = fold_program([lifted.program], tensors, plan)
        held = {path: tensors[name] for name, path in paths.items() if name in tensors}
        held.update((name, tensors[name]) for name in report.stored)
        return lower(lifted, program, held, unwanted=[paths[name] for name in report.dropped])

    return Rewrite(made, lambda: plan)


@on_graphs
def remove_dropout(lifted: Lifted) -> Rewrite[DropoutReport]:
    """A graph module without dropout that drops nothing: as evaluated, or of probability 0.

    Raises: as `fold_constants`. Cost: linear.
    """
    return rewritten(lifted, remove_dropout_of(*with_constants(lifted)))


plan_fold_constants = fold_constants.plan
plan_remove_dropout = remove_dropout.plan
