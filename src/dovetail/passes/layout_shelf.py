"""The passes about layouts, as functions on `torch.fx.GraphModule`, for people who write backends.

The tensors that a graph module holds (its `get_attr` nodes) are the constants. Nodes that change their layout stay in
the graph, before their readers, until they are folded; see each report's `asked`. The given graph module is never
edited.
"""

from __future__ import annotations

import torch
from torch import fx

from dovetail.errors import NotAGraphModule
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.passes.channels_last import ChannelsLastReport
from dovetail.passes.channels_last import channels_last as channels_last_of
from dovetail.passes.functional import require_functional
from dovetail.passes.on_graphs import Rewrite, on_graphs, rewritten, with_constants
from dovetail.passes.prepack import PrepackReport
from dovetail.passes.prepack import prepack as prepacked
from dovetail.passes.views_to_reshapes import ViewsToReshapesReport
from dovetail.passes.views_to_reshapes import views_to_reshapes as reshapes_of

aten = torch.ops.aten


@on_graphs
def channels_last(lifted: Lifted) -> Rewrite[ChannelsLastReport]:
    """A graph module whose convolutions by weights that it holds work on memory with the channels last.

    Args:
        gm: a functional graph of ATen operators, with static or symbolic sizes; it may end in `copy_` into its inputs.
        sample_inputs: arguments of a call (real, fake or meta tensors); only their descriptions are looked at. Not
            needed where placeholders have `meta["val"]`.

    Returns: a new module with the same calling convention; its results are laid out as those of the given one, and
        equal up to rounding. Where the layout does not pay, it does the same as the given one.

    Raises: NotFunctional when a node writes something else; SampleMismatch; MissingSamples; InvalidGraphModule for a
        node that is not a call of an operator with a schema; NotAGraphModule.

    Cost: linear, and a run on fake tensors of what follows convolutions.
    """
    require_functional(lifted.program)
    return rewritten(lifted, channels_last_of(*with_constants(lifted)))


@on_graphs
def prepack(lifted: Lifted) -> Rewrite[PrepackReport]:
    """A graph module whose products and convolutions by weights that it holds read packed weights, where that pays.

    It packs them in each call until the nodes that the report names are folded: by themselves, they are of no use.
    Arguments, results, errors and cost are those of `channels_last`.
    """
    require_functional(lifted.program)
    return rewritten(lifted, prepacked(*with_constants(lifted)))


plan_channels_last = channels_last.plan
plan_prepack = prepack.plan


def views_to_reshapes(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module with `reshape` in place of `view` and `_unsafe_view`, so that layouts may be changed afterwards.

    No samples are needed, because nothing is run. Raises: NotAGraphModule. Cost: a copy of the graph.
    """
    if not isinstance(gm, fx.GraphModule):
        raise NotAGraphModule(given=f"a {type(gm).__name__}")
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(gm.graph, copies)
    for node in gm.graph.nodes:
        if node.op == "output":
            made = graph.output(result)
            made.meta.update(node.meta)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _VIEWS:
            node.target = aten.reshape.default
    made_module = fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    made_module.training = gm.training
    return made_module


def plan_views_to_reshapes(gm: fx.GraphModule, *sample_inputs: object) -> ViewsToReshapesReport:
    """What `views_to_reshapes` does, by the names that views have in a program of the graph; samples as elsewhere."""
    return reshapes_of(lift(gm, sample_inputs).program)[1]


_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
