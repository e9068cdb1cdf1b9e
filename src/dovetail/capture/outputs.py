"""Where each returned object comes from, and what a program must output to rebuild all of them.

Two returned tensors that share memory in eager must share it here: the program then outputs the tensor that owns the
memory, and the wrapper makes the views again, on real autograd. A view is only made again when autograd would do the
same, that is when nothing but built-in views lies between it and its base; otherwise the value is output as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from dovetail.capture.between_results import refuse_made_leaf_beside
from dovetail.capture.changes import InputChanges, replay_steps, steps_from_argument
from dovetail.capture.functionalize import Functionalizer, ViewStep
from dovetail.capture.gradient_names import operator_of, spelled
from dovetail.capture.inputs import StandIn
from dovetail.capture.recorder import Recorder
from dovetail.errors import GradientAccess, UnsupportedInputMutation, UnsupportedOutput
from dovetail.ir.calling import (
    AsLeaf,
    AsParameter,
    CallPlan,
    CountedAlone,
    FromConstant,
    FromInput,
    FromOutput,
    FromSlot,
    FromView,
    OutputRule,
    Pack,
    Rebuilt,
    Rewritten,
    WriteBack,
)
from dovetail.ir.convert import scalar_of
from dovetail.ir.program import Operand, Value, meta_symbols, symbols_in
from dovetail.ir.signature import InputMutation, OutputRole, UserOutput, WriteKind
from dovetail.ir.sizes import symbol
from dovetail.torch_compat.autograd import version_counter_classes, viewed_tensor
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.fakes import writes_fake
from dovetail.torch_compat.subclasses import WrapperLayout, is_wrapper, take_apart
from dovetail.torch_compat.symbols import SYMBOLIC_TYPES
from dovetail.torch_compat.tensor_hooks import has_hooks

_CONSTANT_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAX_VIEW_DEPTH = 200


@dataclass(frozen=True, slots=True)
class OutputAnalysis:
    """plan: how a call maps to a run. values, roles: the forward outputs of the program, in slot order.

    recorded: the value of the recorded program behind each forward output. tensors: the fake tensor behind each, None
    for a number, and where no tensor object stands for the value any more. wrappers: the fake tensor behind each pack.
    """

    plan: CallPlan
    values: tuple[Operand, ...]
    recorded: tuple[Operand, ...]
    roles: tuple[OutputRole, ...]
    tensors: tuple[Any, ...]
    wrappers: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class _Builder:
    recorder: Recorder
    functional: Functionalizer
    stand_ins: Sequence[StandIn]
    input_of: Mapping[int, int]
    argument_of: Mapping[Value, int]
    leaves: frozenset[int]
    leads_to_input: dict[Any, bool] = field(default_factory=dict)
    viewed: Counter[int] = field(default_factory=Counter)
    viewed_on: dict[int, set[Value]] = field(default_factory=dict)
    values: list[Operand] = field(default_factory=list)
    recorded: list[Operand] = field(default_factory=list)
    roles: list[OutputRole] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    needs_gradient: list[bool] = field(default_factory=list)
    bases: dict[Value, int] = field(default_factory=dict)
    packs: list[tuple[Pack, torch.Tensor]] = field(default_factory=list)

    def add(self, operand: Operand, role: OutputRole, tensor: Any, needs_gradient: bool) -> int:
        self.values.append(self.functional.read(operand) if isinstance(operand, Value) else operand)
        self.recorded.append(operand)
        self.roles.append(role)
        self.tensors.append(tensor)
        self.needs_gradient.append(needs_gradient)
        return len(self.values) - 1

    def add_user(self, operand: Operand, tensor: Any, needs_gradient: bool) -> int:
        return self.add(operand, UserOutput(len(self.values)), tensor, needs_gradient)

    def add_pack(self, wrapper: torch.Tensor) -> int:
        """Let autograd see the parts of a wrapper as one output; its number among the packs."""
        parts, layout = _take_apart(wrapper)
        slots = tuple(self.add_user(self.recorder.value_of(part), part, True) for part in parts)
        self.packs.append((Pack(layout, slots), wrapper))
        return len(self.packs) - 1


def analyse_outputs(
    results: Sequence[object],
    stand_ins: Sequence[StandIn],
    leaves: Sequence[torch.Tensor | GradientEdge],
    changes: InputChanges,
    recorder: Recorder,
    functional: Functionalizer,
) -> OutputAnalysis:
    """Analyse what a recorded function returned.

    results: flat. stand_ins: the inputs of the program. leaves: the tensors whose gradients are taken, and where those
    arrive that are for what was there first. changes: what the function did to its inputs.
    Raises: UnsupportedOutput for an object that cannot be handed out by a compiled program.
    """
    arguments = [(i, s) for i, s in enumerate(stand_ins) if s.rule is None and isinstance(s.seen, torch.Tensor)]
    input_of = {id(s.seen): i for i, s in arguments}
    argument_of = {s.value: i for i, s in reversed(arguments)}
    builder = _Builder(recorder, functional, stand_ins, input_of, argument_of, frozenset(map(id, leaves)))
    builder.leads_to_input.update((leaf.node, True) for leaf in leaves if not isinstance(leaf, torch.Tensor))
    shared = _chains_by_storage(results, builder)
    rules: list[OutputRule] = []
    place_of: dict[int, int] = {}
    for place, result in enumerate(results):
        first = place_of.setdefault(id(result), place) if isinstance(result, torch.Tensor) else place
        rules.append(_rule_for(result, shared, builder) if first == place else FromOutput(first))
    refuse_made_leaf_beside(results, builder.input_of)
    backs = []
    for index, kind in changes.writes.items():
        tracked = kind is WriteKind.TRACKED
        stand_in = stand_ins[index]
        slot = builder.add(stand_in.value, InputMutation(index, kind), stand_in.seen, tracked)
        backs.append(WriteBack(index, slot, kind))
    for index, view, kind in changes.view_writes:
        seen = next(iter(recorder.tensors_of(view)), None)
        slot = builder.add(view, InputMutation(index, kind), seen, kind is WriteKind.TRACKED)
        step = functional.step_of(view)
        assert step is not None, "a view is made by a step"
        backs.append(WriteBack(index, slot, kind, replay_steps((step,))))
    for index, kind in changes.touched.items():
        if kind is WriteKind.TRACKED:
            backs.append(WriteBack(index, _PackNumber(builder.add_pack(stand_ins[index].seen)), kind))
    _own_memory(builder)
    _hand_out_sizes(rules, builder)
    count = len(builder.values)
    plan = CallPlan(
        tuple(_numbered(rule, count) for rule in rules),
        tuple(replace(w, slot=count + w.slot) if isinstance(w.slot, _PackNumber) else w for w in backs),
        tuple(builder.needs_gradient),
        extras=tuple(s.rule for s in stand_ins if s.rule is not None),
        extras_at=next((i for i, s in enumerate(stand_ins) if s.rule is not None), 0),
        metadata=changes.metadata,
        flags=changes.flags,
        packs=tuple(pack for pack, _ in builder.packs),
        touched=tuple(index for index, kind in changes.touched.items() if kind is not WriteKind.TRACKED),
    )
    return OutputAnalysis(
        plan,
        tuple(builder.values),
        tuple(builder.recorded),
        tuple(builder.roles),
        tuple(builder.tensors),
        tuple(wrapper for _, wrapper in builder.packs),
    )


class _PackNumber(int):
    """A slot that counts packs, until the number of outputs is known."""


def _numbered(rule: OutputRule, outputs: int) -> OutputRule:
    if isinstance(rule, FromSlot | Rewritten) and isinstance(rule.slot, _PackNumber):
        return replace(rule, slot=outputs + rule.slot)
    return replace(rule, of=_numbered(rule.of, outputs)) if isinstance(rule, AsLeaf) else rule


def _take_apart(wrapper: torch.Tensor) -> tuple[list[torch.Tensor], WrapperLayout]:
    parts, layout = take_apart(wrapper)
    assert isinstance(layout, WrapperLayout), "the recording has refused sparse matrices as results"
    if not all(isinstance(number, int) for number in (*layout.size, *layout.stride)):
        raise UnsupportedOutput(
            what=f"a {layout.cls.__name__} of symbolic size",
            reason="how its parts make it up is fixed when the program is recorded",
            hint="compile without dynamic=True",
        )
    return parts, layout


def _own_memory(builder: _Builder) -> None:
    """Forward outputs must not share memory with an input or with each other: copy those that do."""
    taken = {s.declared.tensor.storage for s in builder.stand_ins if s.declared.is_tensor}
    for slot, value in enumerate(builder.values):
        if not isinstance(value, Value) or not value.is_tensor:
            continue
        if value.tensor.storage in taken:
            builder.values[slot] = value = builder.functional.own_copy(value)
        taken.add(value.tensor.storage)


def _hand_out_sizes(rules: Sequence[OutputRule], builder: _Builder) -> None:
    """Sizes of views of inputs that only the program tells are results, too: the views are made outside."""
    metas = [stand_in.declared.meta for stand_in in builder.stand_ins]
    known = {name for meta in metas for name in meta_symbols(meta)}
    views = [rule for rule in CallPlan(tuple(rules), (), ()).sources() if isinstance(rule, FromView)]
    operands = [(step.args, [argument for _, argument in step.kwargs]) for view in views for step in view.steps]
    for name in dict.fromkeys(name for operand in operands for name in symbols_in(operand)):
        if name not in known:
            builder.add_user(symbol(name), None, False)


def _chains_by_storage(results: Sequence[object], builder: _Builder) -> dict[int, list[list[Value]]]:
    """For each storage, the way from its root to each result on it (the result included)."""
    chains: dict[int, list[list[Value]]] = {}
    for result in _plain_tensors(results, builder):
        value, viewed = builder.recorder.value_of(result), viewed_tensor(result)
        builder.viewed[id(viewed)] += 1
        builder.viewed_on.setdefault(value.tensor.storage, set()).add(builder.recorder.value_of(viewed))
        _, steps = builder.functional.chain_of(value)
        chains.setdefault(value.tensor.storage, []).append([*(step.parent for step in steps), value])
    return chains


def _plain_tensors(results: Sequence[object], builder: _Builder) -> Iterator[torch.Tensor]:
    """The tensors among the results, each once, and the parts of those that are wrappers and no inputs."""
    for result in {id(r): r for r in results if isinstance(r, torch.Tensor)}.values():
        if result.layout is not torch.strided and id(result) in builder.input_of:
            continue
        if not is_wrapper(result):
            yield result
        elif id(result) not in builder.input_of:
            yield from take_apart(result)[0]


def _wrapper_rule(result: torch.Tensor, shared: Mapping[int, list[list[Value]]], builder: _Builder) -> OutputRule:
    """Where a wrapper comes from. One that carries a gradient is an output of its own, as autograd sees it as one."""
    parts, layout = _take_apart(result)
    has_gradient = _has_gradient(result, builder)
    values = [builder.recorder.value_of(part) for part in parts]
    fresh = all(
        len(shared[v.tensor.storage]) == 1
        and all(w not in builder.argument_of for w in (v, builder.functional.chain_of(v)[0]))
        for v in values
    )
    if has_gradient and fresh:
        return FromSlot(_PackNumber(builder.add_pack(result)))
    rules = tuple(_tensor_rule(part, shared, builder) for part in parts)
    if has_gradient:
        return Rewritten(Rebuilt(layout, rules), _PackNumber(builder.add_pack(result)))
    return Rebuilt(layout, rules)


def _rule_for(result: object, shared: Mapping[int, list[list[Value]]], builder: _Builder) -> OutputRule:
    if isinstance(result, SYMBOLIC_TYPES):
        return FromSlot(builder.add_user(scalar_of(result), None, False))
    if not isinstance(result, torch.Tensor):
        if isinstance(result, str) and writes_fake(result):
            raise UnsupportedOutput(
                what="a text of a tensor's numbers",
                reason="the numbers are known only when a call has run, and the text would be that of the first call",
                hint="return the tensor, and make the text of what the call returns",
            )
        if isinstance(result, _CONSTANT_TYPES):
            return FromConstant(result)
        raise UnsupportedOutput(
            what=f"a {type(result).__name__}",
            reason="outputs must be tensors, numbers, strings or None, in tuples, lists, dicts or registered pytrees",
            hint="return tensors, or register the class with torch.utils._pytree.register_pytree_node",
        )
    if id(result) in builder.input_of:
        return FromInput(builder.input_of[id(result)])
    rule = (_wrapper_rule if is_wrapper(result) else _tensor_rule)(result, shared, builder)
    is_made = result.requires_grad and not _has_gradient(result, builder)
    if isinstance(result, torch.nn.Parameter):
        return AsParameter(rule, result.requires_grad)
    return AsLeaf(rule) if is_made else rule


def _tensor_rule(result: torch.Tensor, shared: Mapping[int, list[list[Value]]], builder: _Builder) -> OutputRule:
    if result.retains_grad and id(result) not in builder.input_of:
        hint = "call retain_grad() on what the function returns"
        raise GradientAccess(does="retains", name="a result", hint=hint)
    value = builder.recorder.value_of(result)
    _, steps = builder.functional.chain_of(value)
    of_argument = steps_from_argument(value, builder.argument_of, builder.functional)
    if of_argument is not None:
        index, steps = of_argument
        base = builder.stand_ins[index].seen
        builder.recorder.views.of_inputs.refuse_older(result, base, builder.stand_ins[index].declared.name)
        if _autograd_replays(result, base, steps, builder):
            return _view(index, True, steps, result, base, builder)
        slot = builder.add_user(value, result, _has_gradient(result, builder))
        return Rewritten(FromView(index, True, replay_steps(steps), True), slot)
    chains = shared[value.tensor.storage]
    if len(chains) == 1:
        return FromSlot(builder.add_user(value, result, _has_gradient(result, builder)))
    return _shared_rule(result, steps, chains, builder)


def _shared_rule(
    result: torch.Tensor, steps: tuple[ViewStep, ...], chains: list[list[Value]], builder: _Builder
) -> OutputRule:
    """A view of a tensor that all results on this storage are views of: of the one that autograd says so of, if it is
    one, else of the nearest to the root that still exists.
    """
    common = [value for place, value in enumerate(chains[0]) if all(c[place : place + 1] == [value] for c in chains)]
    viewed = builder.viewed_on[common[0].tensor.storage]
    existing = (value for value in common if builder.recorder.tensors_of(value))
    root = next((value for value in common if viewed == {value}), None) or next(existing, common[0])
    steps = steps[common.index(root) :]
    if root not in builder.bases:
        bases = builder.recorder.tensors_of(root)
        base = max(bases, key=lambda t: (_autograd_replays(result, t, steps, builder), t.requires_grad), default=None)
        builder.bases[root] = builder.add_user(root, base, False)
    slot = builder.bases[root]
    base = builder.tensors[slot]
    if base is None or not _autograd_replays(result, base, steps, builder):
        own = builder.add_user(builder.recorder.value_of(result), result, _has_gradient(result, builder))
        return Rewritten(FromView(slot, False, replay_steps(steps), True), own)
    builder.needs_gradient[slot] |= _has_gradient(result, builder)
    if result is base and _has_gradient(result, builder) == base.requires_grad:
        return FromSlot(slot)
    return _view(slot, False, steps, result, base, builder)


def _has_gradient(result: torch.Tensor, builder: _Builder) -> bool:
    """Whether a gradient that arrives at the result flows back to an input.

    It does not from a view made under no_grad of a tensor that requires gradients (eager takes it for a leaf), from
    views of that one, or from what is computed of leaves that the program makes.
    """
    known = builder.leads_to_input
    stack: list[Any] = [result.grad_fn]
    while stack:
        node = stack[-1]
        following = [] if node is None else [child for child, _ in node.next_functions]
        waiting = [child for child in following if child not in known]
        if node in known or not waiting:
            stack.pop()
            ends_at = id(getattr(node, "variable", None))
            if ends_at in builder.input_of and ends_at not in builder.leaves:
                name = builder.stand_ins[builder.input_of[ends_at]].declared.name
                raise UnsupportedInputMutation(what="requires_grad on and off again", name=name)
            known[node] = known.get(node, False) or ends_at in builder.leaves or any(known[c] for c in following)
        else:
            stack.extend(waiting)
    return known[result.grad_fn]


def _view(
    index: int, of_input: bool, steps: tuple[ViewStep, ...], result: torch.Tensor, base: torch.Tensor, builder: _Builder
) -> FromView:
    is_apart = _is_apart(result, base, builder)
    counts_alone = is_apart and len(set(version_counter_classes([base, result]))) == 2
    return (CountedAlone if counts_alone else FromView)(index, of_input, replay_steps(steps), is_apart)


def _is_apart(result: torch.Tensor, base: torch.Tensor, builder: _Builder) -> bool:
    """Whether autograd sees no view of the base in the result, or of what another result is a view of, too."""
    viewed = viewed_tensor(result)
    is_alone = viewed is not viewed_tensor(base) and builder.viewed[id(viewed)] == 1
    return (base.requires_grad or is_alone) and not _has_gradient(result, builder)


def _autograd_replays(result: torch.Tensor, base: torch.Tensor, steps: tuple[ViewStep, ...], builder: _Builder) -> bool:
    """Whether making the views again on `base` gives `result` the same gradient path."""
    if not _has_gradient(result, builder) or result is base:
        return True
    if has_hooks(result) or not base.requires_grad:
        return False
    views = {spelled(schema_of(s.node.target).name) for s in steps if isinstance(s.node.target, Overload)}
    views |= {"alias", "asstrided"}  # what autograd says for a renamed tensor, and for a view that was written
    target = base.grad_fn
    node: Any = result.grad_fn
    for _ in range(_MAX_VIEW_DEPTH):
        if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
            return node is not None and node is target
        if target is not None and node is target:
            return True
        if target is None and getattr(node, "variable", None) is base:
            return True
        following = [child for child, _ in node.next_functions if child is not None]
        if len(following) != 1 or operator_of(node) not in views:
            return False
        node = following[0]
    return False
