"""The function around a program: pass the inputs, write back what autograd tracks, and return the user's results.

One Python function per compiled graph, generated from its `CallPlan`, readable in the dump. For `x.mul_(2)` followed by
`return x + y`, where x and y overlap, x as a result of other operators:

    def call(run, args):
        x = args[0]
        args[2:2] = [flat_bytes(x, torch.float32, 6, 0), viewed_tensor(x)]
        outs = run(args)
        withdraw_announcement(x)
        followed(x, outs[1]).copy_(outs[1])
        return (outs[0], )
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.errors import UnsupportedOutput
from dovetail.execute.shared_bytes import flat_bytes, followed, withdraw_announcement
from dovetail.ir.calling import (
    AsLeaf,
    CallPlan,
    FromConstant,
    FromInput,
    FromOutput,
    FromSlot,
    FromView,
    InputRule,
    OutputRule,
    Rebuilt,
    ReplayStep,
    Rewritten,
    ViewBase,
)
from dovetail.ir.program import Program, symbols_in
from dovetail.ir.signature import WriteKind
from dovetail.ir.sizes import symbol
from dovetail.ir.text import Names, operator_text, symbol_source
from dovetail.ops.grafting import graft
from dovetail.ops.prims import copy_into
from dovetail.torch_compat.autograd import viewed_tensor
from dovetail.torch_compat.subclasses import put_together

Wrapper = Callable[[Callable[[list[Any]], Sequence[Any]], list[Any]], tuple[Any, ...]]


class _WrapperWriter:
    def __init__(self, plan: CallPlan, program: Program) -> None:
        self.plan = plan
        self.program = program
        self.names = Names(frozenset(value.name for value in program.inputs))
        self.lines: list[str] = []
        self.result = "result_"
        while any(value.name.startswith(self.result) for value in program.inputs):
            self.result += "_"

    def write(self) -> str:
        named = sorted({rule.output for rule in self.plan.outputs if isinstance(rule, FromOutput)})
        after = self._changes()
        body = [
            *self._writes(),
            *(f"    {self.result}{place} = {self._output(self.plan.outputs[place])}" for place in named),
        ]
        results = [
            f"{self.result}{i}" if i in named else self._output(rule) for i, rule in enumerate(self.plan.outputs)
        ]
        returned = f"({''.join(f'{result}, ' for result in results)})"
        if after:
            body += [f"    {self.result}all = {returned}", *after]
            returned = f"{self.result}all"
        body.append(f"    return {returned}")
        head = ["def call(run, args):"]
        head += [f"    {self._input(i)} = args[{self._position(i)}]" for i in self._kept_inputs()]
        head += [f"    {self._input(flag.input)}.requires_grad_()" for flag in self.plan.flags if flag.before]
        if self.plan.extras:
            at = self.plan.extras_at
            head.append(f"    args[{at}:{at}] = [{', '.join(map(self._extra, self.plan.extras))}]")
        return "\n".join([*head, "    outs = run(args)", *self._symbols(), *body]) + "\n"

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
        for change in self.plan.metadata:
            arguments = ", ".join([self._input(change.input), *map(self.names.text, change.args)])
            lines.append(f"    {operator_text(change.target)}({arguments})")
        lines += [f"    {self._input(flag.input)}.requires_grad_(False)" for flag in self.plan.flags if not flag.before]
        return lines

    def _kept_inputs(self) -> list[int]:
        kept = {w.input for w in self.plan.writes if w.kind is WriteKind.TRACKED}
        kept.update(change.input for change in self.plan.metadata)
        kept.update(flag.input for flag in self.plan.flags)
        kept.update(self.plan.touched)
        kept.update(extra.of if isinstance(extra, ViewBase) else extra.leader for extra in self.plan.extras)
        kept.update(self.plan.returned_inputs())
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
            if source is None and expr in self.program.outputs:
                source = f"outs[{self.program.outputs.index(expr)}]"
            if source is None:
                raise UnsupportedOutput(what="a view of a size that is only known when the program runs")
            if source != name:
                lines.append(f"    {name} = {source}")
        return lines

    def _input(self, index: int) -> str:
        return self.program.inputs[index].name

    def _writes(self) -> list[str]:
        """Writes that autograd follows; the others are carried out where the program runs."""
        lines = [f"    withdraw_announcement({name})" for name in self._tracked()]
        for write in self.plan.writes:
            if write.kind is WriteKind.TRACKED:
                value = self.program.inputs[write.input]
                contents = f"outs[{write.slot}]"
                target = f"followed({value.name}, {contents})"
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
        if isinstance(rule, FromConstant) and isinstance(rule.value, torch.Size):
            return f"torch.Size({self.names.text(tuple(rule.value))})"
        if isinstance(rule, FromConstant):
            return self.names.text(rule.value)
        if isinstance(rule, FromSlot):
            return f"outs[{rule.slot}]"
        if isinstance(rule, FromInput):
            return self._input(rule.input)
        if isinstance(rule, Rewritten):
            return f"graft({self._output(rule.view)}.detach(), outs[{rule.slot}])"
        if isinstance(rule, AsLeaf):
            return f"{self._output(rule.of)}.detach().requires_grad_()"
        if isinstance(rule, FromOutput):
            return f"{self.result}{rule.output}"
        if isinstance(rule, Rebuilt):
            layout = self.names.constant(rule.layout, "_layout")
            return f"put_together({layout}, [{', '.join(map(self._output, rule.parts))}])"
        text = self._input(rule.base) if rule.of_input else f"outs[{rule.base}]"
        if rule.detach:
            text = f"{text}.detach()"
        elif not rule.steps:
            text = f"torch.ops.aten.alias.default({text})"
        return self._viewed(text, rule.steps)


def wrapper_source(plan: CallPlan, program: Program) -> tuple[str, dict[str, object]]:
    """The source of the wrapper of `program`, and the objects it mentions by name."""
    writer = _WrapperWriter(plan, program)
    source = writer.write()
    return source, dict(writer.names.globals)


def build_wrapper(plan: CallPlan, program: Program) -> Wrapper:
    """The wrapper: `(run, args) -> user outputs`, where run empties the list it gets."""
    source, named = wrapper_source(plan, program)
    namespace: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "copy_into": copy_into,
        "flat_bytes": flat_bytes,
        "followed": followed,
        "graft": graft,
        "viewed_tensor": viewed_tensor,
        "withdraw_announcement": withdraw_announcement,
        "increment_version": torch.autograd.graph.increment_version,
        "put_together": put_together,
        **named,
    }
    exec(compile(source, f"<dovetail wrapper of {program.name}>", "exec"), namespace)
    wrapper: Wrapper = namespace.pop("call")
    return wrapper
