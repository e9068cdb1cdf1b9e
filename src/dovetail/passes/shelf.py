"""The passes as functions on `torch.fx.GraphModule`, for backend authors.

Each pass is a pair: `X(gm, *sample_inputs) -> gm` gives a new graph module, `plan_X(gm, *sample_inputs) -> XReport`
says what it would do. The given graph module is never edited.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import fx

from dovetail.analysis.inplace_plan import InplacePlan
from dovetail.analysis.verify_inplace import verify_inplace as verify_program_inplace
from dovetail.errors import BadDonation
from dovetail.ir.fx_lift import Lifted, lift
from dovetail.ir.fx_lower import lower
from dovetail.ir.program import Node, Program, map_leaves
from dovetail.passes.collection import collection_paused
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.functional import require_functional
from dovetail.passes.functional_forms import write_as_functional_forms
from dovetail.passes.inplace import apply_plan, choose_plan
from dovetail.passes.inplace_report import InplaceReport, report_of
from dovetail.passes.on_graphs import Rewrite, on_graphs
from dovetail.passes.view_copies import split_view_copies

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

    Proved by running both on tokens in place of numbers, for the sizes of the samples (of symbols: those they were
    traced with); it does not matter how `inplace` was made. No code of `reinplace` is used.
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
