"""The passes as functions on `torch.fx.GraphModule`, for backend authors.

Each pass is a pair: `X(gm, *sample_inputs) -> gm` gives a new graph module, `plan_X(gm, *sample_inputs) -> XReport`
says what it would do. The given graph module is never edited.

The tensors that a graph module holds (its `get_attr` nodes) are the constants. What a pass computes from them stays in
the graph, in front of what reads it, so that a module is right even if its tensors change later; `fold_constants` runs
it once. See each report's `asked`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import fx

from dovetail.analysis.inplace_plan import InplacePlan
from dovetail.analysis.verify_inplace import verify_inplace as verify_program_inplace
from dovetail.errors import BadDonation, NotAGraphModule
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower
from dovetail.ir.program import Node, Program, map_leaves
from dovetail.passes.channels_last import ChannelsLastReport
from dovetail.passes.channels_last import channels_last as channels_last_of
from dovetail.passes.collection import collection_paused
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.fold_batch_norms import FoldBatchNormsReport
from dovetail.passes.fold_batch_norms import fold_batch_norms as fold_in_program
from dovetail.passes.fold_constants import fold_constants as fold_program
from dovetail.passes.fold_plan import FoldingPlan, plan_folding
from dovetail.passes.functional import require_functional
from dovetail.passes.functional_forms import write_as_functional_forms
from dovetail.passes.inplace import apply_plan, choose_plan
from dovetail.passes.inplace_report import InplaceReport, report_of
from dovetail.passes.merge_linears import MergeLinearsReport
from dovetail.passes.merge_linears import merge_linears as merge_in_program
from dovetail.passes.narrow import NarrowReport
from dovetail.passes.narrow import narrow as narrowed
from dovetail.passes.on_graphs import Rewrite, constants_of, contents_of, on_graphs, rewritten, with_constants
from dovetail.passes.prepack import PrepackReport
from dovetail.passes.prepack import prepack as prepacked
from dovetail.passes.quantize import QuantizeReport
from dovetail.passes.quantize import quantize as quantized
from dovetail.passes.remove_dropout import DropoutReport
from dovetail.passes.remove_dropout import remove_dropout as remove_dropout_of
from dovetail.passes.transpose_weights import TransposeReport
from dovetail.passes.transpose_weights import transpose_weights as transposed
from dovetail.passes.view_copies import split_view_copies
from dovetail.passes.views_to_reshapes import ViewsToReshapesReport
from dovetail.passes.views_to_reshapes import views_to_reshapes as reshapes_of
from dovetail.torch_compat.fakes import is_fake

Donation = Sequence[int | str]


@on_graphs
def reinplace(lifted: Lifted, *, donate: Donation = (), commit_point: bool = False) -> Rewrite[InplaceReport]:
    """A graph module that gives the same results, and works in the memory it has where that is safe.

    Args:
        gm: a functional graph of ATen operators, with static or symbolic sizes; it may end in `copy_` into its inputs
            (or views of them), whose memory is then worked in.
        sample_inputs: arguments of a call (real, fake or meta tensors); their layout and the memory they share are
            looked at, they are not written. Not needed where placeholders have `meta["val"]`.
        donate: inputs whose memory may be used and whose contents are lost, by position or by name.
        commit_point: keep one point before which no input is written, and after which no check of the graph can fail.

    Returns:
        A new module with the same calling convention, results and effects. Two inputs that are written must not share
        memory, unless the samples do.

    Raises: NotFunctional when a node writes something else; BadDonation; SampleMismatch; MissingSamples;
        InvalidGraphModule for a node that is not a call of an operator with a schema; NotAGraphModule.

    What is not done, and why: `plan_inplace`. Cost: linear; of equal calls one is run on fake tensors; see
    docs/inplace.md.
    """
    require_functional(lifted.program)
    donated = _donated(lifted.program, donate)
    plan = plan_for(lifted.program, donated, commit=commit_point)
    return Rewrite(
        lambda: lower(lifted, _with_sub_graphs(apply_plan(plan))),
        lambda: report_of(plan, hints=lifted.hints(), donated=donated),
    )


plan_inplace = reinplace.plan


def verify_inplace(
    functional: fx.GraphModule,
    inplace: fx.GraphModule,
    *sample_inputs: object,
    donate: Donation = (),
    commit_point: bool = False,
) -> None:
    """Raise InplaceMismatch unless `inplace` gives what `functional` gives, and leaves its inputs as that does.

    Proved by running both on value numbers in place of data, for the sizes of the samples (of symbols: those they were
    traced with); it does not matter how `inplace` was made. No analysis of `reinplace` is used.
    """
    lifted = lift(functional, sample_inputs)
    before = write_as_functional_forms(lifted.program)
    after = write_as_functional_forms(lift(inplace, sample_inputs).program)
    after = _with_verified_sub_graphs(before, after)
    donated = _donated(before, donate)
    verify_program_inplace(before, after, donated=donated, commit=commit_point, hints=lifted.hints())


def _with_verified_sub_graphs(functional: Program, inplace: Program) -> Program:
    """The second program with the sub-graphs of the first one, once its own are verified against those."""
    meant = _sub_graphs(functional)
    made = _sub_graphs(inplace)
    if len(meant) != len(made):
        return inplace  # which does not do the same
    pairs = {id(new): old for old, new in zip(meant, made, strict=True) if new is not old}
    for old, new in zip(meant, made, strict=True):
        if new is not old:
            verify_inplace(old, new)

    def original(operand: object) -> object:
        return pairs.get(id(operand), operand)

    nodes = [replace(n, args=tuple(map_leaves(operand, original) for operand in n.args)) for n in inplace.nodes]
    return inplace.replace_nodes(tuple(nodes)) if pairs else inplace


def _sub_graphs(program: Program) -> list[fx.GraphModule]:
    found: list[fx.GraphModule] = []

    def note(operand: object) -> object:
        if isinstance(operand, fx.GraphModule):
            found.append(operand)
        return operand

    for node in program.nodes:
        for operand in node.args:
            map_leaves(operand, note)
    return found


@collection_paused()
def plan_for(program: Program, donated: Collection[int] = (), *, commit: bool = False) -> InplacePlan:
    """The plan for a functional program as it was lifted; its forms are made such that more is seen of them."""
    program, _ = remove_dead_code(split_view_copies(write_as_functional_forms(program)))
    return choose_plan(program, donated, commit=commit)


def _donated(program: Program, donate: Donation) -> tuple[int, ...]:
    """The numbers of donated inputs."""
    names = {value.name: index for index, value in enumerate(program.inputs)}
    found: list[int] = []
    for wish in donate if isinstance(donate, list | tuple | set | frozenset) else (donate,):
        index = names.get(wish) if isinstance(wish, str) else wish
        known = ", ".join(names)
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(program.inputs):
            raise BadDonation(donation=wish, reason="there is no such input", known=known)
        if not program.inputs[index].is_tensor:
            raise BadDonation(donation=wish, reason="it is not a tensor", known=known)
        found.append(index)
    for index in found:
        donated = program.inputs[index]
        for other, value in enumerate(program.inputs):
            if other not in found and value.is_tensor and value.tensor.storage == donated.tensor.storage:
                reason = f"it shares memory with {value.name}, which is not donated"
                raise BadDonation(donation=donated.name, reason=reason, known=", ".join(names))
    return tuple(found)


def _with_sub_graphs(program: Program) -> Program:
    """The program with the sub-graphs of its control flow rewritten as well."""

    def rewritten(operand: object) -> object:
        return reinplace(operand) if isinstance(operand, fx.GraphModule) else operand

    def node_with(node: Node) -> Node:
        args = tuple(map_leaves(operand, rewritten) for operand in node.args)
        if all(new is old for new, old in zip(args, node.args, strict=True)):
            return node
        return replace(node, args=args)

    return program.replace_nodes(tuple(map(node_with, program.nodes)))


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


@on_graphs
def transpose_weights(lifted: Lifted) -> Rewrite[TransposeReport]:
    """A graph module whose products read transposed copies of weights that it holds, where that pays.

    They are copied in each call until the nodes that the report names are folded: by themselves, they are of no use.
    Arguments, results, errors and cost are those of `channels_last`.
    """
    require_functional(lifted.program)
    return rewritten(lifted, transposed(*with_constants(lifted)))


@on_graphs
def quantize(lifted: Lifted) -> Rewrite[QuantizeReport]:
    """A graph module whose products by weights that it holds are of 8-bit integers, where that pays.

    Results have fewer correct bits. Weights are rounded in each call until the nodes that the report names are folded.
    Not checked: that this processor has exact products of 8-bit integers. Arguments, results, errors and cost are those
    of `channels_last`.
    """
    require_functional(lifted.program)
    return rewritten(lifted, quantized(*with_constants(lifted)))


@on_graphs
def narrow(lifted: Lifted) -> Rewrite[NarrowReport]:
    """A graph module whose products and convolutions by weights that it holds are in bfloat16, where that pays.

    As `quantize`, but for the format.
    """
    require_functional(lifted.program)
    return rewritten(lifted, narrowed(*with_constants(lifted)))


plan_channels_last = channels_last.plan
plan_narrow = narrow.plan
plan_prepack = prepack.plan
plan_quantize = quantize.plan
plan_transpose_weights = transpose_weights.plan


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
