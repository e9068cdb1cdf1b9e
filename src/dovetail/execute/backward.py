"""A compiled backward program, and what it takes and gives, by the roles of its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.execute.protocol import RunnableProgram
from dovetail.ir.signature import Constant, Gradient, InputMutation, Residual, ResultGradient, Signature
from dovetail.torch_compat.subclasses import AnyLayout


@dataclass(frozen=True, slots=True)
class CompiledBackward:
    """A backward program for one pattern of arriving gradients.

    residuals: places among the residuals of forward. unsaved: names of residuals that forward does not save.
    gradients: for each output the input whose gradient it is, or -1. wrapped: inputs whose gradient is a wrapper of
    several outputs. of_results: outputs that are gradients of results, with the forward outputs that these are.
    """

    program: RunnableProgram
    residuals: tuple[int, ...]
    unsaved: tuple[str, ...]
    constants: tuple[str, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    wrapped: tuple[tuple[int, AnyLayout, tuple[int, ...]], ...]
    writes: tuple[tuple[int, InputMutation], ...]
    of_results: tuple[tuple[int, int], ...]

    @staticmethod
    def of(compiled: RunnableProgram, tangents: Sequence[int], saved: Sequence[str]) -> CompiledBackward:
        """Read the roles off the program's signature.

        tangents: forward outputs whose gradient it takes. saved: names of what forward saves.
        """
        signature = compiled.program.signature
        residuals = [r.name for r in signature.inputs if isinstance(r, Residual)]
        place = {name: k for k, name in enumerate(saved)}
        return CompiledBackward(
            program=compiled,
            residuals=tuple(place.get(name, -1) for name in residuals),
            unsaved=tuple(name for name in residuals if name not in place),
            constants=tuple(r.name for r in signature.inputs if isinstance(r, Constant)),
            tangents=tuple(tangents),
            gradients=tuple(
                r.input if isinstance(r, Gradient) and r.wrapper is None else -1 for r in signature.outputs
            ),
            wrapped=_wrapped(signature),
            writes=tuple((i, r) for i, r in enumerate(signature.outputs) if isinstance(r, InputMutation)),
            of_results=tuple((i, r.output) for i, r in enumerate(signature.outputs) if isinstance(r, ResultGradient)),
        )


def _wrapped(signature: Signature) -> tuple[tuple[int, AnyLayout, tuple[int, ...]], ...]:
    """Gradients that are wrappers: of which input, how they are put together, and places of their parts."""
    found: dict[int, tuple[AnyLayout, list[int]]] = {}
    for place, role in enumerate(signature.outputs):
        if isinstance(role, Gradient) and role.wrapper is not None:
            found.setdefault(role.input, (role.wrapper, []))[1].append(place)
    return tuple((index, layout, tuple(places)) for index, (layout, places) in found.items())
