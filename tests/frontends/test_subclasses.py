"""Tensor subclasses that wrap other tensors: inputs, parameters, outputs, gradients, and parts that are shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor

import dovetail
from dovetail.errors import OverlappingMutatedInputs, UnsupportedTensor

aten = torch.ops.aten
Arguments = Callable[[], list[Tensor]]


class Quantized(Tensor):
    """An int8 tensor and a scale per row, shown as a floating-point tensor."""

    values: Tensor
    scale: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor, dtype: torch.dtype) -> Quantized:
        made = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=dtype)
        made.values, made.scale = values, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        return ["values", "scale"], self.dtype

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], dtype: torch.dtype, size: Any, stride: Any) -> Quantized:
        return cls(inner["values"], inner["scale"], dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.t.default):
            return cls(func(args[0].values), func(args[0].scale), args[0].dtype)
        plain = [a.values.to(a.dtype) * a.scale if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))


def _parts(x: Any) -> list[Tensor]:
    if isinstance(x, TwoTensor):
        return [x.a, x.b]
    return [x.to_local()] if isinstance(x, DTensor) else [x]


def _assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    assert actual.requires_grad == expected.requires_grad
    for a, b in zip(_parts(actual), _parts(expected), strict=True):
        assert torch.equal(a, b)


def _gradients(outputs: tuple[Tensor, ...], arguments: list[Tensor]) -> list[Tensor | None]:
    leaves = [x for x in arguments if x.requires_grad and x.is_leaf]
    ends = [y.sum() for y in outputs if y.requires_grad and y.grad_fn is not None]
    return list(torch.autograd.grad(ends, leaves, allow_unused=True)) if leaves and ends else []


def _check(function: Callable[..., tuple[Tensor, ...]], compiled: Callable[..., Any], *makes: Arguments) -> None:
    for make in makes:
        theirs, mine = make(), make()
        expected, actual = function(*theirs), compiled(*mine)
        for x, y in zip([*actual, *mine], [*expected, *theirs], strict=True):
            _assert_same(x, y)
        moved = [[x._version > 0 for x in arguments] for arguments in (mine, theirs)]
        assert moved[0] == moved[1]
        for x, y in zip(_gradients(actual, mine), _gradients(expected, theirs), strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                _assert_same(x, y)


def _by_recording(function: Callable[..., Any]) -> Callable[..., Any]:
    return dovetail.compile(function, verify=2)


def _through_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="dovetail", fullgraph=True, options={"verify": 2})


both_ways = pytest.mark.parametrize("compile_function", [_by_recording, _through_dynamo])


def _r(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def _plain() -> list[Tensor]:
    return [TwoTensor(_r(4), _r(4) + 1), TwoTensor(_r(4) * 2, _r(4) * 3)]


def _shared() -> list[Tensor]:
    common = _r(4)
    return [TwoTensor(common, _r(4) + 1), TwoTensor(common, _r(4) * 3)]


def _twice() -> list[Tensor]:
    pair = TwoTensor(_r(4), _r(4) + 1)
    return [pair, pair]


def _overlapping() -> list[Tensor]:
    common = _r(8)
    return [TwoTensor(common[:4], _r(4) + 1), TwoTensor(common[2:6], (_r(6) * 3)[2:])]


def _with_part() -> list[Tensor]:
    common = _r(4)
    return [TwoTensor(common, _r(4) + 1), common]


def _leaves() -> list[Tensor]:
    return [x.requires_grad_() for x in _plain()]


def _derived() -> list[Tensor]:
    pair, other = _leaves()
    return [pair * 1, other]


@both_ways
def test_parts_that_are_shared_while_one_is_written(compile_function: Any) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return (x + y,)

    _check(f, compile_function(f), _plain, _shared, _twice, _overlapping, _with_part, _plain)


@both_ways
def test_gradients_of_wrappers(compile_function: Any) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x * y).sin(), x.exp(), x * 2

    _check(f, compile_function(f), _plain, _leaves, _shared, _leaves)


@both_ways
def test_a_tracked_write(compile_function: Any) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.mul_(y)
        return (x + 1,)

    _check(f, compile_function(f), _derived, _derived)


@both_ways
def test_outputs_that_are_inputs_and_views(compile_function: Any) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = x * y
        return x, x.view(2, 2), product, product.view(-1), y * 2

    compiled = compile_function(f)
    _check(f, compiled, _plain, _leaves, _shared)
    pair, other = _plain()
    same, view, product, flat, _ = compiled(pair, other)
    assert same is pair
    assert view.a.data_ptr() == pair.a.data_ptr()
    assert flat.b.data_ptr() == product.b.data_ptr()


@both_ways
def test_a_quantized_weight(compile_function: Any) -> None:
    linear = nn.Linear(4, 3)
    weight = Quantized(torch.randint(-5, 5, (3, 4), dtype=torch.int8), torch.full((3, 1), 0.1), torch.float32)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    x = torch.randn(2, 4)
    assert torch.equal(compile_function(linear)(x), linear(x))


@both_ways
def test_parameters_that_are_wrappers_train(compile_function: Any) -> None:
    def net() -> nn.Linear:
        torch.manual_seed(0)
        linear = nn.Linear(4, 3)
        weight = linear.weight.detach()
        linear.weight = nn.Parameter(TwoTensor(weight.clone(), weight * 2))
        linear.bias = nn.Parameter(TwoTensor(torch.ones(3), torch.zeros(3)))
        return linear

    theirs, mine = net(), net()
    compiled = compile_function(mine)
    for _ in range(3):
        x = TwoTensor(torch.randn(2, 4), torch.randn(2, 4))
        for module, call in ((theirs, theirs), (mine, compiled)):
            call(x).sum().backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(parameter.grad * 0.1)
            module.zero_grad()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        _assert_same(a, b)


@pytest.fixture(name="mesh")
def _mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@both_ways
def test_dtensors(compile_function: Any, mesh: Any) -> None:
    def product(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x * y).sum(), x + y

    def write(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return (x + y,)

    def apart() -> list[Tensor]:
        return [distribute_tensor(_r(4), mesh, [Shard(0)]), distribute_tensor(_r(4) * 2, mesh, [Shard(0)])]

    def over_one_tensor() -> list[Tensor]:
        local = _r(4)
        return [DTensor.from_local(local, mesh, [Shard(0)]) for _ in range(2)]

    _check(product, compile_function(product), apart, lambda: [x.requires_grad_() for x in apart()])
    _check(write, compile_function(write), apart, over_one_tensor, apart)


def test_a_closed_over_wrapper_is_read_and_is_refused_where_it_wants_a_gradient() -> None:
    weight = TwoTensor(torch.ones(4), torch.ones(4) * 2)

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return (x * weight,)

    _check(f, dovetail.compile(f), lambda: [_r(4)])
    weight.requires_grad_()
    with pytest.raises(UnsupportedTensor, match="TwoTensor that requires a gradient"):
        dovetail.compile(f)(_r(4))


def test_views_of_one_wrapper_are_refused_where_autograd_follows_a_write() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x.view(4) + y.view(4)

    pair = TwoTensor(_r(4), _r(4)).requires_grad_() * 1
    with pytest.raises(OverlappingMutatedInputs, match="views of one tensor"):
        dovetail.compile(f)(pair.view(2, 2), pair.view(4, 1))
    assert torch.equal(pair.a, _r(4))


class Exchanged(Tensor):
    """Adds where a program multiplies."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        instead = Tensor.add if func is Tensor.mul else func
        return super().__torch_function__(instead, types, args, kwargs or {})


class Tagged(Tensor):
    """Results are of this class as well."""


@pytest.mark.parametrize("cls", [Exchanged, Tagged])
@pytest.mark.parametrize("executors", [("aten",), ("native", "aten")])
def test_a_class_with_a_say_in_operators(cls: type[Tensor], executors: tuple[str, ...]) -> None:
    held = torch.full((2,), 3.0).as_subclass(cls)

    def of_argument(x: Tensor) -> Tensor:
        return x * 3

    def of_variable(x: Tensor) -> Tensor:
        return x * held

    for function, argument in ((of_argument, held), (of_variable, torch.ones(2))):
        with pytest.raises(UnsupportedTensor, match=f"class {cls.__name__}, with"):
            dovetail.compile(function, executors=executors)(argument)
        step = dovetail.compile_step(function, executors=executors, on_unsupported="eager")
        traced = torch.compile(function, backend="dovetail", options={"executors": executors})
        step(argument)
        with pytest.warns(dovetail.DovetailWarning, match="DT-CAPTURE-004"):
            step(argument)
        for _ in range(2):
            expected = function(argument)
            for found in (step(argument), traced(argument)):
                assert type(found) is type(expected)
                assert torch.equal(found.as_subclass(Tensor), expected.as_subclass(Tensor))
