"""The function around a program: pass the inputs, write back what autograd tracks, and return the user's results.

It carries out the whole of a `CallPlan`, of functions and of training steps: one Python function per program, readable
in the dump. For `x.mul_(2)` followed by `return x + y`, where x and y overlap, x as a result of other operators:

    def call(run, args):
        x = args[0]
        args[2:2] = [flat_bytes(x, torch.float32, 6, 0), viewed_tensor(x)]
        outs = run(args)
        withdraw_announcement(x)
        followed(x, outs[1]).copy_(outs[1])
        return (outs[0], )

For a step that drops the gradient of w, computes its loss and `loss.item()`, and leaves another gradient:

    def call(run, args):
        w = args[0]
        def drop_gradients():
            w.grad = None
        outs = run(args, drop_gradients)
        result_left = (outs[2], )
        w.grad = outs[1]
        return (outs[0], *result_left)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dovetail.errors import UnsupportedOutput
from dovetail.execute.shared_bytes import change_layout, flat_bytes, followed, withdraw_announcement
from dovetail.ir.calling import (
    AsLeaf,
    AsParameter,
    CallPlan,
    CountedAlone,
    Formatted,
    FromConstant,
    FromInput,
    FromLeft,
    FromOutput,
    FromSlot,
    FromView,
    GradientExit,
    GradientFlag,
    InputRule,
    LeafGradient,
    MetadataChange,
    OutputRule,
    Rebuilt,
    ReplayStep,
    Rewritten,
    ViewBase,
    WithLook,
)
from dovetail.ir.draft import free_name
from dovetail.ir.program import Program, symbols_in
from dovetail.ir.signature import WriteKind
from dovetail.ir.sizes import symbol
from dovetail.ir.symbol_sources import symbol_source
from dovetail.ir.text import Names, identifier, operator_text
from dovetail.ops.grafting import graft
from dovetail.ops.prims import copy_into
from dovetail.ops.seen import as_seen
from dovetail.torch_compat.autograd import viewed_tensor
from dovetail.torch_compat.dispatch import Overload, schema_of
from dovetail.torch_compat.subclasses import put_together

Wrapper = Callable[[Callable[..., Sequence[Any]], list[Any]], tuple[Any, ...]]


class _WrapperWriter:
    def __init__(self, plan: CallPlan, program: Program, inputs: Sequence[str]) -> None:
        """inputs: what the plan's inputs are called."""
        self.plan = plan
        self.program = program
        self.inputs = inputs
        self.names = Names(frozenset(inputs))
        self.lines: list[str] = []
        self.changed_first = _changed_first(plan)
        self.result = "result_"
        while any(name.startswith(self.result) for name in inputs):
            self.result += "_"

    def write(self) -> str:
        plan = self.plan
        named = sorted({rule.output for rule in plan.outputs if isinstance(rule, FromOutput)})
        after = self._changes()
        left = [f"    {self.result}left = {_tuple(map(self._output, plan.left))}"] if plan.left else []
        body = [
            *self._writes(),
            *(self._change(change) for change in plan.metadata if change.input in self.changed_first),
            *(f"    {self._apart(slot)} = outs[{slot}].detach()" for slot in plan.apart),
            *left,
            *self._gradients(),
            *(f"    {self.result}{place} = {self._output(plan.outputs[place])}" for place in named),
        ]
        results = [f"{self.result}{i}" if i in named else self._output(rule) for i, rule in enumerate(plan.outputs)]
        if after:
            body += [f"    {self.result}all = {_tuple(results)}", *after]
            returned = f"(*{self.result}all, *{self.result}left)" if left else f"{self.result}all"
        else:
            returned = _tuple([*results, *([f"*{self.result}left"] if left else [])])
        body.append(f"    return {returned}")
        head = ["def call(run, args):"]
        head += [f"    {self._input(i)} = args[{self._position(i)}]" for i in self._kept_inputs()]
        head += [f"    {self._turned(flag)}" for flag in plan.flags if flag.before]
        if plan.extras:
            at = plan.extras_at
            head.append(f"    args[{at}:{at}] = [{', '.join(map(self._extra, plan.extras))}]")
        return "\n".join([*head, *self._run(), *self._symbols(), *body]) + "\n"

    def _run(self) -> list[str]:
        """The run itself. Gradients that are dropped first are; others are once the last check has passed."""
        first, late = (
            [f"{self._input(g.input)}.grad = None" for g in _dropped(self.plan, is_first)] for is_first in (True, False)
        )
        lines = [f"    {line}" for line in first]
        if not late:
            return [*lines, "    outs = run(args)"]
        inner = [f"        {line}" for line in late]
        return [*lines, "    def drop_gradients():", *inner, "    outs = run(args, drop_gradients)"]

    def _gradients(self) -> list[str]:
        lines = []
        for gradient in filter(_is_put, self.plan.gradients):
            left = "None" if isinstance(gradient.exit, GradientExit) else self._output(gradient.exit)
            lines.append(f"    {self._input(gradient.input)}.grad = {left}")
        return lines

    def _turned(self, flag: GradientFlag) -> str:
        return f"{self._input(flag.input)}.requires_grad_({'' if flag.requires_grad else 'False'})"

    def _apart(self, slot: int) -> str:
        return f"{self.result}apart_{slot}"

    def _slot(self, slot: int) -> str:
        return self._apart(slot) if slot in self.plan.apart else f"outs[{slot}]"

    def _position(self, index: int) -> int:
        """Where an input stands before extras are put in."""
        return index if index < self.plan.extras_at else index - len(self.plan.extras)

    def _extra(self, rule: InputRule) -> str:
        if isinstance(rule, ViewBase):
            return f"viewed_tensor({self._input(rule.of)})"
        return f"flat_bytes({self._input(rule.leader)}, {rule.dtype}, {rule.length}, {rule.back})"

    def _tracked(self) -> list[str]:
        return [self._input(w.input) for w in self.plan.writes if w.kind is WriteKind.TRACKED]

    def _changes(self) -> list[str]:
        """Changes of inputs other than of their data."""
        lines = [f"    increment_version({self._input(index)})" for index in self.plan.touched]
        lines += [self._change(change) for change in self.plan.metadata if change.input not in self.changed_first]
        lines += [f"    {self._turned(flag)}" for flag in self.plan.flags if not flag.before]
        memory = [
            f"{self._input(move.to.input)}.detach()"
            if isinstance(move.to, FromInput)
            else f"{self.result}all[{move.to.output}].detach()"
            for move in self.plan.moves
        ]
        if memory:
            lines.append(f"    {self.result}memory = {_tuple(memory)}")
        lines += [
            f"    {self._input(move.input)}.data = {self.result}memory[{n}]" for n, move in enumerate(self.plan.moves)
        ]
        return lines

    def _change(self, change: MetadataChange) -> str:
        arguments = ", ".join([self._input(change.input), *map(self.names.text, change.args)])
        return f"    change_layout({operator_text(change.target)}, {arguments})"

    def _kept_inputs(self) -> list[int]:
        kept = {w.input for w in self.plan.writes if w.kind is WriteKind.TRACKED}
        kept.update(change.input for change in self.plan.metadata)
        kept.update(flag.input for flag in self.plan.flags)
        kept.update(self.plan.touched)
        kept.update(extra.of if isinstance(extra, ViewBase) else extra.leader for extra in self.plan.extras)
        kept.update(self.plan.returned_inputs())
        kept.update(gradient.input for gradient in self.plan.gradients if gradient.is_cleared or _is_put(gradient))
        kept.update(move.input for move in self.plan.moves)
        kept.update(move.to.input for move in self.plan.moves if isinstance(move.to, FromInput))
        if self._needed_symbols():
            extras = range(self.plan.extras_at, self.plan.extras_at + len(self.plan.extras))
            kept.update(i for i in range(len(self.program.inputs)) if i not in extras)
        return sorted(kept)

    def _needed_symbols(self) -> list[str]:
        needed: dict[str, None] = {}
        for rule in self.plan.sources():
            if isinstance(rule, FromView):
                for step in rule.steps:
                    needed.update(dict.fromkeys(symbols_in((step.args, [a for _, a in step.kwargs]))))
        return list(needed)

    def _symbols(self) -> list[str]:
        lines = []
        for name in self._needed_symbols():
            expr = symbol(name)
            source = symbol_source(self.program, expr)
            if source is None and expr in self.program.outputs:  # after all results, residuals are outputs, too
                source = f"outs[{self.program.outputs.index(expr)}]"
            if source is None:
                raise UnsupportedOutput(
                    what="a view of a size that is only known when the program runs",
                    reason="the view is made when the program has run, and none of its results says the size",
                    hint="return a copy of it (`.clone()`)",
                )
            if source != name:
                lines.append(f"    {name} = {source}")
        return lines

    def _input(self, index: int) -> str:
        return self.inputs[index]

    def _writes(self) -> list[str]:
        """Writes that autograd follows; the others are carried out where the program runs."""
        lines = [f"    withdraw_announcement({name})" for name in self._tracked()]
        for write in self.plan.writes:
            if write.kind is WriteKind.TRACKED:
                value = self.program.inputs[write.input]
                contents = f"outs[{write.slot}]"
                target = f"followed({self._input(write.input)}, {contents})"
                overlaps = value.tensor.overlaps_itself()
                lines.append(f"    copy_into({target}, {contents})" if overlaps else f"    {target}.copy_({contents})")
        return lines

    def _viewed(self, text: str, steps: Sequence[ReplayStep]) -> str:
        for step in steps:
            arguments = [text, *map(self.names.text, step.args)]
            arguments += [f"{name}={self.names.text(a)}" for name, a in step.kwargs]
            text = f"{operator_text(step.target)}({', '.join(arguments)})"
            if step.index is not None:
                text = f"{text}[{step.index}]"
        return text

    def _output(self, rule: OutputRule) -> str:
        if isinstance(rule, FromConstant):
            return self._constant(rule.value)
        if isinstance(rule, FromSlot):
            return self._slot(rule.slot)
        if isinstance(rule, WithLook | Formatted):
            return self._of_step(rule)
        if isinstance(rule, FromInput):
            return self._input(rule.input)
        if isinstance(rule, Rewritten):
            return f"graft({self._output(rule.view)}.detach(), outs[{rule.slot}])"
        if isinstance(rule, AsLeaf):
            return self._leaf(rule)
        if isinstance(rule, FromOutput):
            return f"{self.result}{rule.output}"
        if isinstance(rule, Rebuilt):
            layout = self.names.constant(rule.layout, "_layout")
            return f"put_together({layout}, [{', '.join(map(self._output, rule.parts))}])"
        text = self._input(rule.base) if rule.of_input else f"outs[{rule.base}]"
        if rule.detach:
            text = f"{text}.data" if isinstance(rule, CountedAlone) else f"{text}.detach()"
        elif len(rule.steps) == (self.changed_first.get(rule.base, 0) if rule.of_input else 0):
            text = f"torch.ops.aten.alias.default({text})"
        return self._viewed(text, rule.steps[self.changed_first.get(rule.base, 0) if rule.of_input else 0 :])

    def _leaf(self, rule: AsLeaf) -> str:
        text = f"{self._output(rule.of)}.detach()"
        if isinstance(rule, AsParameter):
            return f"torch.nn.Parameter({text}, {rule.requires_grad})"
        return f"{text}.requires_grad_()"

    def _of_step(self, rule: WithLook | Formatted) -> str:
        if isinstance(rule, Formatted):
            return f"{self.names.constant(rule, '_text')}.made({self.result}left)"
        assert not isinstance(rule.of, FromLeft), "a result comes from the program"
        return f"as_seen({self._output(rule.of)}, {self.names.constant(rule.look, '_look')})"

    def _constant(self, value: object) -> str:
        """A literal for plain values; else the object itself, such as a member of an enum that is a text as well."""
        if type(value) is torch.Size:
            return f"torch.Size({self.names.text(tuple(value))})"
        if type(value) in _LITERALS:
            return self.names.text(value)
        return self.names.constant(value, f"_{identifier(type(value).__name__).lower()}")


