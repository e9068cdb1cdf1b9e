"""Record one function once: its forward, and its backward for each pattern of gradients that arrive.

`Recording` holds everything that a later backward needs (the fake autograd graph, the recorder, the functionalizer at
the end of forward), so that a new pattern is one more backward, not one more forward.
"""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dovetail.analysis.alias_pattern import APART, Accesses, AliasPattern
from dovetail.analysis.infer import MetaInference
from dovetail.capture.backed_zeros import nodes_with_memory
from dovetail.capture.between_results import edge_of, passed_results
from dovetail.capture.changes import InputChanges, Reshaped, accesses_of
from dovetail.capture.copies_or_views import expect_copies
from dovetail.capture.engine import Root, gradients_of, roots_of, without_backward
from dovetail.capture.functionalize import Functionalizer
from dovetail.capture.inputs import InputMaker, InputSpec, constant_stand_in, functionalizer_of
from dovetail.capture.left_modes import modes_left, unknown_before
from dovetail.capture.number_functions import numbers_traced
from dovetail.capture.number_symbols import NumberSymbols
from dovetail.capture.origins import OriginTracker
from dovetail.capture.outputs import OutputAnalysis, analyse_outputs
from dovetail.capture.recorder import Recorder
from dovetail.capture.recording_context import named_errors, recording_on_fakes
from dovetail.capture.visible import VisibleEffects, visible_effects
from dovetail.errors import UnsupportedInputMutation
from dovetail.ir.calling import LIKE_OUTPUT, Arrival, Pattern, Retained
from dovetail.ir.convert import tree_to_scalar
from dovetail.ir.program import Phase, Program, Stage, Value
from dovetail.ir.signature import (
    Constant,
    Gradient,
    InputMutation,
    InputRole,
    OutputRole,
    ResultGradient,
    Signature,
    Tangent,
    WriteKind,
)
from dovetail.ir.sizes import Scalar
from dovetail.ops.views import replay
from dovetail.torch_compat.autograd import set_version, version_of
from dovetail.torch_compat.decompositions import Decompositions, TakenApart
from dovetail.torch_compat.fakes import FakeMode, fake_apart, is_fake
from dovetail.torch_compat.subclasses import AnyLayout, is_wrapper, put_together, take_apart
from dovetail.torch_compat.symbols import expected_trees, guard_count, guard_trees
from dovetail.torch_compat.traced_numbers import is_traced, number_now


@dataclass(frozen=True, slots=True)
class RecordedPrograms:
    """One recording as it ran and as a functional program.

    comparable: running both gives the same outputs. It does not when backward writes what forward has already given
    out: the recorded program then shows the last contents in both places.
    """

    recorded: Program
    functional: Program
    comparable: bool


