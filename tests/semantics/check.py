"""Programs called eagerly and compiled, through both doors, with everything compared that a caller can see.

A case is a function named `case_...` that makes a fresh `Case` from torch's seeded generator. It is made once for eager
and once for each door, and called twice with the seeds 0 and 1: outputs, their classes and strides, gradients and their
strides, parameters, buffers, arguments, and where the generator stands, are the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doors import Door, directly, through_dynamo
from tests.rotation import rotated

Observation = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A program and its arguments. module: whose parameters and buffers are looked at; the program, if it is one."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    module: nn.Module | None = None


Make = Callable[[], Case]


def leaf(*shape: int, **options: Any) -> Tensor:
    """A random tensor that wants a gradient."""
    return torch.randn(shape, requires_grad=True, **options)


def cases_of(
    names: Mapping[str, Any],
    in_pieces: Collection[str] = (),
    only_direct: Collection[str] = (),
    *,
    in_turn: bool = False,
    of: int = 1,
) -> Any:
    """Decorator: run a test `(make, door)` for each case among `names`, through each door.

    in_pieces: cases of which Dynamo leaves parts to eager. only_direct: those that Dynamo cannot take at all. in_turn:
    one door for each case, in turn, and the other one with the next seed (`tests.rotation`). of: every n-th of what is
    left, other ones with other seeds. `make sweep` tries all of it.
    """
    made: list[Any] = []
    for name, make in names.items():
        if not name.startswith("case_"):
            continue
        short = name.removeprefix("case_")
        made.append(pytest.param(make, directly, id=f"{short}-function"))
        if short not in only_direct:
            door = _in_pieces if short in in_pieces else through_dynamo
            made.append(pytest.param(make, door, id=f"{short}-backend"))
    if in_turn:
        pairs = list(zip(made[::2], made[1::2], strict=True))
        made = [door for number, pair in enumerate(pairs) for door in rotated(pair, 2, shift=number)]
    return pytest.mark.parametrize(("make", "door"), rotated(made, of))


def _in_pieces(target: Callable[..., Any], **options: Any) -> Any:
    return through_dynamo(target, fullgraph=False, **options)


def assert_like_eager(make: Make, door: Door, calls: int = 2) -> None:
    """Call eagerly and compiled, and compare."""
    expected = [_observe(case, case.function, seed) for case in [_made(make)] for seed in range(calls)]
    case = _made(make)
    compiled = door(case.function, verify=1).call
    for seed in range(calls):
        _compare(_observe(case, compiled, seed), expected[seed])


def _made(make: Make) -> Case:
    torch.manual_seed(0)
    return make()


def _observe(case: Case, call: Callable[..., Any], seed: int) -> Observation:
    torch.manual_seed(seed)
    result = call(*case.args, **case.kwargs)
    seen: Observation = {"class": type(result).__name__, "generator": torch.get_rng_state()}
    leaves = list(_leaves(result))
    for place, item in enumerate(leaves):
        seen[f"output {place}"] = _seen_of(item)
    _send_gradients([item for item in leaves if isinstance(item, Tensor)], seed)
    seen["generator after backward"] = torch.get_rng_state()
    arguments = [item for item in _leaves((case.args, dict(case.kwargs))) if isinstance(item, Tensor)]
    for name, tensor in [*((f"argument {i}", t) for i, t in enumerate(arguments)), *_held_by(case)]:
        seen[name] = tensor.detach().clone()
        gradient = tensor.grad if tensor.is_leaf else None
        seen[f"{name} gradient"] = None if gradient is None else _seen_of(gradient)
    return seen


def _held_by(case: Case) -> Iterator[tuple[str, Tensor]]:
    module = case.function if isinstance(case.function, nn.Module) else case.module
    if module is not None:
        yield from module.named_parameters()
        yield from module.named_buffers()


def _send_gradients(outputs: list[Tensor], seed: int) -> None:
    ends = [output for output in outputs if output.grad_fn is not None]
    if ends:
        generator = torch.Generator().manual_seed(seed)
        arriving = [torch.randn(end.shape, generator=generator, dtype=end.dtype) for end in ends]
        torch.autograd.backward(ends, arriving)


def _seen_of(item: Any) -> Any:
    if not isinstance(item, Tensor):
        return item
    values = item.detach().resolve_conj().clone()
    return (values, item.stride(), item.requires_grad, item.is_leaf, item.is_conj())


def _leaves(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type | dict):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _compare(actual: Observation, expected: Observation) -> None:
    assert actual.keys() == expected.keys()
    for label, value in expected.items():
        assert _same(actual[label], value), f"{label}: eager has {value}, compiled has {actual[label]}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype is not b.dtype or a.shape != b.shape:
            return False
        if a.dtype.is_complex:
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        return torch.equal(a, b) or (a.dtype.is_floating_point and torch.allclose(a, b, 0, 0, equal_nan=True))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b
