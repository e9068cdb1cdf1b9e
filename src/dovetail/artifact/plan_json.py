"""How a call maps to a run (`ir.calling.CallPlan`), as plain data for JSON, and back.

    {"format": "dovetail call plan", "version": 1, "plan": {"rule": "CallPlan", "outputs": [{"rule": "FromSlot", ...}]}}

Each rule is an object of its fields; operands are coded by `operand_json`, operators by `target_text`. Wrappers of
tensors (`Rebuilt`, `Pack`) hold the user's classes, and are not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from dovetail.artifact.call_rules import Calls
from dovetail.artifact.operand_json import operand_from_json, operand_to_json, read_named
from dovetail.artifact.record_json import PLAIN, TEXT, Coding, Records, refused, tuple_of
from dovetail.artifact.source_names import checked_keyword, checked_name
from dovetail.artifact.target_text import is_view, read_target, target_text
from dovetail.errors import NotSerializable
from dovetail.ir import calling
from dovetail.ir.calling import (
    AsLeaf,
    AsParameter,
    CallPlan,
    CountedAlone,
    FlatBytes,
    FromConstant,
    FromInput,
    FromOutput,
    FromSlot,
    FromView,
    OutputRule,
    ReplayStep,
    Rewritten,
    ViewBase,
)
from dovetail.ir.program import Operand, Program, TensorMeta, Value, symbols_in, values_in
from dovetail.ir.signature import WriteKind
from dovetail.ir.sizes import symbol
from dovetail.ir.symbol_sources import symbol_source
from dovetail.torch_compat.dispatch import Overload, tags_of

FORMAT = "dovetail call plan"
VERSION = 1


def plan_to_json(plan: CallPlan, program: Program) -> dict[str, Any]:
    """The plan for calls of `program` as data for `json_text.json_bytes`.

    Raises: NotSerializable for wrappers of tensors, constants that are no plain values, and plans that `program` cannot
    carry out.
    """
    try:
        _check(plan, program)
        return _written(plan)
    except ValueError as error:
        hint = "return tensors and plain values"
        raise NotSerializable(what=f"the call of {program.name}", reason=error, hint=hint) from error


def plan_from_json(data: object, program: Program) -> CallPlan:
    """The plan that `plan_to_json` wrote for this program; equal to it.

    Raises: ValueError that says what is wrong: other data, inputs or outputs that the program does not have, sizes that
    it does not know, an operator that is none.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f'it does not say "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise ValueError(f"it is of version {data.get('version')}; this dovetail reads version {VERSION}")
    try:
        plan = _PLAN.read(data.get("plan"))
        _check(plan, program)
        if json.dumps(_written(plan), sort_keys=True) != json.dumps(data, sort_keys=True):
            raise ValueError("it is not written as dovetail writes it")
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is damaged: {type(error).__name__}: {error}") from error
    return plan  # type: ignore[no-any-return]


def _written(plan: CallPlan) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "plan": _PLAN.write(plan)}


def _no_values(name: str) -> Value:
    raise ValueError(f"value {name!r} is used where no values are allowed")


def _write_operand(operand: Operand) -> Any:
    if any(values_in((operand,))):
        raise ValueError("a value is used where no values are allowed")
    return operand_to_json(operand)


def _read_operand(data: Any) -> Operand:
    return operand_from_json(data, _no_values)


def _write_target(target: Any) -> str:
    if not isinstance(target, Overload):
        raise ValueError(f"{target!r} is not an operator")
    return target_text(target)


def _read_target(text: Any) -> Any:
    target = read_target(text)
    if not isinstance(target, Overload):
        raise ValueError(f"{text!r} is not an operator")
    return target


def _write_keywords(pairs: Any) -> list[Any]:
    return [[checked_keyword(name), _write_operand(operand)] for name, operand in pairs]


def _read_keywords(data: Any) -> tuple[Any, ...]:
    return tuple([(checked_keyword(name), _read_operand(operand)) for name, operand in data])