class Recording:
    """See the module docstring: make one, call `run_forward`, then `programs` for each pattern."""

    def __init__(
        self,
        mode: FakeMode,
        inputs: Sequence[InputSpec],
        around: Callable[[Recording], contextlib.AbstractContextManager[None]] | None = None,
        alias_pattern: AliasPattern = APART,
        constants: Sequence[torch.Tensor] = (),
        taken_apart: Decompositions | None = None,
        numbers: NumberSymbols | None = None,
    ) -> None:
        """Prepare to record.

        inputs: what the function takes. around: held while it runs. alias_pattern: how its inputs and `constants` (real
        tensors that it is known to close over, in order) share memory. taken_apart: operators to replace, by rules.
        numbers: trace of the inputs that are traced numbers, if there are any.
        """
        self.mode = mode
        self._taken_apart = TakenApart(taken_apart) if taken_apart else contextlib.nullcontext()
        self._around = around
        self.origins = OriginTracker()
        self.alias_pattern = alias_pattern
        self._twin = partial(fake_apart, mode)
        self._numbers = numbers
        self.recorder = Recorder(self.origins, self._twin, self.mode, numbers=numbers)
        self.infer = MetaInference(mode, ChainMap(self.recorder.symbols, {} if numbers is None else numbers.now))
        self.specs = list(inputs)
        maker = InputMaker(mode, self.recorder, self.specs, alias_pattern, constants)
        self.stand_ins = maker.make()
        self._extras = len(maker.extra)
        self.outputs: OutputAnalysis
        self._forward_end: Functionalizer
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._forward_nodes = 0
        self._forward_constants = 0
        self._late_writes: set[int] = set()
        self.left_modes: dict[str, Any] = {}

    # --- forward --------------------------------------------------------------------------------------------

    def run_forward(self, function: Callable[..., Sequence[object]], set_anyway: Collection[str] = ()) -> None:
        """Record `function(*inputs)`, which returns a flat sequence. set_anyway: see `left_modes`."""
        with self.recorder.reals.lent():
            self._record_forward(function, set_anyway)
        tensors = [s.seen for s in self.stand_ins if isinstance(s.seen, torch.Tensor) and is_fake(s.seen)]
        self._versions = [(tensor, version_of(tensor)) for tensor in tensors if not tensor.is_inference()]

    def _record_forward(self, function: Callable[..., Sequence[object]], set_anyway: Collection[str]) -> None:
        with self._recording(), without_backward(self.origins), modes_left(self.left_modes, set_anyway):
            self.recorder.switches.update(unknown_before(set_anyway))
            results = list(function(*[item.seen for item in self.stand_ins[: len(self.specs)]]))
            self._note_constants(results)
            self.note_checks()
            expect_copies(self.recorder, results, [stand_in.value for stand_in in self.stand_ins])
        self._forward_nodes = len(self.recorder.nodes)
        functional = functionalizer_of(self.stand_ins, self.infer, self.recorder.new_storage)
        with named_errors(self.origins):  # autograd makes gradient functions of written views when they are looked at
            for node in self.recorder.nodes:
                functional.consume(node)
            functional.at_phase(Phase.FORWARD)
            self._analyse(results, functional)
        self._forward_end = functional

    def _analyse(self, results: list[object], functional: Functionalizer) -> None:
        self.visible = self._visible(results)
        self.changes = changes = InputChanges.of(self.stand_ins, self.recorder, functional)
        leaves = [s.leaf for s in self.stand_ins if s.leaf is not None]
        self.outputs = analyse_outputs(results, self.stand_ins, leaves, changes, self.recorder, functional)
        self._roots = roots_of(self.outputs.tensors)

    def _note_constants(self, results: list[object]) -> None:
        """Real tensors that the program closed over, or returns, become inputs."""
        own = {id(stand_in.seen) for stand_in in self.stand_ins if stand_in.is_matrix}
        for result in results:
            if isinstance(result, torch.Tensor) and id(result) not in own:
                for tensor in take_apart(result)[0] if is_wrapper(result) else [result]:
                    self.recorder.value_of(tensor)
        known = len(self.stand_ins) - len(self.specs) - self._extras
        for tensor, value in self.recorder.constants[known:]:
            self.stand_ins.append(constant_stand_in(self.recorder.reals.of(tensor), value))
        self._forward_constants = len(self.recorder.constants)

    def note_checks(self) -> None:
        """Let the program check, from here on, what torch has assumed about numbers that only data tell."""
        self.recorder.expect([tree_to_scalar(tree) for tree in expected_trees(self.mode.shape_env)])
        if self._numbers is not None:
            self._numbers.note_sizes()
            self.recorder.expect(self._numbers.expected)

    def _visible(self, results: Sequence[object]) -> VisibleEffects:
        own = self.stand_ins[: len(self.specs)]
        return visible_effects([s.seen for s in own], [s.version for s in own], results)

    def fresh_inputs(self) -> list[Any]:
        """Fake inputs that lie and count versions like those that were recorded, and have seen nothing yet."""
        maker = InputMaker(self.mode, Recorder(self.origins, self._twin, self.mode), self.specs, self.alias_pattern, ())
        seen = [stand_in.seen for stand_in in maker.make()[: len(self.specs)]]
        return [number_now(item) if is_traced(item) else item for item in seen]

    def accesses(self) -> Accesses:
        """What the program does to its arguments: inputs, then constants (extras are not counted)."""
        return accesses_of(self.stand_ins, self.changes, self._forward_end, self._late_writes)

    # --- backward -------------------------------------------------------------------------------------------

    def full_pattern(self) -> Pattern:
        """Every differentiable output receives a gradient laid out like the output."""
        return tuple(LIKE_OUTPUT if differentiable else None for differentiable in self.outputs.plan.differentiable)

    def likely_pattern(self) -> Pattern:
        """`full_pattern`, unless exactly one differentiable output is a single number: then that is the loss."""
        full = self.full_pattern()
        losses = [i for i, s in enumerate(full) if s is not None and self.outputs.tensors[i].dim() == 0]
        if len(losses) != 1:
            return full
        return tuple(arrival if i == losses[0] else None for i, arrival in enumerate(full))

    def passed_results(self) -> dict[int, tuple[int, ...]]:
        """For each forward output: the others that its gradient comes by, if there are any."""
        return passed_results(self.outputs.plan, self._roots)

    def programs(self, name: str, pattern: Pattern, retained: Retained = ()) -> RecordedPrograms:
        """The program of forward and of the backward in which `pattern` says what arrives, recorded and functional.

        The recording is as before, but for what it knows: constants that this backward met, and facts about sizes.

        pattern: per forward output, how its gradient is laid out, or None where none arrives. retained: outputs whose
        gradients are wanted as well.
        """
        functional = self._forward_end.fork()
        self._refuse_unlike_eager(functional)
        with self._forked():
            return self._programs(name, pattern, functional, retained)

    @contextlib.contextmanager
    def _forked(self) -> Iterator[None]:
        """What is recorded meanwhile goes on from the end of forward, and is gone afterwards."""
        forward = self.recorder.nodes
        self.recorder.nodes = list(forward)
        try:
            with self.recorder.reals.lent():
                yield
        finally:
            self.recorder.nodes, self.recorder.phase = forward, Phase.FORWARD
            for tensor, version in self._versions:  # backward may have written inputs
                set_version(tensor, version)

    def _programs(
        self, name: str, pattern: Pattern, functional: Functionalizer, retained: Retained
    ) -> RecordedPrograms:
        tangents, gradients = self._record_backward(pattern, functional, retained)
        late = [
            (index, stand_in.value)
            for index, stand_in in enumerate(self.stand_ins)
            if functional.write_count(stand_in.value) != self._forward_end.write_count(stand_in.value)
            and stand_in.rule is None
        ]
        self._late_writes.update(index for index, _ in late)
        read = {value for node in functional.nodes for value in node.operands()}
        met_late = [value for _, value in self.recorder.constants[self._forward_constants :] if value in read]
        kept_late = [value for value in met_late if functional.write_count(value)]
        input_roles: list[InputRole] = [
            *(stand_in.role for stand_in in self.stand_ins),
            *(Constant(value.name) for value in met_late),
            *(Tangent(output) for output, _ in tangents),
        ]
        inputs = (*(s.declared for s in self.stand_ins), *met_late, *(tangent for _, tangent in tangents))
        roles: tuple[OutputRole, ...] = (
            *self.outputs.roles,
            *(InputMutation(index, WriteKind.UNTRACKED, during_backward=True) for index, _ in late),
            *(InputMutation(-1, WriteKind.UNTRACKED, during_backward=True, constant=v.name) for v in kept_late),
            *(role for role, _ in gradients),
        )
        after = [*(value for _, value in late), *kept_late, *(gradient for _, gradient in gradients)]
        recorded = (*self.outputs.recorded, *after)
        made = (*self.outputs.values, *(None if value is None else functional.read(value) for value in after))
        nodes, signature = nodes_with_memory(functional.nodes, made), Signature(tuple(input_roles), roles)
        return RecordedPrograms(
            Program(name, Stage.IMPURE, inputs, tuple(self.recorder.nodes), recorded, signature),
            Program(name, Stage.FUNCTIONAL, inputs, nodes, made, signature),
            comparable=not (late or kept_late),
        )

    def _refuse_unlike_eager(self, functional: Functionalizer) -> None:
        """Raise where a program would differ from eager: in a gradient, or in memory that views reach past their base.

        A view that leaves the memory which the program knows of can be read, unless something there is written.
        """
        for name in self.changes.unlike_eager:
            what = "memory by its address in the storage, tracked by autograd,"
            raise UnsupportedInputMutation(what=what, name=name)
        for view, around in functional.outside:
            if functional.write_count(view) or functional.write_count(around):
                name = next((s.declared.name for s in self.stand_ins if s.value is around), around.name)
                raise UnsupportedInputMutation(what="memory outside the region", name=name)

    def _record_backward(
        self, pattern: Pattern, functional: Functionalizer, retained: Retained
    ) -> tuple[list[tuple[int, Value]], list[tuple[OutputRole, Value | None]]]:
        differentiable = [(i, s.leaf) for i, s in enumerate(self.stand_ins) if s.leaf is not None]
        wanted = [i for i, strides in enumerate(pattern) if strides is not None]
        if not wanted or not differentiable:
            return [], [(Gradient(index), None) for index, _ in differentiable]
        arriving = {index: self._tangent_like(index, pattern[index]) for index in wanted}
        tangents = [(index, self.recorder.add_tensor(made, f"tangent_{index}")) for index, made in arriving.items()]
        for _, value in tangents:
            functional.declare(value)
        self.recorder.phase = Phase.BACKWARD
        with self._recording():
            ends = self._ends(arriving)
            leaves = [*(leaf for _, leaf in differentiable), *(edge_of(self._roots[slot]) for slot in retained)]
            found = gradients_of([e for e, _ in ends], leaves, [g for _, g in ends], len(retained))
            gradients: list[tuple[OutputRole, torch.Tensor | None]] = [
                (Gradient(index, layout), tensor)
                for (index, _), gradient in zip(differentiable, found, strict=False)
                for layout, tensor in self._parts_of(gradient)
            ]
            gradients += zip(map(ResultGradient, retained), found[len(differentiable) :], strict=True)
            self.note_checks()
        for _, constant in self.recorder.constants[self._forward_constants :]:
            functional.declare(constant)
        with named_errors(self.origins):
            for node in self.recorder.nodes[self._forward_nodes :]:
                functional.consume(node)
            functional.at_phase(Phase.BACKWARD)
        return tangents, [(role, None if g is None else self.recorder.value_of(g)) for role, g in gradients]

    def _parts_of(self, gradient: torch.Tensor | None) -> list[tuple[AnyLayout | None, torch.Tensor | None]]:
        if gradient is not None and self.recorder.sparse.is_known(gradient):
            form, pairs = self.recorder.sparse.taken_apart(gradient)
            return [(form, part) for part in pairs]
        if gradient is None or not is_wrapper(gradient):
            return [(None, gradient)]
        parts, layout = take_apart(gradient)
        return [(layout, part) for part in parts]

    def _ends(self, arriving: Mapping[int, torch.Tensor]) -> list[tuple[Root, torch.Tensor]]:
        """Where gradients arrive, as autograd sees it: at outputs, and at wrappers of outputs."""
        ends, packed = list[tuple[Root, torch.Tensor]](), set[int]()
        for pack, wrapper in zip(self.outputs.plan.packs, self.outputs.wrappers, strict=True):
            packed.update(pack.slots)
            if all(slot in arriving for slot in pack.slots):
                ends.append((wrapper, put_together(pack.layout, [arriving[slot] for slot in pack.slots])))
        reshaped = self._reshaped()
        for slot, tangent in arriving.items():
            if slot not in packed:
                steps = reshaped[slot].steps if slot in reshaped else ()
                ends.append((self._roots[slot], replay(tangent, steps)))
        self.recorder.views.lay_out(end for end, _ in ends)
        return ends

    def _reshaped(self) -> dict[int, Reshaped]:
        """The forward outputs that are contents of inputs whose shape was changed."""
        found = self.changes.reshaped
        return {w.slot: found[w.input] for w in self.outputs.plan.writes if w.input in found}

    def _tangent_like(self, slot: int, arrival: Arrival) -> torch.Tensor:
        output = self.outputs.tensors[slot]
        shape, strides = tuple(output.shape), output.stride()
        before = self._reshaped().get(slot)
        if before is not None:  # it arrives for the shape from before
            shape, strides = before.shape, before.strides
        strides = arrival if isinstance(arrival, tuple) else strides
        with self.mode:
            return torch.empty_strided(shape, strides, dtype=output.dtype, device=output.device)

    # --- shared ---------------------------------------------------------------------------------------------

    @property
    def can_train(self) -> bool:
        """Whether an input, or a tensor that the function closed over, wants a gradient."""
        return any(stand_in.leaf is not None for stand_in in self.stand_ins)

    @property
    def takes_numbers(self) -> bool:
        """Whether some inputs are traced numbers."""
        return self._numbers is not None and len(self._numbers.inputs) > 0

    @property
    def operator_count(self) -> int:
        """How many operators forward ran."""
        return self._forward_nodes

    @property
    def size_facts(self) -> int:
        """How many facts about symbolic sizes and traced numbers recording has relied on so far."""
        return guard_count(self.mode.shape_env) + (0 if self._numbers is None else len(self._numbers.facts))

    @property
    def size_conditions(self) -> list[Scalar]:
        """Those facts, over the size symbols."""
        of_numbers = [] if self._numbers is None else self._numbers.size_conditions
        return [*(tree_to_scalar(tree) for tree in guard_trees(self.mode.shape_env)), *of_numbers]

    @property
    def is_symbolic(self) -> bool:
        """Whether a size in the program is a symbol."""
        return bool(self.recorder.symbols)

    @property
    def forward_constants(self) -> list[tuple[str, torch.Tensor]]:
        """The real tensors that forward met, by name, in order: they follow the declared inputs."""
        return [(value.name, x) for x, value in self.recorder.constants[: self._forward_constants]]

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """The real tensors that are passed in after the declared inputs, by name."""
        return {value.name: tensor for tensor, value in self.recorder.constants}

    @contextlib.contextmanager
    def in_region(self) -> Iterator[None]:
        """Operators recorded here belong to a checkpoint region."""
        before = self.recorder.recomputing
        self.recorder.recomputing = self.recorder.phase is Phase.BACKWARD
        try:
            yield
        finally:
            self.recorder.recomputing = before

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        around = self._around(self) if self._around else contextlib.nullcontext()
        if self._numbers is not None:
            around = numbers_traced(around, self._numbers.number_for)
        with recording_on_fakes(self.recorder, self.mode, self.origins, around, self._taken_apart):
            yield
