"""Random training steps as functional programs, and whether updates may run early in a program.

A step has layers with weights that may be shared, losses, draws, checks and notes, gradients in random order, perhaps
clipped, updates of several kinds, one by one or over lists, and copies back in random order, some of them of a part.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dovetail.analysis.updates import find_updates
from dovetail.analysis.verify_inplace import verify_inplace
from dovetail.passes.dead_code import remove_dead_code
from dovetail.passes.early_updates import early_updates, scheduled
from dovetail.passes.expand_foreach import expand_lists
from dovetail.passes.functional import require_functional
from dovetail.passes.inplace import PlanMemory, apply_plan, choose_plan
from tests.harness.functional_programs import FunctionalProgram
from tests.harness.inplace_agreement import Disagreement, difference

_FUSED_ADAMW = (
    "prims.functional_form(aten._fused_adamw_.default, (0, 1, 2, 3, 4))([{p}], [{g}], [{m}], [{s}], [], [{t}], "
    "lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-08, amsgrad=False, maximize=False)"
)


def check_early(made: FunctionalProgram) -> bool:
    """Raise Disagreement when updates that run early, or at random times, show. Whether something moved."""
    choose = random.Random(made.seed)
    program, _ = remove_dead_code(made.program())
    apart, _ = expand_lists(program)
    updates = find_updates(apart)
    times = {group: choose.choice((-1, choose.randrange(len(apart.nodes)))) for group in updates.groups}
    early = scheduled(apart, updates, None if choose.random() < 0.5 else times)
    require_functional(early)
    donated = made.donated_places()
    inplace = apply_plan(choose_plan(early, donated, commit=True))
    verify_inplace(early, inplace, donated=donated, commit=True)
    if not updates.hoisted:
        verify_inplace(apart, inplace, donated=donated, commit=True)
    kept, report = early_updates(program)
    for other in (early, inplace, kept):
        what = difference(made, program, other, bool(updates.groups) and len(updates.copies) > 0 and other is not kept)
        if what:
            raise Disagreement(what)
    if PlanMemory().peak_bytes(kept) != PlanMemory().peak_bytes(program) - report.saved_bytes:
        raise Disagreement(f"the peak is not lower by {report.saved_bytes} bytes")
    return early.nodes != program.nodes


def random_step(seed: int) -> FunctionalProgram:
    """The step of a seed."""
    return _Step(random.Random(seed)).program(seed)


@dataclass
class _Step:
    choose: random.Random
    inputs: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    count: int = 0

    def program(self, seed: int) -> FunctionalProgram:
        """Write the lines."""
        self.size = self.choose.randint(2, 5)
        weights = [self.given(f"torch.randn({self.size}, {self.size}, generator=g)") for _ in range(self.pick(1, 4))]
        used = [self.choose.choice(weights) for _ in weights] if self.maybe(0.3) else list(weights)
        states, loss = self.forward(used)
        if self.maybe(0.5):
            self.guard(loss)
        gradients = self.backward(used, states)
        if self.maybe(0.4):
            gradients = self.clipped(gradients)
        if self.maybe(0.3):
            self.guard(loss)
        copies, results = self.updates(gradients)
        self.choose.shuffle(copies)
        self.body += copies
        returns = [loss, *(self.choose.choice([*weights, *results, *states]) for _ in range(self.pick(0, 2)))]
        return FunctionalProgram(
            seed, tuple(self.inputs), tuple(self.arguments), tuple(self.body), tuple(dict.fromkeys(returns))
        )

    # --- lines

    def given(self, values: str) -> str:
        self.arguments.append(f"x{len(self.arguments)}")
        self.inputs.append(f"{self.arguments[-1]} = {values}")
        return self.arguments[-1]

    def make(self, call: str) -> str:
        self.count += 1
        self.body.append(f"v{self.count} = {call}")
        return f"v{self.count}"

    def make_list(self, count: int, call: str) -> list[str]:
        names = [f"v{self.count + 1 + i}" for i in range(count)]
        self.count += count
        self.body.append(f"{', '.join(names)}{',' if count == 1 else ''} = {call}")
        return names

    def pick(self, low: int, high: int) -> int:
        return self.choose.randint(low, high)

    def maybe(self, share: float) -> bool:
        return self.choose.random() < share

    def aside(self, value: str) -> None:
        """Something beside the point."""
        if self.maybe(0.15):
            kind = self.choose.choice(("note", "note", "demand")) if len(self.body) < 12 else "note"
            self.body.append(f"checks.{kind}.default({value})")

    def guard(self, number: str) -> None:
        finite = self.make(f"aten.isfinite.default({number})")
        answer = self.make(f"aten._local_scalar_dense.default({finite})")
        self.body.append(f"prims.GUARD({answer}, True, 0)")

    # --- parts of a step

    def forward(self, weights: list[str]) -> tuple[list[str], str]:
        h = self.given(f"torch.randn({self.size}, {self.size}, generator=g)")
        states = [h]
        for weight in weights:
            operand = self.make(f"aten.t.default({weight})") if self.maybe(0.5) else weight
            h = self.make(f"aten.mm.default({h}, {operand})")
            if self.maybe(0.5):
                h = self.make(f"aten.tanh.default({h})")
            if self.maybe(0.3):
                mask = self.make(f"aten.bernoulli.p({h}, 0.5)")
                h = self.make(f"aten.mul.Tensor({h}, {mask})")
            self.aside(h)
            states.append(h)
        return states, self.make(f"aten.mean.default({h})")

    def backward(self, weights: list[str], states: list[str]) -> dict[str, str]:
        e = self.make(f"aten.sub.Tensor({states[-1]}, 1.0)")
        gradients: dict[str, str] = {}
        for weight, state in zip(reversed(weights), reversed(states[:-1]), strict=True):
            is_first = self.maybe(0.5)
            if is_first:
                self.gradient(gradients, weight, state, e)
            h = self.make(f"aten.mm.default({e}, {self.make(f'aten.t.default({weight})')})")
            if not is_first:
                self.gradient(gradients, weight, state, e)
            e = self.make(f"aten.mul.Tensor({h}, {state})") if self.maybe(0.5) else h
            self.aside(e)
            if self.maybe(0.1):
                e = self.make(f"aten.add.Tensor({e}, {self.make(f'aten.rand.default([{self.size}])')})")
        return gradients

    def gradient(self, gradients: dict[str, str], weight: str, state: str, e: str) -> None:
        turned = self.make(f"aten.t.default({state})")
        made = self.make(f"aten.mm.default({turned}, {e})")
        known = gradients.get(weight)
        gradients[weight] = made if known is None else self.make(f"aten.add.Tensor({known}, {made})")

    def clipped(self, gradients: dict[str, str]) -> dict[str, str]:
        norms = [self.make(f"aten.linalg_vector_norm.default({g})") for g in gradients.values()]
        together = self.make(f"aten.stack.default([{', '.join(norms)}])")
        total = self.make(f"aten.linalg_vector_norm.default({together})")
        factor = self.make(f"aten.clamp.default({self.make(f'aten.reciprocal.default({total})')}, None, 1.0)")
        if self.maybe(0.5):
            made = self.make_list(
                len(gradients), f"aten._foreach_mul.Tensor([{', '.join(gradients.values())}], {factor})"
            )
            return dict(zip(gradients, made, strict=True))
        return {weight: self.make(f"aten.mul.Tensor({g}, {factor})") for weight, g in gradients.items()}

    def updates(self, gradients: dict[str, str]) -> tuple[list[str], list[str]]:
        copies: list[str] = []
        results: list[str] = []
        shape = f"{self.size}, {self.size}"
        if self.maybe(0.2):
            return self.fused(gradients)
        moments = {p: self.given(f"torch.randn({shape}, generator=g)") for p in gradients}
        if self.maybe(0.3):
            names, values = list(gradients), list(gradients.values())
            lists = f"[{', '.join(moments.values())}], [{', '.join(values)}]"
            new = self.make_list(len(names), f"aten._foreach_lerp.Scalar({lists}, 0.1)")
            made = self.make_list(
                len(names), f"aten._foreach_add.List([{', '.join(names)}], [{', '.join(new)}], alpha=-0.1)"
            )
            copies += [f"aten.copy_.default({p}, {v})" for p, v in zip(names, made, strict=True)]
            copies += [f"aten.copy_.default({moments[p]}, {v})" for p, v in zip(names, new, strict=True)]
            return copies, [*new, *made]
        for weight, gradient in gradients.items():
            self.one(weight, gradient, moments[weight], copies, results)
        return copies, results

    def one(self, weight: str, gradient: str, moment: str, copies: list[str], results: list[str]) -> None:
        kind = self.choose.choice(("sgd", "momentum", "adam", "average", "half"))
        if self.maybe(0.3):
            gradient = self.make(f"aten.add.Tensor({gradient}, {weight}, alpha=0.1)")
        if kind in ("momentum", "adam"):
            decayed = self.make(f"aten.mul.Tensor({moment}, 0.9)")
            moved = self.make(f"aten.add.Tensor({decayed}, {gradient})")
            copies.append(f"aten.copy_.default({moment}, {moved})")
            results.append(moved)
            gradient = moved
        if kind == "adam":
            count = self.given("torch.tensor(3.0)")
            more = self.make(f"aten.add.Tensor({count}, 1)")
            copies.append(f"aten.copy_.default({count}, {more})")
            number = self.make(f"aten._local_scalar_dense.default({more})")
            if self.maybe(0.5):
                answer = self.make(f"aten._local_scalar_dense.default({self.make(f'aten.gt.Scalar({more}, 0)')})")
                self.body.append(f"prims.GUARD({answer}, True, 1)")
            root = self.make(f"aten.sqrt.default({self.make(f'aten.abs.default({gradient})')})")
            gradient = self.make(f"aten.div.Tensor({gradient}, {self.make(f'aten.add.Tensor({root}, {number})')})")
        new = self.make(f"aten.sub.Tensor({weight}, {gradient}, alpha=0.1)")
        results.append(new)
        if kind == "half":
            place = self.make(f"aten.slice.Tensor({weight}, 0, 0, 1)")
            new = self.make(f"aten.slice.Tensor({new}, 0, 0, 1)")
            copies.append(f"aten.copy_.default({place}, {new})")
            return
        copies.append(f"aten.copy_.default({weight}, {new})")
        if kind == "average":
            copies.append(f"aten.copy_.default({moment}, {self.make(f'aten.lerp.Scalar({moment}, {new}, 0.1)')})")

    def fused(self, gradients: dict[str, str]) -> tuple[list[str], list[str]]:
        shape = f"{self.size}, {self.size}"
        first = [self.given(f"torch.randn({shape}, generator=g)") for _ in gradients]
        second = [self.given(f"torch.rand({shape}, generator=g)") for _ in gradients]
        counts = [self.given("torch.tensor(3.0)") for _ in gradients]
        later = [self.make(f"aten.add.Tensor({count}, 1)") for count in counts]
        lists = {"p": gradients, "g": gradients.values(), "m": first, "s": second, "t": later}
        call = _FUSED_ADAMW.format(**{name: ", ".join(items) for name, items in lists.items()})
        made = self.make_list(4 * len(gradients), call)
        size = len(gradients)
        new = [*made[:size], *made[2 * size :], *later]
        copies = [
            f"aten.copy_.default({p}, {v})" for p, v in zip((*gradients, *first, *second, *counts), new, strict=True)
        ]
        return copies, made
