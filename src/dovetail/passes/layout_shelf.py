"""The passes about layouts, as functions on `torch.fx.GraphModule`, for people who write backends.

The tensors that a graph module holds (its `get_attr` nodes) are the constants. Nodes that change their layout stay in
the graph, before their readers, until they are folded; see each report's `asked`. The given graph module is never
edited.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from dovetail.analysis.infer import MetaInference
from dovetail.errors import NotAGraphModule
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower
from dovetail.ir.program import Program
from dovetail.ir.signature import Constant
from dovetail.passes.channels_last import ChannelsLastReport
from dovetail.passes.channels_last import channels_last as channels_last_of
from dovetail.passes.functional import require_functional
from dovetail.passes.prepack import PrepackReport
from dovetail.passes.prepack import prepack as prepacked
from dovetail.passes.views_to_reshapes import ViewsToReshapesReport
from dovetail.passes.views_to_reshapes import views_to_reshapes as reshapes_of

aten = torch.ops.aten


def channels_last(gm: fx.GraphModule, *sample_inputs: object) -> fx.GraphModule:
    """A graph module whose convolutions by weights that it holds work on memory with the channels last.

    Args:
        gm: a functional graph of ATen operators, with static or symbolic sizes; it may end in `copy_` into its inputs.
        sample_inputs: arguments of a call (real, fake or meta tensors); only their descriptions are looked at. Not
            needed where placeholders have `meta["val"]`.

    Returns: a new module with the same calling convention; its results are laid out as those of the given one, and
        equal up to rounding. Where the layout does not pay, it does the same as the given one.

    Raises: NotFunctional when a node writes something else; SampleMismatch; MissingSamples; InvalidGraphModule for a
        node that is not a call of an operator with a schema; NotAGraphModule.

    Cost: one run on fake tensors, and a second one of what follows convolutions.
    """
    lifted = _lifted(gm, sample_inputs)
    return lower(lifted, channels_last_of(*_given(lifted))[0])


def plan_channels_last(gm: fx.GraphModule, *sample_inputs: object) -> ChannelsLastReport:
    """What `channels_last` does with these arguments, with reasons."""
    return channels_last_of(*_given(_lifted(gm, sample_inputs)))[1]


def prepack(gm: fx.GraphModule, *sample_inputs: object) -> fx.GraphModule:
    """A graph module whose products and convolutions by weights that it holds read packed weights, where that pays.

    It packs them in each call until the nodes that the report names are folded: by themselves, they are of no use.
    Arguments, results, errors and cost are those of `channels_last`.
    """
    lifted = _lifted(gm, sample_inputs)
    return lower(lifted, prepacked(*_given(lifted))[0])


def plan_prepack(gm: fx.GraphModule, *sample_inputs: object) -> PrepackReport:
    """What `prepack` does with these arguments, with reasons."""
    return prepacked(*_given(_lifted(gm, sample_inputs)))[1]


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


def _lifted(gm: fx.GraphModule, sample_inputs: Sequence[object]) -> Lifted:
    lifted = lift(gm, sample_inputs)
    require_functional(lifted.program)
    return lifted


def _given(lifted: Lifted) -> tuple[Program, Sequence[str], MetaInference]:
    program = lifted.program
    pairs = zip(program.inputs, program.signature.inputs, strict=True)
    constants = [value.name for value, role in pairs if isinstance(role, Constant)]
    return program, constants, MetaInference(lifted.mode, lifted.numbers())
