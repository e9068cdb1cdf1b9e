"""Does a compiled function behave as the eager one? Everything that a caller can see is compared.

Seen are: outputs (values bit by bit, dtype, shape, strides, `requires_grad`), which objects and bytes are shared among
outputs and inputs, inputs (values, whether their version counters moved), the random generator, gradients (None stays
None), and what all tensors show after each output was written in place. Arguments may share bytes, or be one object.
On demand also which tensors are leaves, and which count their writes together with an output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from dovetail.errors import UnsupportedOutput
from dovetail.torch_compat.autograd import version_of
from dovetail.torch_compat.dispatch import storage_key

_SHARED = "shared bytes (name, name, distance)"

Observation: TypeAlias = dict[str, object]
MakeInputs: TypeAlias = Callable[[int], tuple[list[Any], list[torch.Tensor]]]


class RunnableProgram(Protocol):
    """What `check_program` needs of a program."""

    def source(self) -> str:
        """A file that defines `program` and `inputs`."""

    def build(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The functions `program` and `inputs` of the source."""


def check_program(
    program: RunnableProgram,
    compile_fn: Callable[[Callable[..., Any]], Callable[..., Any]],
    seeds: Sequence[int] = (0, 1),
    *,
    with_counters: bool = False,
) -> None:
    """Raise AssertionError, with the program and what differs, unless the compiled program behaves as eager.

    compile_fn: `dovetail.compile` or its like. It is called once; the result is called with fresh inputs per seed.
    with_counters: see `observe`.
    """
    function, inputs = program.build()
    compiled = compile_fn(function)
    for seed in seeds:
        try:
            expected = observe(function, inputs, seed, with_counters=with_counters)
            actual = observe(compiled, inputs, seed, with_counters=with_counters)
        except UnsupportedOutput as error:
            if "a leaf that it makes" in str(error):  # beside what is computed from it: refused by name
                return
            raise
        except Exception as error:
            error.add_note(f"while checking this program with inputs({seed}):\n\n{program.source()}")
            raise
        difference = first_difference(expected, actual)
        if difference is not None:
            raise AssertionError(f"{difference}\n\nwith inputs({seed}) of this program:\n\n{program.source()}")


def first_difference(expected: Mapping[str, object], actual: Mapping[str, object]) -> str | None:
    """The first thing in which two observations differ, in words; None when they agree."""
    for label in [*expected, *(label for label in actual if label not in expected)]:
        a, b = expected.get(label, "nothing"), actual.get(label, "nothing")
        if not _agree(a, b):
            return f"{label}: eager has {a}, compiled has {b}"
    return None


def observe(
    function: Callable[..., Any], make_inputs: MakeInputs, seed: int, *, with_counters: bool = False
) -> Observation:
    """Run `function` on fresh inputs and note everything that a caller can see, by label.

    with_counters: note also which tensors are leaves, and whose version counters move with that of each output.
    """
    inputs, leaves = make_inputs(seed)
    versions = [version_of(x) if isinstance(x, torch.Tensor) else 0 for x in inputs]
    graphs = [x.grad_fn if isinstance(x, torch.Tensor) else None for x in inputs]
    seen: Observation = {}
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        outputs = list(function(*inputs))
        seen["random generator after the call"] = torch.get_rng_state()
    finally:
        torch.set_rng_state(state)
    tensors = {f"output {i}": o for i, o in enumerate(outputs)} | {f"input {i}": x for i, x in enumerate(inputs)}
    for label, value in tensors.items():
        _note_value(seen, label, value)
    for index, (value, version) in enumerate(zip(inputs, versions, strict=True)):
        if isinstance(value, torch.Tensor):
            seen[f"input {index} version counter moved"] = version_of(value) != version
    seen["same objects"], seen[_SHARED] = _sharing(tensors)
    rewritten = [
        x for x, graph in zip(inputs, graphs, strict=True) if isinstance(x, torch.Tensor) and x.grad_fn is not graph
    ]
    _note_gradients(seen, outputs, rewritten, leaves, seed)
    if with_counters:
        _note_counters(seen, tensors, len(outputs))
    _note_writes(seen, tensors, len(outputs))
    return seen


