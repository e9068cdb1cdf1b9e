"""Run a program before and after a pass on the same random inputs and compare, bit by bit."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

import torch

from dovetail.analysis.liveness import last_uses
from dovetail.errors import NoSampleInputs, PassChangedMeaning
from dovetail.ir.program import Program, ScalarMeta, TensorMeta, Value, meta_symbols
from dovetail.ir.sizes import Number, evaluate
from dovetail.ir.text import CallWriter, emit, plain_call
from dovetail.ops import prims
from dovetail.ops.given_generators import given_generators
from dovetail.torch_compat.modes import autocast_off
from dovetail.torch_compat.rng import default_generator

_SEED = 20240229


def verify_same_results(
    name: str,
    before: Program,
    after: Program,
    hints: Mapping[str, Number],
    *,
    lost: Collection[int] | None = None,
) -> None:
    """Raise PassChangedMeaning unless both programs give the same outputs and leave the generator and inputs alike.

    lost: numbers of inputs of which nobody reads the contents afterwards; None: all. Programs with sizes that depend on
    data are passed over, because random inputs would not fit each other; and so are those whose inputs do not fit in
    memory, have dtypes that cannot be filled, or are refused by an operator (probabilities above 1). Checks of numbers
    are left out: random ones would not pass.
    """
    before, after = without_questions(before), without_questions(after)
    values = [*before.inputs, *(value for node in before.nodes for value in node.results())]
    if any(name not in hints for value in values for name in meta_symbols(value.meta)):
        return
    if any(node.target in _ABORTING for node in before.nodes):
        return
    try:
        inputs = sample_inputs(before, hints)
    except NoSampleInputs:
        return
    left = list(inputs)
    try:
        expected, state = _run(before, inputs)
        largest = 1
    except (IndexError, RuntimeError):
        left = sample_inputs(before, hints, 0)  # a sampled index was too large
        try:
            expected, state = _run(before, list(left))
        except (IndexError, RuntimeError):
            return
        largest = 0
    left_after = sample_inputs(before, hints, largest)
    actual, other_state = _run(after, list(left_after))
    if not torch.equal(state, other_state):
        raise PassChangedMeaning(name=name, program=before.name, detail="the random generator ends elsewhere")
    for position, (a, b) in enumerate(zip(expected, actual, strict=True)):
        if not same_bits(a, b) and not _is_a_kernels_own(before.outputs[position], a):
            raise PassChangedMeaning(name=name, program=before.name, detail=f"output {position} differs")
    for position, (a, b) in enumerate(zip(left, left_after, strict=True)):
        if lost is not None and position not in lost and not same_bits(a, b):
            detail = f"input {before.inputs[position].name} is left with other contents"
            raise PassChangedMeaning(name=name, program=before.name, detail=detail)


def _is_a_kernels_own(output: object, result: Any) -> bool:
    """Whether only the kernel knows how large a result is: what it keeps for backward, with gaps that nothing fills."""
    meta = output.meta if isinstance(output, Value) else None
    return isinstance(meta, TensorMeta) and 0 in meta.shape and result.numel() > 0


def without_questions(program: Program) -> Program:
    """The program without checks of numbers, which hold for the numbers of one run."""
    return program.replace_nodes(tuple([node for node in program.nodes if node.target not in _QUESTIONS]))


_QUESTIONS = frozenset({prims.GUARD, prims.GUARD_NUMBER, prims.REACHED})


def same_bits(a: object, b: object) -> bool:
    """Equal in type, layout and every bit (NaN equals NaN); the stride of a dimension of one element says nothing."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if any(x != y and size > 1 for x, y, size in zip(a.stride(), b.stride(), a.shape, strict=True)):
            return False
        same = torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        return same and torch.equal(_signs(a), _signs(b))
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a)))


