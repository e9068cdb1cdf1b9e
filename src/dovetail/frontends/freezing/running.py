"""The methods of a frozen module as they run: in place, and over weights that are packed for this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dovetail.analysis.liveness import simulate_peak
from dovetail.deferred import deferred
from dovetail.execute.protocol import ExecutorList, RunnableProgram
from dovetail.frontends.freezing.method import FrozenMethod, RunnableMethod
from dovetail.frontends.freezing.pool import Packed, Pool
from dovetail.frontends.freezing.variant import FrozenGuard, FrozenRunner
from dovetail.frontends.size_guard import shape_of, strides_of
from dovetail.frontends.variant_cache import Variant
from dovetail.ir.prim import Prim
from dovetail.ir.program import Program
from dovetail.ops.packing import reads_panels
from dovetail.ops.quantized import computes_in_int8
from dovetail.pipeline.freezing import Folded, Packing, pack, plan_packing, without_packing

if TYPE_CHECKING:
    from dovetail.memory import kept_pages
    from dovetail.pipeline import panel_layers
else:
    kept_pages = deferred("dovetail.memory.kept_pages")
    panel_layers = deferred("dovetail.pipeline.panel_layers")  # which programs of operators alone do not need

Finish = Callable[[Folded, ExecutorList], RunnableProgram]

FOR_SPEED = frozenset({"panels", "prepack"})
"""Passes for this machine, which somebody has asked for."""


def _over_panels(program: Program) -> Program:
    """See `panel_layers.over_panels`. Operators that are torch's stay as they are where there are no others."""
    has_own = any(isinstance(node.target, Prim) for node in program.nodes)
    return panel_layers.over_panels(program) if has_own else program


class Running:
    """Code for the programs of methods, bound to the tensors of a pool."""

    def __init__(
        self,
        methods: Mapping[str, FrozenMethod],
        executors: ExecutorList,
        finish: Sequence[Finish],
        *,
        packs: bool = True,
    ) -> None:
        """finish: for each program of each method, in order, makes code of it. packs: weights are packed."""
        self.frozen = dict(methods)
        passed = {name for method in methods.values() for name in method.passes}
        self.executors = executors if passed.isdisjoint(FOR_SPEED) else executors.made_for_speed()
        self.methods: dict[str, RunnableMethod] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self._packs = packs
        self._finish = tuple(finish)
        self._folded = [one.folded for method in methods.values() for one in method.programs]
        if not passed.isdisjoint(FOR_SPEED):
            exact = panel_layers.exact_norms
            self._folded = [replace(one, program=exact(one.program)) for one in self._folded]
        wished = [_over_panels(folded.program) for folded in self._folded]
        if any(reads_panels(node.target) for program in wished for node in program.nodes):  # or LLVM is not looked for
            has_kernels = packs and executors.multiplies_panels()
            programs = wished if has_kernels else [panel_layers.over_packed(folded.program) for folded in self._folded]
            self._folded = [replace(one, program=new) for one, new in zip(self._folded, programs, strict=True)]
        is_int8 = any(computes_in_int8(node.target) for one in self._folded for node in one.program.nodes)
        if packs and is_int8 and executors.multiplies_int8_panels():
            self._folded = [replace(one, program=panel_layers.over_int8_panels(one.program)) for one in self._folded]
        if not packs:
            self._folded = list(map(without_packing, self._folded))

    def bind(self, pool: Pool, *, release: bool = False) -> None:
        """Run over the tensors of a pool from now on.

        release: constants that are packed are let go of, each as soon as it is packed; the pool unpacks them where it
        must. Without it, what fails leaves everything as it was.
        """
        tensors = pool.tensors if release else pool.stored()
        packing = plan_packing(self._folded, frozenset(tensors), pool.state)
        folded = self._folded
        if packing is not None:
            kept = {name: tensor for name, tensor in tensors.items() if name not in packing.packed}
            folded = pack(packing, tensors)
            if release:
                self._release(pool, packing, kept)
        if not self.methods:
            self.methods = self._made(folded)
            if any(reads_panels(node.target) for one in folded for node in one.program.nodes):  # in many small blocks
                kept_pages.keep_pages(max(simulate_peak(one.program).peak_bytes for one in folded))
        for method in self.methods.values():
            method.bind_tensors(tensors)
        self.tensors = tensors

    def prepare(self) -> None:
        """Make the code of every program now, which would else be made when it first runs."""
        for method in self.methods.values():
            for variant in method.variants:
                assert variant.runner.graph is not None, "bound programs have graphs"

    def again(self) -> Running:
        """The same methods, not bound yet."""
        return Running(self.frozen, self.executors, self._finish, packs=self._packs)

    def _release(self, pool: Pool, packing: Packing, kept: Mapping[str, torch.Tensor]) -> None:
        """Let the pool hold constants in packed form where only that is left."""
        metas = {value.name: value.tensor for one in self._folded for value in one.program.inputs}
        tensors = pool.tensors
        pool.tensors = {**kept, **{name: tensors[name] for name in packing.packed if name in tensors}}
        pool.packed = {
            name: Packed(tensors[made], shape_of(metas[name], {}), strides_of(metas[name], {}))
            for name, made in packing.packed.items()
            if name not in tensors
        }

    def _made(self, packed: Sequence[Folded]) -> dict[str, RunnableMethod]:
        parts = iter(list(zip(packed, self._finish, strict=True)))
        made = {}
        for name, method in self.frozen.items():
            names, called = [leaf.name for leaf in method.form.leaves], method.form.method
            variants = [
                Variant(
                    FrozenGuard(program, called, names),
                    FrozenRunner(program, *next(parts), called, names, self.executors),
                )
                for program in method.programs
            ]
            made[name] = RunnableMethod(method, variants)
        return made