def _note_value(seen: Observation, label: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        seen[label] = value
        return
    seen[f"{label} dtype, shape"] = (value.dtype, tuple(value.shape))
    seen[f"{label} strides"] = _strides(value)
    seen[f"{label} requires_grad"] = value.requires_grad
    seen[f"{label} conjugate and negative bits"] = (value.is_conj(), value.is_neg())
    seen[f"{label} values"] = _values(value)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides, with 0 for dimensions of one element, where they say nothing."""
    return tuple(step if size > 1 else 0 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _sharing(tensors: Mapping[str, object]) -> tuple[list[tuple[str, str]], list[tuple[str, str, int]]]:
    same: list[tuple[str, str]] = []
    shared: list[tuple[str, str, int]] = []
    held = [(label, value) for label, value in tensors.items() if isinstance(value, torch.Tensor) and value.numel()]
    for place, (label, value) in enumerate(held):
        for other_label, other in held[:place]:
            if value is other:
                same.append((other_label, label))
            if storage_key(value) == storage_key(other):
                shared.append((other_label, label, value.data_ptr() - other.data_ptr()))
    return same, shared


@dataclass(frozen=True, slots=True)
class _Sum:
    """A gradient that several tensors of the caller contribute to: autograd adds them up in an order of its own."""

    values: torch.Tensor


def _note_gradients(
    seen: Observation, outputs: Sequence[object], rewritten: Sequence[object], leaves: Sequence[torch.Tensor], seed: int
) -> None:
    """Gradients of the leaves, from outputs and rewritten inputs that carry one; odd seeds leave the first out."""
    generator = torch.Generator().manual_seed(seed)
    made = [value for value in (*outputs, *rewritten) if isinstance(value, torch.Tensor)]
    ends = list({id(value): value for value in made if value.requires_grad}.values())
    arriving = [torch.randn(end.shape, generator=generator, dtype=end.dtype) for end in ends]
    chosen = list(zip(ends, arriving, strict=True))[1 if seed % 2 and len(ends) > 1 else 0 :]
    chosen = [(end, gradient) for end, gradient in chosen if end.grad_fn is not None]
    if not chosen or not leaves:
        return
    gradients = torch.autograd.grad([e for e, _ in chosen], list(leaves), [g for _, g in chosen], allow_unused=True)
    for index, gradient in enumerate(gradients):
        if gradient is not None and (seen[_SHARED] or rewritten):
            seen[f"gradient {index} is about"] = _Sum(_values(gradient))
        elif gradient is not None:
            seen[f"gradient {index}"] = _values(gradient)


def _note_counters(seen: Observation, tensors: Mapping[str, object], outputs: int) -> None:
    """Which tensors are leaves, and which move their version counter when an output moves its own."""
    held = {label: value for label, value in tensors.items() if isinstance(value, torch.Tensor)}
    seen["leaves"] = [label for label, value in held.items() if value.is_leaf]
    for label in [label for label in list(tensors)[:outputs] if label in held]:
        before = [version_of(value) for value in held.values()]
        torch.autograd.graph.increment_version(held[label])
        moved = [other for (other, value), old in zip(held.items(), before, strict=True) if version_of(value) != old]
        seen[f"{label} counts writes together with"] = moved


def _note_writes(seen: Observation, tensors: Mapping[str, object], outputs: int) -> None:
    """What every tensor shows after each output was written, one after the other."""
    held = {label: value for label, value in tensors.items() if isinstance(value, torch.Tensor)}
    for label, value in list(held.items())[:outputs]:
        if not label.startswith("output") or overlaps_itself(value):
            continue
        written = value.data
        written.logical_not_() if written.dtype is torch.bool else written.add_(1)
        for other, shown in held.items():
            seen[f"after {label} was written, {other} values"] = _values(shown)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share bytes (then eager refuses to write)."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _agree(a: object, b: object) -> bool:
    if isinstance(a, _Sum) and isinstance(b, _Sum):
        tolerance = 1e-4 if a.values.dtype in (torch.float32, torch.complex64) else 1e-10
        same_kind = a.values.dtype is b.values.dtype and a.values.shape == b.values.shape
        return same_kind and torch.allclose(a.values, b.values, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    return type(a) is type(b) and a == b


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, every NaN spelled alike."""
    real = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    if real.dtype.is_floating_point:
        real = torch.where(real.isnan(), torch.nan, real)
    return real.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