def _codings() -> Mapping[str, Coding]:
    operand = Coding(_write_operand, _read_operand)
    table = {
        **PLAIN,
        "Target": Coding(_write_target, _read_target),
        "object": operand,
        "tuple[Operand, ...]": tuple_of(operand),
        "tuple[tuple[str, Operand], ...]": Coding(_write_keywords, _read_keywords),
        "torch.dtype": Coding(
            lambda dtype: str(dtype).removeprefix("torch."), lambda name: read_named("dtype", TEXT.read(name))
        ),
        "tuple[Pack, ...]": tuple_of(refused("wrappers of tensors")),
    }
    table["tuple[ReplayStep, ...]"] = tuple_of(Records("rule", (ReplayStep,), table).coding())
    table["FromView | Rebuilt"] = Records("rule", (FromView, CountedAlone), table).coding()
    simple = (FromConstant, FromSlot, FromInput, FromView, CountedAlone, FromOutput, Rewritten)
    # The tensor of an `AsLeaf` rule.
    table["OutputRule"] = Records("rule", (FromSlot, FromInput, FromView, CountedAlone, Rewritten), table).coding()
    table["tuple[OutputRule, ...]"] = tuple_of(Records("rule", (*simple, AsLeaf, AsParameter), table).coding())
    table["tuple[WriteBack, ...]"] = tuple_of(Records("rule", (calling.WriteBack,), table).coding())
    table["tuple[InputRule, ...]"] = tuple_of(Records("rule", (FlatBytes, ViewBase), table).coding())
    table["tuple[MetadataChange, ...]"] = tuple_of(Records("rule", (calling.MetadataChange,), table).coding())
    table["tuple[GradientFlag, ...]"] = tuple_of(Records("rule", (calling.GradientFlag,), table).coding())
    return table


_PLAN = Records("rule", (CallPlan,), _codings(), absent=("gradients", "moves", "left", "apart"))


def _check(plan: CallPlan, program: Program) -> None:
    """Raise ValueError unless the program has the inputs, outputs and sizes that the plan speaks of."""
    count = len(program.inputs)
    extras = range(plan.extras_at, plan.extras_at + len(plan.extras))
    if plan.extras_at < 0 or extras.stop > count:
        raise ValueError("its extra inputs are not inputs of the program")
    for number in _inputs_of(plan):
        if not 0 <= number < count or number in extras:
            raise ValueError(f"the program has no input {number} that a call passes")
    for slot in _slots_of(plan):
        if not 0 <= slot < len(program.outputs):
            raise ValueError(f"the program has no output {slot}")
    numbers = {k for k, value in enumerate(program.inputs) if not value.is_tensor}
    if any(number in numbers for number in _inputs_of(plan)):
        raise ValueError("an input that is used as a tensor is not a tensor")
    if any(not _is_tensor(program.outputs[slot]) for slot in _tensor_slots_of(plan)):
        raise ValueError("an output that is used as a tensor is not a tensor")
    _check_gradients(plan, program)
    _check_values(plan)
    for name in symbols_in([(step.args, [a for _, a in step.kwargs]) for step in _steps_of(plan)]):
        if symbol_source(program, symbol(checked_name(name))) is None:
            raise ValueError(f"the program's inputs do not determine the size {name}")
    count = len(plan.differentiable)  # outputs behind them are kept for a backward
    if not max(_slots_of(plan), default=-1) < count <= len(program.outputs):
        raise ValueError("it does not say of each output whether a gradient can arrive for it")


def _check_gradients(plan: CallPlan, program: Program) -> None:
    """Raise ValueError for integers that require gradients."""
    for flag in plan.flags:
        dtype = program.inputs[flag.input].tensor.dtype
        if flag.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"input {flag.input} is of {dtype}, and cannot require gradients")
    for rule in plan.outputs:
        if isinstance(rule, AsLeaf) and getattr(rule, "requires_grad", True):
            dtype = _tensor_of(rule.of, plan, program).dtype
            if not (dtype.is_floating_point or dtype.is_complex):
                raise ValueError(f"a result is of {dtype}, and cannot require gradients")


