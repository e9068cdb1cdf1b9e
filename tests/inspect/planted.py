"""Programs with a planted fault, long ones among them, and checks that find it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dovetail.inspect.minify_candidate import Builder
from dovetail.inspect.minify_oracles import Failure, FailureKind, worst
from dovetail.inspect.minify_recording import Recording
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.program import Program, Stage, values_in
from dovetail.ops.interpret import run_node, size_numbers
from dovetail.pipeline.differential import plain_function
from tests.harness.functional_programs import Reader

aten = torch.ops.aten
BROKEN = aten.erf.default
Oracle = Callable[[Program, list[Any]], "Failure | None"]


class Contains:
    """Fails where the program calls each of these operators."""

    def __init__(self, *targets: object) -> None:
        self.targets = targets
        self.calls = 0
        self.identity = f"contains {targets}"

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        self.calls += 1
        if {node.target for node in program.nodes}.issuperset(self.targets):
            return Failure(FailureKind.RAISED, "RuntimeError", f"bad operator {self.targets[0]}, call {self.calls}")
        return None


class Computes:
    """Runs the program with a wrong kernel in place of an operator's, and compares with what it should give."""

    def __init__(self, target: object, wrong: Callable[..., object], tolerance: float = 1e-5) -> None:
        self.target, self.wrong, self.tolerance = target, wrong, tolerance
        self.calls = 0

    def __call__(self, program: Program, inputs: list[Any]) -> Failure | None:
        self.calls += 1
        expected_inputs, actual_inputs = inputs, clone_together(inputs)
        expected = plain_function(program)(list(expected_inputs))
        actual = self._run(program, actual_inputs)
        pairs = [*zip(expected, actual, strict=True), *zip(expected_inputs, actual_inputs, strict=True)]
        return worst(pairs, self.tolerance)

    def _run(self, program: Program, inputs: list[Any]) -> list[Any]:
        held = dict(zip(program.inputs, inputs, strict=True))
        sizes = size_numbers(held.items())
        for node in program.nodes:
            wrong = replace(node, target=self.wrong) if node.target is self.target else node
            held.update(run_node(wrong, held, sizes))
        return [held[value] for output in program.outputs for value in values_in(output)]


def long_program(seed: int, length: int, fault: str, at: int, *, writes: bool = False) -> tuple[Program, list[Any]]:
    """A program of about `length` nodes and its inputs. fault: a call over `{a}`, made at that node.

    Each node reads values that were made shortly before; there are views, lists and, with `writes`, writes to inputs
    and other values, and two inputs that share memory.
    """
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    memory = torch.rand(24, generator=generator)
    given = {"x0": memory[:16].view(4, 4), "x1": memory[8:].view(4, 4)}
    given |= {f"x{i}": torch.rand(4, 4, generator=generator) for i in range(2, 6)}
    reader = Reader(given)
    names = list(given)
    while len(reader.nodes) < length:
        a, b = choose.choice(names[-8:]), choose.choice([*given, *names[-20:]])
        new = f"v{len(reader.nodes)}"
        if len(reader.nodes) >= at and fault:
            reader.add(f"{new} = {fault.format(a=a)}")
            fault, names = "", []  # so that what comes later depends on it
        else:
            for line in _lines(choose, new, a, b, writes):
                reader.add(line)
        names.append(new)
    program = reader.program(names[-3:])
    return replace(program, stage=Stage.IMPURE if writes else Stage.FUNCTIONAL), list(given.values())


def _lines(choose: random.Random, new: str, a: str, b: str, writes: bool) -> list[str]:
    kinds = ["pointwise"] * 6 + ["view", "list"] + ["write"] * (2 * writes)
    kind = choose.choice(kinds)
    if kind == "view":
        return [f"{new} = aten.t.default({a})"]
    if kind == "list":
        return [f"{new}l, {new}r = aten.split.Tensor({a}, 2)", f"{new} = aten.cat.default([{new}r, {new}l])"]
    if kind == "write":
        template = choose.choice(["add_.Tensor({a}, 0.5)", "mul_.Tensor({a}, -1.25)", "cos_.default({a})"])
        return [f"{new} = aten.{template.format(a=a)}"]
    template = choose.choice(
        [
            "aten.add.Tensor({a}, 1.0)",
            "aten.cos.default({a})",
            "aten.add.Tensor({a}, {b}, alpha=0.5)",
            "aten.sub.Tensor({b}, {a}, alpha=0.25)",
            "aten.mul.Tensor({a}, 1.5)",
        ]
    )
    return [f"{new} = {template.format(a=a, b=b)}"]


def smaller_failures(program: Program, inputs: list[Any], fails: Callable[[Program, list[Any]], bool]) -> list[str]:
    """What can still be left out of a program alone such that it fails: each node, and each output of several."""
    builder = Builder(Recording(program, inputs))
    whole = builder.whole()
    found = []
    candidates = []
    for output in whole.outputs if len(whole.outputs) > 1 else ():
        rest = [other for other in whole.outputs if other is not output]
        candidates.append((f"output {output}", builder.returning(whole, rest)))
    for index in whole.kept:
        candidates.append((f"node {index}", builder.without(whole, {index})))
        candidates += [(f"node {index} for an operand", other) for other in builder.swapped(whole, index)]
    for what, candidate in candidates:
        built = builder.build(candidate)
        if built is not None and fails(built.program, clone_together(built.inputs)):
            found.append(what)
    return found
