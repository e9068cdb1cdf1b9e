"""The function around a program: check the inputs, write back what autograd follows, hand out what the user gets.

One Python function per compiled graph, generated from its `CallPlan`, readable in the dump:

    def call(run, args):
        check_apart(args, (0,), (0,))
        x = args[0]
        outs = run(args)
        x.copy_(outs[1])
        return (outs[0], torch.ops.aten.view.default(x, [-1]), )
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.analysis.overlap import address_range
from dovetail.errors import OverlappingMutatedInputs
from dovetail.ir.calling import (
    AsLeaf,
    CallPlan,
    FromConstant,
    FromInput,
    FromOutput,
    FromSlot,
    FromView,
    OutputRule,
    Rewritten,
)
from dovetail.ir.program import Program, symbols_in
from dovetail.ir.signature import WriteKind
from dovetail.ir.sizes import SizeExpr
from dovetail.ir.text import Names, operator_text, symbol_source
from dovetail.ops.prims import copy_into
from dovetail.torch_compat.autograd import view_base

Wrapper = Callable[[Callable[[list[Any]], Sequence[Any]], list[Any]], tuple[Any, ...]]


class _WrapperWriter:
    def __init__(self, plan: CallPlan, program: Program) -> None:
        self.plan = plan
        self.program = program
        self.names = Names()
        self.lines: list[str] = []
        self.result = "result_"
        while any(value.name.startswith(self.result) for value in program.inputs):
            self.result += "_"

    def write(self) -> str:
        named = sorted({rule.output for rule in self.plan.outputs if isinstance(rule, FromOutput)})
        body = [
            *self._writes(),
            *(f"    {self.result}{place} = {self._output(self.plan.outputs[place])}" for place in named),
        ]
        results = [
            f"{self.result}{i}" if i in named else self._output(rule) for i, rule in enumerate(self.plan.outputs)
        ]
        body.append(f"    return ({''.join(f'{result}, ' for result in results)})")
        head = ["def call(run, args):"]
        if self.plan.writes:
            written = tuple(w.input for w in self.plan.writes)
            tracked = tuple(w.input for w in self.plan.writes if w.kind is WriteKind.TRACKED)
            head.append(f"    check_apart(args, {written}, {tracked})")
        head += [f"    {self._input(i)} = args[{i}]" for i in self._kept_inputs()]
        return "\n".join([*head, "    outs = run(args)", *self._symbols(), *body]) + "\n"

    def _kept_inputs(self) -> list[int]:
        kept = {w.input for w in self.plan.writes if w.kind is WriteKind.TRACKED}
        for rule in self._sources():
            if isinstance(rule, FromInput):
                kept.add(rule.input)
            elif isinstance(rule, FromView) and rule.of_input:
                kept.add(rule.base)
        if self._needed_symbols():
            kept.update(range(len(self.program.inputs)))
        return sorted(kept)

    def _sources(self) -> list[OutputRule]:
        rules = [rule.of if isinstance(rule, AsLeaf) else rule for rule in self.plan.outputs]
        return [rule.view if isinstance(rule, Rewritten) else rule for rule in rules]

    def _needed_symbols(self) -> list[str]:
        needed: dict[str, None] = {}
        for rule in self._sources():
            if isinstance(rule, FromView):
                for step in rule.steps:
                    needed.update(dict.fromkeys(symbols_in((step.args, [a for _, a in step.kwargs]))))
        return list(needed)

    def _symbols(self) -> list[str]:
        lines = []
        for name in self._needed_symbols():
            source = symbol_source(self.program, SizeExpr("symbol", (name,)))
            if source is not None and source != name:
                lines.append(f"    {name} = {source}")
        return lines

    def _input(self, index: int) -> str:
        return self.program.inputs[index].name

    def _writes(self) -> list[str]:
        """Writes that autograd follows; the others are carried out where the program runs."""
        lines = []
        for write in self.plan.writes:
            if write.kind is WriteKind.TRACKED:
                value = self.program.inputs[write.input]
                contents = f"outs[{write.slot}]"
                overlaps = value.tensor.overlaps_itself()
                call = f"copy_into({value.name}, {contents})" if overlaps else f"{value.name}.copy_({contents})"
                lines.append(f"    {call}")
        return lines

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
            return f"{self._output(rule.view)}.data.copy_(outs[{rule.slot}])"
        if isinstance(rule, AsLeaf):
            return f"{self._output(rule.of)}.detach().requires_grad_()"
        if isinstance(rule, FromOutput):
            return f"{self.result}{rule.output}"
        text = self._input(rule.base) if rule.of_input else f"outs[{rule.base}]"
        if rule.detach:
            text = f"{text}.detach()"
        elif not rule.steps:
            text = f"torch.ops.aten.alias.default({text})"
        for step in rule.steps:
            arguments = [text, *map(self.names.text, step.args)]
            arguments += [f"{name}={self.names.text(a)}" for name, a in step.kwargs]
            text = f"{operator_text(step.target)}({', '.join(arguments)})"
            if step.index is not None:
                text = f"{text}[{step.index}]"
        return text


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
        "check_apart": _Apart(tuple(value.name for value in program.inputs)),
        **named,
    }
    exec(compile(source, f"<dovetail wrapper of {program.name}>", "exec"), namespace)
    wrapper: Wrapper = namespace["call"]
    return wrapper


class _Apart:
    """Raises when a written input shares memory with another input, as the program was recorded with them apart.

    A write that autograd tracks reaches further: every view of the same tensor gets another gradient function.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, args: Sequence[Any], written: tuple[int, ...], tracked: tuple[int, ...]) -> None:
        for index in tracked:
            base = _viewed(args[index])
            for other, arg in enumerate(args):
                if other != index and isinstance(arg, torch.Tensor) and _viewed(arg) is base:
                    raise OverlappingMutatedInputs(written=self._names[index], other=self._names[other])
        ranges = {i: address_range(a) for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.numel()}
        in_order = sorted(ranges, key=lambda i: ranges[i])
        marked = set(written)
        open_until: list[tuple[int, int]] = []
        for index in in_order:
            start, end = ranges[index]
            open_until = [(stop, other) for stop, other in open_until if stop > start]
            for _, other in open_until:
                if index in marked or other in marked:
                    pair = (index, other) if index in marked else (other, index)
                    raise OverlappingMutatedInputs(written=self._names[pair[0]], other=self._names[pair[1]])
            open_until.append((end, index))


def _viewed(tensor: torch.Tensor) -> torch.Tensor:
    base = view_base(tensor)
    return tensor if base is None else base
