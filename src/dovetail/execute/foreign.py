"""Programs that a user's compiler compiles: a graph module out, a callable back.

`ForeignProgram` stands where `execute.compiled.CompiledProgram` does. The user's compiler receives one half of a
split, in its functional form, as a `torch.fx.GraphModule` of ATen operators with fakes in `meta["val"]`. Whatever it
returns is called in place of dovetail's own code: with the half's inputs in order, for a sequence of its outputs in
order. What is not the compiler's business stays with the wrapper: writes to inputs, views, aliases, autograd.

Each result is checked against the program's description: its number, shape, dtype and device are facts that the wrapper
and the other half rely on. Two differences are repaired, because the caller would see them: other strides, and a
result that is an input, or another result, but should have its own memory. Symbolic sizes are not checked. If a
compiler returns the graph module unchanged, its strides are not repaired: they are eager's.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail.errors import BadCompiledResult, BadCompiler
from dovetail.ir.fx_write import DescribedFakes, to_graph_module
from dovetail.ir.graph_signature import GraphSignature
from dovetail.ir.program import Operand, Program, TensorMeta, Value
from dovetail.ir.signature import Gradient, Residual, ResultGradient, UserOutput
from dovetail.ir.sizes import SizeExpr
from dovetail.ops.prims import copy_into
from dovetail.torch_compat.boxed import is_boxed
from dovetail.torch_compat.decompositions import Decompositions
from dovetail.torch_compat.modes import autocast_is_active, autocast_off

Compiler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Compilers:
    """Compilers of the user's, `(gm, example_inputs) -> callable`, for each half, and for calls without gradients.

    joint: shown the program before it is split, `(gm, example_inputs) -> None`. decompositions: operators to take apart
    while recording, by rules.
    """

    forward: Compiler
    backward: Compiler
    inference: Compiler
    joint: Compiler | None = None
    decompositions: Decompositions | None = None


class ForeignProgram:
    """Callable `(inputs: list) -> list`; empties the list."""

    def __init__(
        self,
        program: Program,
        compiler: Compiler,
        described: DescribedFakes,
        forward: Program | None = None,
        donated: Collection[int] = (),
    ) -> None:
        """Let the compiler compile it.

        forward: of a backward half, its forward half. donated: numbers of inputs that the code may write.
        """
        self._donated = frozenset(donated)
        self._program = program
        self._name = _name_of(compiler)
        gm = to_graph_module(program, described=described)
        self._source = gm.code
        self._run = _compiled(compiler, self._name, gm, program, forward, self._donated)
        self._is_boxed = is_boxed(self._run)
        is_graph = getattr(self._run, "__wrapped__", self._run) is gm and gm.code == self._source
        self._mends_strides = not is_graph  # which eager's own operators gave, whatever fakes of them say
        self._expected = _Expected.all_of(program)

    @property
    def program(self) -> Program:
        """What runs."""
        return self._program

    @property
    def source(self) -> str:
        """The code of the graph module, as it was handed to the compiler."""
        return self._source

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run. inputs: one per program input, in order; emptied."""
        kept = (item for index, item in enumerate(inputs) if index not in self._donated)
        strided = (item for item in kept if isinstance(item, torch.Tensor) and item.layout is torch.strided)
        taken = {item.untyped_storage().data_ptr() for item in strided} - {0}
        del kept, strided
        with autocast_off() if autocast_is_active() else nullcontext():  # casts are nodes of the program
            if self._is_boxed:
                results = self._run(inputs)
            else:
                given = tuple(inputs)
                inputs.clear()
                results = self._run(*given)
                del given
        inputs.clear()
        if not isinstance(results, tuple | list) or len(results) != len(self._expected):
            raise self._bad(f"returned {_told(results)}", f"a list or tuple of {len(self._expected)}")
        return [self._mended(result, e, taken) for result, e in zip(results, self._expected, strict=True)]

    def _mended(self, result: Any, expected: _Expected, taken: set[int]) -> Any:
        meta = expected.meta
        if meta is None:
            return expected.constant if expected.is_constant else result
        if not isinstance(result, torch.Tensor):
            raise self._bad(f"gave {_told(result)} for output {expected.place}", str(meta))
        shape = tuple(result.shape)
        fits = len(shape) == len(meta.shape) and all(
            have == want for have, want in zip(shape, meta.shape, strict=True) if isinstance(want, int)
        )
        if not fits and expected.is_saved:  # what torch says of a kernel's workspace need not be so
            return result
        if not fits or result.dtype != meta.dtype or result.device != meta.device:
            raise self._bad(f"gave {_told(result)} for output {expected.place}", str(meta))
        if self._mends_strides and expected.stride is not None and result.stride() != expected.stride:
            result = _laid_out(result, expected.stride)
        if expected.is_fresh:
            place = result.untyped_storage().data_ptr()
            if place in taken:
                return _laid_out(result, result.stride())
            if place:
                taken.add(place)
        return result

    def _bad(self, what: str, expected: str) -> BadCompiledResult:
        return BadCompiledResult(compiler=self._name, program=self._program.name, what=what, expected=expected)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What an output is like.

    meta: None for what is no tensor. stride: where it is known. is_fresh: it is handed to the user, in memory that no
    input and no other output has. is_saved: it is for backward. constant: a number or None that the program returns
    whatever runs.
    """

    place: int
    meta: TensorMeta | None
    stride: tuple[int, ...] | None
    is_fresh: bool
    is_saved: bool
    constant: object
    is_constant: bool

    @staticmethod
    def all_of(program: Program) -> list[_Expected]:
        held = list(program.input_storages())
        held += [o.tensor.storage for o in program.outputs if isinstance(o, Value) and o.is_tensor]
        holders = Counter(held)
        return [_Expected.of(program, place, holders) for place in range(len(program.outputs))]

    @staticmethod
    def of(program: Program, place: int, holders: Mapping[int, int]) -> _Expected:
        """holders: by storage, how many inputs and outputs lie there."""
        operand: Operand = program.outputs[place]
        role = program.signature.outputs[place]
        is_saved = isinstance(role, Residual)
        if not isinstance(operand, Value) or not operand.is_tensor:
            is_constant = not isinstance(operand, Value | SizeExpr)
            return _Expected(place, None, None, False, is_saved, operand, is_constant)
        meta = operand.tensor
        known = tuple(step for step in meta.stride if isinstance(step, int))
        is_fresh = isinstance(role, UserOutput | Gradient | ResultGradient) and holders[meta.storage] == 1
        return _Expected(
            place, meta, known if len(known) == len(meta.stride) else None, is_fresh, is_saved, None, False
        )


def _laid_out(result: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    made = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    return copy_into(made, result)


def _compiled(
    compiler: Compiler,
    name: str,
    gm: fx.GraphModule,
    program: Program,
    forward: Program | None,
    donated: Collection[int],
) -> Callable[..., Any]:
    extra: dict[str, object] = {}
    if wants_signature(compiler):
        extra["signature"] = GraphSignature.of(program, forward=forward, donated=donated)
    made = compiler(gm, example_inputs_of(gm), **extra)
    if not callable(made):
        raise BadCompiler(compiler=name, program=program.name, what=_told(made))
    found: Callable[..., Any] = made
    return found


def wants_signature(compiler: Compiler) -> bool:
    """Whether a compiler has a parameter `signature` that takes keywords only."""
    try:
        parameters = inspect.signature(compiler).parameters
    except (TypeError, ValueError):  # written in C
        return False
    asked = parameters.get("signature")
    return asked is not None and asked.kind is inspect.Parameter.KEYWORD_ONLY


def example_inputs_of(gm: fx.GraphModule) -> list[Any]:
    """What describes the inputs of a graph module: fake tensors, and numbers, perhaps symbolic."""
    return [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]


def _name_of(compiler: Compiler) -> str:
    inner = getattr(compiler, "func", compiler)  # of a partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def _told(item: object) -> str:
    if isinstance(item, torch.Tensor):
        return f"a {item.dtype} tensor of shape {list(item.shape)} on {item.device}"
    if isinstance(item, Sequence) and not isinstance(item, str):
        return f"a {type(item).__name__} of {len(item)}"
    return "None" if item is None else f"a {type(item).__name__}"
