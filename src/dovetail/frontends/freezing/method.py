"""A method of a frozen module: binds a call, finds the program for its shapes, runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.errors import FrozenNeedsNoGrad
from dovetail.frontends.freezing.call_form import CallForm, mismatch
from dovetail.frontends.freezing.originals import Originals
from dovetail.frontends.freezing.quick_calls import QuickCalls
from dovetail.frontends.freezing.variant import FrozenProgram, FrozenRunner, FrozenVariant, share_memory
from dovetail.torch_compat.autograd import transform_is_active
from dovetail.torch_compat.modes import function_mode_is_active


@dataclass(frozen=True, slots=True)
class FrozenMethod:
    """What is saved of a method.

    notes: what became fixed although it might have been free, and why. passes: those of freezing that it went through.
    """

    form: CallForm
    programs: tuple[FrozenProgram, ...]
    notes: tuple[str, ...]
    passes: tuple[str, ...] = ()


class RunnableMethod:
    """A method with code for its programs."""

    def __init__(self, method: FrozenMethod, variants: Sequence[FrozenVariant]) -> None:
        self.method = method
        self.form = method.form
        self.quick = QuickCalls()
        self._written = sorted(frozenset[int]().union(*(program.written for program in method.programs)))
        self.variants = list(variants)

    def bind_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take what the programs hold from these, by name."""
        for variant in self.variants:
            variant.runner.bind(tensors)

    def leaf_that_wants_gradient(self, leaves: Sequence[Any]) -> str | None:
        """The name of an argument that autograd would follow, if there is one."""
        if not torch.is_grad_enabled():
            return None
        pairs = zip(self.form.leaves, leaves, strict=True)
        return next((leaf.name for leaf, x in pairs if isinstance(x, torch.Tensor) and x.requires_grad), None)

    def refuse_memory(self, leaves: Sequence[Any], originals: Originals) -> None:
        """Refuse a call that would write weights: those that are folded would stay as they are.

        Raises: FrozenCallMismatch.
        """
        for number in self._written:
            for name, tensor in originals.tensors():
                if share_memory(leaves[number], tensor):
                    what = f"{self.form.leaves[number].name}, which it writes, and {name} of the model share memory"
                    raise mismatch(self.form.method, what, "pass a copy")

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
        """Run a call. leaves: its arguments, bound. Raises: FrozenCallMismatch with the reason; FrozenNeedsNoGrad."""
        argument = self.leaf_that_wants_gradient(leaves)
        if argument is not None:
            raise FrozenNeedsNoGrad(name=self.form.method, argument=argument)
        if transform_is_active() or function_mode_is_active():
            reason = "a torch.func transform or a function mode is active, and would not see the program's operators"
            raise mismatch(self.form.method, reason, "call it without them, or call the model itself")
        variant, inputs = self._variant_for(leaves)
        if variant.guard.takes_as_given(leaves, inputs):
            self.quick.remember(args, kwargs, variant.runner, inputs)
        return _without_autocast(variant.runner, inputs)

    def name_for(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """The name of the program that a call runs. Raises: FrozenCallMismatch."""
        return self._variant_for(self.form.bind(args, kwargs))[0].guard.program.folded.program.name

    def _variant_for(self, leaves: Sequence[Any]) -> tuple[FrozenVariant, list[Any]]:
        for variant in self.variants:
            inputs = variant.guard.inputs(leaves)
            if inputs is not None:
                return variant, inputs
        reason = "; ".join(dict.fromkeys(variant.guard.why(leaves) for variant in self.variants))
        hint = "name the size in dynamic_shapes when freezing, or give an example of that size"
        because = "; ".join(self.method.notes) or "freezing fixed the sizes that are not symbolic"
        raise mismatch(self.form.method, reason, hint, because)


def _without_autocast(runner: FrozenRunner, inputs: Sequence[torch.Tensor]) -> Any:
    """Run as recorded: a program holds the conversions of the autocast that it was recorded under."""
    active = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not active:
        return runner.run(inputs)
    with torch.autocast(active[0], enabled=False):
        return _without_autocast(runner, inputs)
