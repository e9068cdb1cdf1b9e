"""How few bytes can a program copy? Tries every combination of what could be done in place.

    python -m tests.passes.inplace_oracle [--most 12] [--combinations 20000] [name ...]

For each node: leave it, or any way in which `passes.inplace` can rewrite it, whatever the analysis says of that. A
combination counts when `verify_inplace` accepts the program. Three orders of the nodes are tried: the program's, the
plan's, and one in which what replaces a part comes as late as it can.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from dovetail.analysis.buffers import Buffers, Owner
from dovetail.analysis.destinations import Destinations, copied_value, find_destinations
from dovetail.analysis.inplace_plan import (
    Absorb,
    Action,
    DropCopyBack,
    InplacePlan,
    Share,
    WriteCast,
    WriteOperands,
    WriteOut,
    WritePart,
)
from dovetail.analysis.verdict import Verdict
from dovetail.analysis.verify_inplace import verify_inplace
from dovetail.errors import DovetailError
from dovetail.ir.fx_lift import lift
from dovetail.ir.made_symbols import made_symbols
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Program, TensorMeta, Value
from dovetail.ir.sizes import difference, product, shifted
from dovetail.ops.facts import is_copy, overwrites
from dovetail.ops.prims import FunctionalForm
from dovetail.ops.views import viewed_meta
from dovetail.ops.writing_forms import out_form, replaces_a_part, view_of_copy, writing_form, written_operands
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.functional_forms import write_as_functional_forms
from dovetail.passes.inplace import apply_plan, choose_plan
from dovetail.passes.view_copies import split_view_copies
from tests.passes.patterns import PATTERNS
from tests.passes.patterns.pattern import Pattern
from tests.passes.patterns.trace import traced

Choice: TypeAlias = "tuple[Node, Action | None, TensorMeta | None]"


@dataclass(frozen=True)
class Answer:
    """reached, least: bytes copied by the plan, and by the best combination; decisions: nodes with a choice."""

    reached: int
    least: int
    decisions: int
    combinations: int


def copied_bytes(program: Program) -> int:
    """Bytes that the nodes of a program copy although nothing new is computed, read off its text."""
    total = 0
    for node in program.nodes:
        target = node.target
        if overwrites(target):
            total += _bytes(node.args[1], once=True)
        elif target is torch.ops.aten._foreach_copy_.default or target is torch.ops.aten._foreach_copy.default:
            total += sum(map(_bytes, node.args[1]))  # type: ignore[arg-type]
        elif is_copy(target) or target is torch.ops.aten.copy.default or view_of_copy(target) is not None:
            total += _bytes(node.outputs[0]) if copied_value(node) is not None or not is_copy(target) else 0
        elif isinstance(target, Prim) and isinstance(target.run, FunctionalForm):
            form = writing_form(target, None)
            assert form is not None, "it is the form of an operator that writes"
            total += sum(map(_bytes, node.outputs[form.fresh :]))
        elif replaces_a_part(target):
            total += sum(map(_bytes, node.outputs))
    return total


def _bytes(value: object, *, once: bool = False) -> int:
    """Bytes of a tensor; once: where it shows one element many times, of that one (which is filling, not copying)."""
    if not isinstance(value, Value) or not value.is_tensor:
        return 0
    meta = value.tensor
    shown = [n for n, stride in zip(meta.shape, meta.stride, strict=True) if stride != 0 or not once]
    size = product((*shown, meta.dtype.itemsize))
    assert isinstance(size, int), "sizes are numbers here"
    return 0 if once and not shown else size


def ask(pattern: Pattern, way: str, *, most: int, combinations: int) -> Answer | None:
    """The answer for a pattern; None if it has more than `most` decisions, or more combinations."""
    torch.manual_seed(0)
    lifted = write_as_functional_forms(lift(traced(pattern, way), pattern.inputs()).program)
    program, _ = remove_dead_code(split_view_copies(lifted))
    plan = choose_plan(program, pattern.donate)
    options = [found for node in program.nodes if len(found := list(_options(node, program, plan))) > 1]
    count = math.prod(map(len, options))
    if len(options) > most or count > combinations:
        return None
    planned = apply_plan(plan)
    verify_inplace(lifted, planned, donated=pattern.donate)
    reached = copied_bytes(planned)
    attempts: dict[str, tuple[int, Program]] = {}
    orders = {program.nodes, plan.order, _late_writers(program)}
    for order, choices in itertools.product(orders, itertools.product(*options)):
        made = _forced(program, order, choices, plan, pattern.donate)
        size = copied_bytes(made) if made is not None else reached
        if made is not None and size < reached:
            attempts[str(made)] = (size, made)
    for size, made in sorted(attempts.values(), key=lambda attempt: attempt[0]):
        if _is_right(lifted, made, pattern.donate):
            return Answer(reached, size, len(options), count)
    return Answer(reached, reached, len(options), count)


def _is_right(functional: Program, inplace: Program, donated: Sequence[int]) -> bool:
    try:
        verify_inplace(functional, inplace, donated=donated)
    except DovetailError:
        return False
    return True


# --- what could be done -----------------------------------------------------------------------------------------------


def _options(node: Node, program: Program, plan: InplacePlan) -> Iterator[Choice]:
    """(node, action, where the result would lie), None for leaving it."""
    fixed = plan.actions.get(node)
    if isinstance(fixed, WriteCast | Absorb):
        yield node, fixed, None
        return
    yield node, None, None
    result = node.outputs[0] if len(node.outputs) == 1 and not node.unpack else None
    found = find_destinations(program)
    if node in found.copy_backs:
        return
    yield from _operands(node)
    if result is None or not result.is_tensor:
        return
    source = copied_value(node)
    if source is not None:
        expands = source.tensor.shape != result.tensor.shape
        view = torch.ops.aten.expand.default if expands else None
        args = (list(result.tensor.shape),) if expands else ()
        onto = viewed_meta(view, None, args, source.tensor, result.tensor) if view is not None else source.tensor
        if onto is not None:
            yield node, Share(source, view, args, onto.stride), onto
    use = found.parts.get(node)
    if use is not None:
        yield node, WritePart(use.part, use.args, use.meta, False), use.base.tensor
    yield from _outs(node, result, found)


def _operands(node: Node) -> Iterator[Choice]:
    first = next((value for value in node.results() if value.is_tensor), None)
    form = writing_form(node.target, None if first is None else first.tensor.dtype)
    written = written_operands(form, node) if form is not None else None
    if form is not None and written is not None:
        yield node, WriteOperands(form, (None,) * len(written)), None


def _outs(node: Node, result: Value, found: Destinations) -> Iterator[Choice]:
    form = out_form(node.target, result.tensor.device.type)
    if form is None:
        return
    into = found.into.get(result.tensor.storage)
    if into is not None:
        yield node, WriteOut(form, into), into.tensor
    use = found.part_of_source.get(result)
    if use is not None:
        yield node, WriteOut(form, use.base, use.part, use.args, use.meta), use.meta
    for operand in dict.fromkeys(node.operands()):
        if operand.is_tensor and operand.tensor.layout() == result.tensor.layout():
            yield node, WriteOut(form, operand), operand.tensor


# --- a program in which it is done ------------------------------------------------------------------------------------


def _forced(
    program: Program, order: Sequence[Node], choices: Sequence[Choice], plan: InplacePlan, donated: Sequence[int]
) -> Program | None:
    """The program that does what is chosen; None if that cannot even be written down."""
    buffers = Buffers(program)
    for value in program.inputs:
        if value.is_tensor and not buffers.is_placed(value.tensor.storage):
            buffers.allocate(value.tensor, Owner.CALLER)
    fixed = {n: (a, None) for n, a in plan.actions.items() if isinstance(a, WriteCast | Absorb)}
    chosen = {**fixed, **{node: (action, onto) for node, action, onto in choices}}
    backs = find_destinations(program).copy_backs
    actions: dict[Node, Action] = {}
    lying: dict[Value, TensorMeta] = {}
    for node in order:
        action, onto = chosen.get(node, (None, None))
        action = _dropped(node, buffers) if node in backs else action
        if action is not None and not _placed(node, action, onto, buffers, lying):
            return None
        if action is not None:
            actions[node] = _written_part(node, action, buffers) if isinstance(action, WritePart) else action
        for value in node.results():
            if value.is_tensor and not buffers.is_placed(value.tensor.storage):
                buffers.allocate(value.tensor, Owner.PROGRAM)
    places = {storage: buffers.place_of(storage) for storage in buffers.values_on}
    try:
        return apply_plan(InplacePlan(program, tuple(order), actions, {}, places))
    except (KeyError, AssertionError, RuntimeError, DovetailError):
        return None


def _placed(
    node: Node, action: Action, onto: TensorMeta | None, buffers: Buffers, lying: dict[Value, TensorMeta]
) -> bool:
    """Place the results of an action; False if they have a place, or there is none."""
    if isinstance(action, WriteOperands):
        written = written_operands(action.form, node) or []
        pairs = zip(node.outputs[action.form.fresh :], written, strict=True)
        return all(r is not None and _put(buffers, r, operand.tensor, lying) for r, operand in pairs)
    if isinstance(action, WriteCast):
        made, first = action.cast.outputs[0], node.args[0]
        return isinstance(first, Value) and made is not None and _put(buffers, made, first.tensor, lying)
    if onto is None:
        return True
    if isinstance(action, Share) and action.view is None:
        onto = lying.get(action.source, onto)
    (result,) = node.outputs
    return result is not None and _put(buffers, result, onto, lying)


def _put(buffers: Buffers, result: Value, onto: TensorMeta, lying: dict[Value, TensorMeta]) -> bool:
    if buffers.is_placed(result.tensor.storage) or not buffers.is_placed(onto.storage):
        return False
    buffer, shift = buffers.place_of(onto.storage)
    elements = difference(onto.offset, result.tensor.offset)
    moved = shift if elements == 0 else shifted(shift, product((elements, onto.dtype.itemsize)))
    buffers.put(result.tensor.storage, buffer, moved)
    if result.tensor.stride != onto.stride:
        buffers.lies_at(result, buffers.region_in_place(onto))
        lying[result] = onto
    return True


def _dropped(node: Node, buffers: Buffers) -> Action | None:
    target, new = node.args[:2]
    assert isinstance(target, Value), "a copy back has a target"
    assert isinstance(new, Value), "a copy back copies a value"
    is_there = buffers.buffer_of(new) is buffers.buffer_of(target) and buffers.region(new) == buffers.region(target)
    return DropCopyBack() if is_there else None


def _written_part(node: Node, action: WritePart, buffers: Buffers) -> WritePart:
    source = node.args[1]
    assert isinstance(source, Value), "a part is replaced by a value"
    place = buffers.region_in_place(action.meta)
    shares = buffers.buffer_of(source) is buffers.place_of(action.meta.storage)[0]
    is_there = shares and buffers.region(source) == place
    first_copy = (source,) if shares and not is_there and buffers.overlap(source, place) is not Verdict.DISJOINT else ()
    return WritePart(action.part, action.args, action.meta, is_there, first_copy)


def _late_writers(program: Program) -> tuple[Node, ...]:
    """The nodes in an order in which what replaces a part, or copies back, waits for all that can run before."""
    fixed = set(find_destinations(program).copy_backs) | made_symbols(program).keys()
    known = {*program.inputs}
    left, order = list(program.nodes), []
    while left:
        ready = [node for node in left if known.issuperset(node.operands())]
        early = [node for node in ready if node not in fixed and not replaces_a_part(node.target)]
        node = (early or ready)[0]
        left.remove(node)
        order.append(node)
        known.update(node.results())
    return tuple(order)


# --- the table --------------------------------------------------------------------------------------------------------


def cases(names: Sequence[str] = ()) -> list[tuple[Pattern, str]]:
    """Patterns with numbers as sizes, in each way of tracing."""
    wanted = [p for p in PATTERNS if not names or any(name in p.name for name in names)]
    return [(pattern, way) for pattern in wanted for way in pattern.ways if way != "symbolic"]


def survey(chosen: Sequence[tuple[Pattern, str]], most: int, combinations: int) -> tuple[int, list[str]]:
    """How many cases were asked, and in words where the plan copies more than the best combination."""
    asked, behind = 0, []
    for pattern, way in chosen:
        answer = ask(pattern, way, most=most, combinations=combinations)
        asked += answer is not None
        if answer is not None and answer.least < answer.reached:
            behind.append(f"{pattern.name} ({way}): {answer.reached} bytes copied, {answer.least} are enough")
    return asked, behind


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is not reached; 1 if that is more than one case in twenty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of patterns")
    parser.add_argument("--most", type=int, default=12, help="decisions")
    parser.add_argument("--combinations", type=int, default=20000)
    options = parser.parse_args(argv)
    start = time.perf_counter()
    chosen = cases(options.names)
    asked, behind = survey(chosen, options.most, options.combinations)
    print("\n".join(behind))
    seconds = time.perf_counter() - start
    total = len(chosen)
    print(f"{asked - len(behind)} of {asked} cases copy the least number of bytes; {total - asked} have too many")
    print(f"combinations; {seconds:.0f} s")
    return int(len(behind) > 0.05 * asked)


if __name__ == "__main__":
    sys.exit(main())