def _tensor_of(rule: OutputRule, plan: CallPlan, program: Program) -> TensorMeta:
    """The tensor that a result is, or is a view of."""
    if isinstance(rule, Rewritten):
        return _tensor_of(rule.view, plan, program)
    if isinstance(rule, FromInput) or (isinstance(rule, FromView) and rule.of_input):
        return program.inputs[rule.input if isinstance(rule, FromInput) else rule.base].tensor
    slot = rule.slot if isinstance(rule, FromSlot) else rule.base if isinstance(rule, FromView) else None
    value = None if slot is None else program.outputs[slot]
    if not isinstance(value, Value):
        raise ValueError("a result that requires gradients is not a tensor of the program")
    return value.tensor


def _check_views(plan: CallPlan) -> None:
    """Steps of views are views, and changes of shape are nothing else; each is called as its schema says."""
    calls = Calls(())
    for step in _steps_of(plan):
        if not isinstance(step.target, Overload) or not is_view(step.target):
            raise ValueError(f"{step.target} is not an operator that views a tensor")
        calls.check_view(step.target, step.args, step.kwargs)
    for change in plan.metadata:
        if not isinstance(change.target, Overload) or torch.Tag.inplace_view not in tags_of(change.target):
            raise ValueError(f"{change.target} is not an operator that changes only the shape of its operand")
        calls.check_view(change.target, change.args, ())


def _check_values(plan: CallPlan) -> None:
    """What the plan says by itself."""
    _check_views(plan)
    for place, rule in enumerate(plan.outputs):
        for inner in _rules_of(rule):
            if isinstance(inner, FromOutput) and not 0 <= inner.output < place:
                raise ValueError(f"result {inner.output} is not computed before result {place}")
            if isinstance(inner, FromConstant) and any(symbols_in((inner.value,))):
                raise ValueError("a constant result is a size")
    if any(symbols_in([change.args for change in plan.metadata])):
        raise ValueError("a changed shape of an input is a size that is only known when the program runs")
    if any(write.steps and write.kind is WriteKind.TRACKED for write in plan.writes):
        raise ValueError("a write that autograd tracks goes to a view")
    if any(extra.length < 0 for extra in plan.extras if isinstance(extra, FlatBytes)):
        raise ValueError("memory that inputs share has no size")


def _rules_of(rule: OutputRule) -> Iterator[OutputRule]:
    yield rule
    if isinstance(rule, AsLeaf):
        yield from _rules_of(rule.of)
    elif isinstance(rule, Rewritten):
        yield from _rules_of(rule.view)


def _all_rules(plan: CallPlan) -> Iterator[OutputRule]:
    for rule in plan.outputs:
        yield from _rules_of(rule)


def _steps_of(plan: CallPlan) -> Iterator[ReplayStep]:
    for rule in _all_rules(plan):
        if isinstance(rule, FromView):
            yield from rule.steps
    for write in plan.writes:
        yield from write.steps


def _inputs_of(plan: CallPlan) -> Iterator[int]:
    for rule in _all_rules(plan):
        if isinstance(rule, FromInput):
            yield rule.input
        elif isinstance(rule, FromView) and rule.of_input:
            yield rule.base
    yield from (write.input for write in plan.writes)
    yield from (change.input for change in plan.metadata)
    yield from (flag.input for flag in plan.flags)
    for extra in plan.extras:
        yield extra.of if isinstance(extra, ViewBase) else extra.leader
    yield from plan.touched


def _is_tensor(output: Operand) -> bool:
    return isinstance(output, Value) and output.is_tensor


def _slots_of(plan: CallPlan) -> Iterator[int]:
    yield from (rule.slot for rule in _all_rules(plan) if isinstance(rule, FromSlot))
    yield from _tensor_slots_of(plan)


def _tensor_slots_of(plan: CallPlan) -> Iterator[int]:
    for rule in _all_rules(plan):
        if isinstance(rule, Rewritten):
            yield rule.slot
        elif isinstance(rule, AsLeaf) and isinstance(rule.of, FromSlot):
            yield rule.of.slot
        elif isinstance(rule, FromView) and not rule.of_input:
            yield rule.base
    for write in plan.writes:
        yield write.slot