def _signs(tensor: torch.Tensor) -> torch.Tensor:
    """Which numbers are negative, -0.0 included; NaN has no sign."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        return torch.zeros(0)  # whole numbers have one zero; float8 has no signbit
    return tensor.signbit() & ~tensor.isnan()


def sample_inputs(program: Program, hints: Mapping[str, Number], largest: int = 1) -> list[Any]:
    """Random inputs that fit the program's descriptions; integers run from 0 to `largest`.

    Raises: NoSampleInputs where they have no sizes, do not fit in memory, or cannot be filled.
    """
    _check_fit(program, hints)
    generator = torch.Generator().manual_seed(_SEED)
    setting = [node for node in program.nodes if node.target is prims.SET_RNG_STATE]
    of: Any = default_generator  # of the CPU, or of the GPU that the node names
    states = {value: of(*node.args[1:]) for node in setting for value in node.operands()}
    try:
        return [
            states[value].get_state() if value in states else _sample(value.meta, hints, generator, largest)
            for value in program.inputs
        ]
    except (RuntimeError, TypeError, AssertionError) as error:  # a dtype that cannot be filled, a missing device
        raise NoSampleInputs(program=program.name, reason=str(error).split("\n")[0]) from error


def _sample(
    meta: TensorMeta | ScalarMeta, hints: Mapping[str, Number], generator: torch.Generator, largest: int
) -> Any:
    if isinstance(meta, ScalarMeta):
        return evaluate(meta.expr, _Defaults(hints))
    shape, stride, offset, reach = _place(meta, hints)
    memory = torch.empty(reach, dtype=meta.dtype, device=meta.device)
    if meta.dtype.is_floating_point or meta.dtype.is_complex:
        memory.copy_(torch.randn(reach, generator=generator, dtype=torch.float32))
    else:
        memory.copy_(torch.randint(0, largest + 1, (reach,), generator=generator))
    return memory.as_strided(shape, stride, offset)


def _place(meta: TensorMeta, hints: Mapping[str, Number]) -> tuple[list[int], list[int], int, int]:
    """Shape, strides and offset as numbers, and how many elements of memory they need."""
    known = _Defaults(hints)
    shape, stride = [int(evaluate(s, known)) for s in meta.shape], [int(evaluate(s, known)) for s in meta.stride]
    offset = int(evaluate(meta.offset, known))
    return (
        shape,
        stride,
        offset,
        offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size),
    )


def _check_fit(program: Program, hints: Mapping[str, Number]) -> None:
    """Raise NoSampleInputs unless the inputs have sizes and fit in this machine's memory, also for other devices."""
    needed = 0
    for value in program.inputs:
        try:
            if isinstance(value.meta, ScalarMeta):
                evaluate(value.meta.expr, _Defaults(hints))
                continue
            needed += _place(value.meta, hints)[-1] * value.meta.dtype.itemsize
        except (ArithmeticError, ValueError) as error:
            raise NoSampleInputs(program=program.name, reason=f"{value.name} has no size: {error}") from error
        if not 0 <= needed <= _memory_bytes():
            reason = f"up to {value.name} they need {needed:,} bytes, and this machine has {_memory_bytes():,}"
            raise NoSampleInputs(program=program.name, reason=reason)


# Kernels that end the process on a workspace that their forward kernel did not fill.
_ABORTING = frozenset({torch.ops.aten.mkldnn_rnn_layer_backward.default})


@cache
def _memory_bytes() -> int:
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= getattr(os, "sysconf_names", {}).keys():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 40


class _Defaults(dict[str, Number]):
    def __missing__(self, key: str) -> Number:
        return 2


def plain_function(program: Program, call: CallWriter = plain_call, **more: object) -> Callable[[list[Any]], Any]:
    """The program as it is, one operator after the other, as a function that takes a list and empties it.

    call: how operators are called; by their full names if not given. more: names that those calls use.
    """
    source = emit(program, call, last_uses(program), comments=False)
    known = {"torch": torch, "math": math, "operator": operator, "prims": prims}
    namespace: dict[str, Any] = {**known, **more, **source.globals}
    exec(compile(source.text, f"<dovetail plain run of {program.name}>", "exec"), namespace)
    run: Callable[[list[Any]], Any] = namespace["run"]
    return run


def _run(program: Program, inputs: list[Any]) -> tuple[tuple[Any, ...], torch.Tensor]:
    """Outputs, and where the generators ended, one after the other. They are put back: they are the user's."""
    run = plain_function(program)
    generators = _generators(program)
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(_SEED)
    try:
        with torch.no_grad(), autocast_off():
            outputs = run(inputs)
        return outputs, torch.cat([generator.get_state() for generator in generators])
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _generators(program: Program) -> list[torch.Generator]:
    """The default one of the CPU, and those that the program's operators are given."""
    default = torch.default_generator
    return [default, *(each for each in given_generators(program.nodes) if each is not default)]
