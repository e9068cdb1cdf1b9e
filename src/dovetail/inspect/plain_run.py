"""Run a program operator by operator, as written, and keep every value.

Only the text of the program is used, nothing else of the compiler: the results define what the program means. Values
are copied at once, because later nodes may overwrite them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from dovetail.execute.compiled import CompiledProgram
from dovetail.execute.executors.checked import checked_call
from dovetail.execute.protocol import ExecutorList
from dovetail.inspect.tensor_place import clone_together
from dovetail.ir.prim import Prim
from dovetail.ir.program import Node, Operand, Program, map_leaves
from dovetail.ir.text import CallWriter, Names
from dovetail.ops.sub_programs import with_other_programs
from dovetail.pipeline.differential import plain_function, same_bits

_SEED = 20241122
_WIDER = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
          torch.complex64: torch.complex128}  # fmt: skip
_NOTE = "_note"
_MAX_THREADS = 4096


@dataclass(frozen=True, slots=True)
class Difference:
    """How two results differ. largest: the largest difference of two elements; None where that says nothing."""

    what: str
    largest: float | None = None

    def __str__(self) -> str:
        return self.what if self.largest is None else f"{self.what} by up to {self.largest:.3g}"


def run_program(
    program: Program,
    inputs: Sequence[Any],
    *,
    state: torch.Tensor | None = None,
    keep: dict[str, Any] | None = None,
    left: list[Any] | None = None,
    left_state: list[torch.Tensor] | None = None,
    executors: ExecutorList | None = None,
) -> tuple[Any, ...]:
    """The outputs of a program, run on copies of its inputs.

    inputs: one per input of the program; those that share memory share it in the copies as well. state: of the random
    generator (`torch.get_rng_state()`); a fixed seed when not given. keep: gets each value when it is made, by name.
    left: gets the copies of the inputs, as they are afterwards. left_state: gets the state of the generator afterwards,
    and loses what it held. executors: call operators as these do; else each by its
    full name, where it does not trust its operands.
    Raises: what an operator raises. The random generator is as it was afterwards.
    """
    given = clone_together(inputs)
    if left is not None:
        left += given
    before = torch.get_rng_state()
    if state is None:
        torch.manual_seed(_SEED)
    else:
        torch.set_rng_state(state)
    try:
        with torch.no_grad():
            if executors is not None and keep is None:
                outputs = CompiledProgram(program, executors)(given)
            else:
                call = checked_call if executors is None else executors.call
                with nullcontext() if keep is None else _memory_filled():
                    outputs = _function(program, call, keep)(given)
        if left_state is not None:
            left_state[:] = [torch.get_rng_state()]
    finally:
        torch.set_rng_state(before)
    return tuple(outputs)


@contextmanager
def with_threads(count: object) -> Iterator[None]:
    """Let operators use as many threads as a dump says: sums are in another order with another number of them.

    count: what was written down; nothing changes where it is not a number.
    """
    before = torch.get_num_threads()
    if type(count) is int and 0 < count <= _MAX_THREADS:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _memory_filled() -> Iterator[None]:
    """Let memory that nobody has written hold NaN, so that two runs are alike in it."""
    was_on = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_on, warn_only=only_warned)


def in_float64(program: Program) -> Program:
    """The program with every dtype of fewer bits among its operands replaced by float64 (complex128).

    For inputs that are widened too; `widened` does it. Descriptions of values stay as they were.
    """

    def swap(operand: Operand) -> Operand:
        return _WIDER.get(operand, operand) if isinstance(operand, torch.dtype) else operand

    nodes = [
        replace(
            node,
            target=with_other_programs(node.target, in_float64) if isinstance(node.target, Prim) else node.target,
            args=tuple(map_leaves(operand, swap) for operand in node.args),
            kwargs=tuple((name, map_leaves(operand, swap)) for name, operand in node.kwargs),
        )
        for node in program.nodes
    ]
    return program.replace_nodes(tuple(nodes))


def widened(items: Sequence[Any]) -> list[Any]:
    """The items, with tensors of fractions as float64 and complex128; which share no memory then."""
    return [x.to(_WIDER[x.dtype]) if isinstance(x, torch.Tensor) and x.dtype in _WIDER else x for x in items]


def compare(expected: object, actual: object, rtol: float | None = None) -> Difference | None:
    """How two results differ: in any bit, or in more than a relative error of `rtol` (of the largest element).

    None where they are alike.
    """
    if same_bits(expected, actual):
        return None
    if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
        return Difference(f"{expected!r} is {actual!r}")
    if expected.shape != actual.shape:
        return Difference(f"the shape {tuple(expected.shape)} is {tuple(actual.shape)}")
    if expected.dtype != actual.dtype:
        return Difference(f"the dtype {expected.dtype} is {actual.dtype}")
    error = largest_error(expected, actual)
    if rtol is None:
        if error == 0:
            return Difference("signs or strides differ")
        return Difference("differs", error)
    scale = largest_error(expected, torch.zeros_like(expected))
    return None if error <= rtol * scale else Difference("differs", error)


def largest_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest distance of two elements; infinite where one is NaN or infinite and the other is not that."""
    wide = torch.complex128 if expected.is_complex() or actual.is_complex() else torch.float64
    a, b = expected.detach().to(wide), actual.detach().to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    distance = torch.where(same, 0.0, (a - b).abs())
    distance = torch.where(distance.isnan(), math.inf, distance)
    return float(distance.max()) if distance.numel() else 0.0


def _function(program: Program, call: CallWriter, keep: dict[str, Any] | None) -> Callable[[list[Any]], Any]:
    """The program as a function, which puts a copy of each value into `keep`."""
    numbers = {node: number for number, node in enumerate(program.nodes)}

    def note(number: int, results: object) -> object:
        node = program.nodes[number]
        items = list(results) if node.unpack and isinstance(results, tuple | list) else [results]
        for value, item in zip(node.outputs, items, strict=False):
            if value is not None and keep is not None:
                keep[value.name] = item.clone() if isinstance(item, torch.Tensor) else item
        return results

    def noted(names: Names, node: Node) -> str:
        text = call(names, node)
        is_noted = node in numbers and node.results()  # nodes of subgraphs may run many times
        return f"{_NOTE}({numbers[node]}, {text})" if is_noted else text

    return plain_function(program, call if keep is None else noted, **{_NOTE: note})