_LITERALS = (type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, torch.device)


def _tuple(items: Iterable[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def wrapper_source(
    plan: CallPlan, program: Program, inputs: Sequence[str] | None = None
) -> tuple[str, dict[str, object]]:
    """The source of the wrapper of `program`, and the objects it mentions by name.

    inputs: what to call the plan's inputs, where these are not the program's.
    """
    if inputs is None:
        names = [value.name for value in program.inputs]
    else:
        taken: dict[str, None] = {}
        for wish in inputs:
            taken[free_name(identifier(wish), taken)] = None
        names = list(taken)
    writer = _WrapperWriter(plan, program, names)
    source = writer.write()
    return source, dict(writer.names.globals)


def drops_late(plan: CallPlan) -> bool:
    """Whether gradients are dropped while a step runs: once its last check has passed."""
    return bool(_dropped(plan, is_first=False))


def _is_put(gradient: LeafGradient) -> bool:
    """Whether a step leaves another gradient than there was, or none where there was one."""
    if isinstance(gradient.exit, GradientExit):
        return gradient.exit is GradientExit.NONE and (gradient.had or gradient.is_cleared)
    return True


def _changed_first(plan: CallPlan) -> dict[int, int]:
    """Inputs whose shape or strides change before results are made of them, with the number of changes.

    As in eager mode, where every result that is a view of such an input was made after these: a part of several in one
    (`split`) may not be changed later. The views that say what has changed fall away.
    """
    changes: dict[int, list[MetadataChange]] = {}
    for change in plan.metadata:
        changes.setdefault(change.input, []).append(change)
    views = [rule for rule in (*plan.sources(), *plan.left) if isinstance(rule, FromView) and rule.of_input]
    return {
        index: len(made)
        for index, made in changes.items()
        if all(_begins_with(rule.steps, made) for rule in views if rule.base == index)
    }


def _begins_with(steps: Sequence[ReplayStep], changes: Sequence[MetadataChange]) -> bool:
    """Whether the first steps are these changes, as views."""
    return len(steps) >= len(changes) and all(
        isinstance(step.target, Overload)
        and isinstance(change.target, Overload)
        and schema_of(change.target).name == f"{schema_of(step.target).name}_"
        and step.args == change.args
        for step, change in zip(steps, changes, strict=False)
    )


def _dropped(plan: CallPlan, is_first: bool) -> list[LeafGradient]:
    return [g for g in plan.gradients if g.is_cleared and g.is_first is is_first]


def build_wrapper(plan: CallPlan, program: Program, inputs: Sequence[str] | None = None) -> Wrapper:
    """The wrapper: `(run, args) -> user outputs`, where run empties the list it gets. inputs: see `wrapper_source`.

    Of a step, `run(args, then)`, where `then` is called once the last check of the program has passed.
    """
    source, named = wrapper_source(plan, program, inputs)
    namespace: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "as_seen": as_seen,
        "copy_into": copy_into,
        "flat_bytes": flat_bytes,
        "followed": followed,
        "graft": graft,
        "viewed_tensor": viewed_tensor,
        "withdraw_announcement": withdraw_announcement,
        "change_layout": change_layout,
        "increment_version": torch.autograd.graph.increment_version,
        "put_together": put_together,
        **named,
    }
    exec(compile(source, f"<dovetail wrapper of {program.name}>", "exec"), namespace)
    wrapper: Wrapper = namespace.pop("call")
    return wrapper
