"""`dovetail.compile` on functions and modules."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.errors import (
    BadOptionValue,
    DataDependentControlFlow,
    DovetailWarning,
    GeneratorMadeInside,
    GradientAccess,
    PythonSideEffect,
    UnknownOption,
    UnsupportedDevice,
    UnsupportedOutput,
    UnsupportedTensor,
)

_SCALE = 2.0


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def test_a_module_trains_as_in_eager() -> None:
    eager, source = _net(), _net()
    compiled = dovetail.compile(source)
    x = torch.randn(6, 4)
    for seed in range(3):
        for model, call in ((eager, eager), (source, compiled)):
            torch.manual_seed(seed)
            model.zero_grad()
            call(x).square().sum().backward()
    for name, parameter in eager.named_parameters():
        twin = source.get_parameter(name)
        assert parameter.grad is not None
        assert twin.grad is not None
        assert torch.equal(parameter.grad, twin.grad)
    assert all(torch.equal(a, b) for a, b in zip(eager.buffers(), source.buffers(), strict=True))
    assert len(compiled.graphs) == 1


def test_nested_arguments_and_results_keep_their_structure() -> None:
    def f(batch: dict[str, Any], *, scale: float) -> dict[str, Any]:
        return {"sum": batch["x"] + batch["pair"][1] * scale, "rest": (1, None, "text", batch["pair"][0])}

    pair = (torch.ones(2), torch.full((2,), 3.0))
    batch = {"x": torch.zeros(2), "pair": pair}
    result = dovetail.compile(f)(batch, scale=0.5)
    assert torch.equal(result["sum"], torch.full((2,), 1.5))
    assert result["rest"][:3] == (1, None, "text")
    assert result["rest"][3] is pair[0]


@pytest.mark.parametrize("change", ["cell", "global", "default", "training", "attribute", "grad", "autocast", "hook"])
def test_a_value_that_the_code_reads_is_never_stale(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = 1.0

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.dropout = nn.Dropout(0.5)
            self.factor = 3

    net = Net()

    def f(x: torch.Tensor, shift: float = 0.25) -> torch.Tensor:
        return net.dropout(net.linear(x) * net.factor) * cell * _SCALE + shift

    compiled = dovetail.compile(f)
    x = torch.randn(8, 2)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        expected = f(x)
        torch.manual_seed(1)
        return expected, compiled(x)

    assert torch.equal(*both())
    if change == "cell":
        cell = -2.0
    elif change == "global":
        monkeypatch.setitem(f.__globals__, "_SCALE", 7.0)
    elif change == "default":
        f.__defaults__ = (0.75,)
    elif change == "training":
        net.eval()
    elif change == "attribute":
        net.factor = 5
    elif change == "hook":
        net.linear.register_forward_hook(lambda module, inputs, output: output + 1)
    if change == "grad":
        with torch.no_grad():
            expected, actual = both()
    elif change == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected, actual = both()
    else:
        expected, actual = both()
    assert torch.equal(expected, actual)
    assert expected.requires_grad == actual.requires_grad
    assert len(compiled.graphs) == 2


def test_a_new_weight_tensor_is_read_at_the_next_call() -> None:
    net = nn.Linear(2, 2)
    compiled = dovetail.compile(net)
    x = torch.randn(3, 2)
    compiled(x)
    net.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.zeros(2)}, assign=True)
    assert torch.equal(compiled(x), net(x))


def test_the_reason_of_a_variant_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    compiled = dovetail.compile(lambda x: x + 1)
    with caplog.at_level(logging.INFO, logger="dovetail"):
        compiled(torch.zeros(2))
        compiled(torch.zeros(3))
    assert "it is the first" in caplog.messages[0]
    assert "shape of argument 0 changed: (2,) -> (3,)" in caplog.messages[1]


def test_beyond_the_cap_calls_run_in_eager_mode_with_a_warning() -> None:
    compiled = dovetail.compile(lambda x: x * 2, max_variants=1)
    compiled(torch.zeros(1))
    with pytest.warns(DovetailWarning, match="max_variants"):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(compiled.graphs) == 1


def test_dynamic_sizes_share_a_program_until_a_fact_breaks() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        rows, columns = x.shape
        if rows > 4:
            return x.sum(0), x, rows
        padded = torch.zeros(rows, columns + 1)
        padded[:, :columns] = x
        return padded, padded[:, -1], rows * columns

    compiled = dovetail.compile(f, dynamic=True)
    for shape, count in (((2, 3), 1), ((3, 5), 1), ((6, 2), 2), ((7, 9), 2), ((4, 8), 2)):
        x = torch.randn(shape)
        for expected, actual in zip(f(x), compiled(x), strict=True):
            assert torch.equal(torch.as_tensor(expected), torch.as_tensor(actual))
        assert len(compiled.graphs) == count, shape


def test_example_inputs_compile_before_the_first_call() -> None:
    compiled = dovetail.compile(_net(), (torch.randn(5, 4),))
    assert len(compiled.graphs) == 1
    compiled(torch.randn(5, 4))
    assert len(compiled.graphs) == 1


def test_a_compiled_module_shows_the_module_and_survives_deepcopy() -> None:
    net = _net()
    compiled = dovetail.compile(net, (torch.randn(5, 4),))
    assert dict(compiled.named_parameters()) == dict(net.named_parameters())
    clone = copy.deepcopy(compiled)
    clone.eval()
    assert net.training
    x = torch.randn(5, 4)
    assert torch.equal(clone(x), copy.deepcopy(net).eval()(x))


# --- bad input --------------------------------------------------------------------------------------------------


class _Rebinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x
        return self.total * 1


def _waves(length: int) -> torch.Tensor:
    return torch.cos(torch.arange(length)[:, None] * 0.1)


def _table_in_an_attribute() -> Callable[[torch.Tensor], torch.Tensor]:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.waves: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.waves is None or self.waves.shape[0] < len(x):
                self.waves = _waves(len(x))
            return x * self.waves[: len(x)]

    return Rotary()


def _table_in_a_buffer() -> Callable[[torch.Tensor], torch.Tensor]:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("waves", torch.zeros(0, 1), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.waves.shape[0] < len(x):
                self.register_buffer("waves", _waves(len(x)), persistent=False)
            return x * self.waves[: len(x)]

    return Rotary()


def _tables_by_length() -> Callable[[torch.Tensor], torch.Tensor]:
    tables: dict[int, torch.Tensor] = {}

    def function(x: torch.Tensor) -> torch.Tensor:
        if len(x) not in tables:
            tables[len(x)] = _waves(len(x))
        return x * tables[len(x)]

    return function


def _remembered_table() -> Callable[[torch.Tensor], torch.Tensor]:
    waves = functools.lru_cache(None)(_waves)
    return lambda x: x * waves(len(x))


def test_a_module_that_changes_itself_is_refused_and_left_alone() -> None:
    net = _Rebinds()
    compiled = dovetail.compile(net)
    compiled(torch.ones(2))  # in eager mode: it may do so only once
    before = net.total
    with pytest.raises(PythonSideEffect, match=r"left a tensor in _Rebinds\.total"):
        compiled(torch.ones(2))
    assert net.total is before
    assert torch.equal(before, torch.ones(2))
    assert torch.equal(net(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [_table_in_an_attribute, _table_in_a_buffer, _tables_by_length, _remembered_table])
def test_tables_that_first_calls_make_are_found_by_later_ones(
    make: Callable[[], Callable[[torch.Tensor], torch.Tensor]], dynamic: bool
) -> None:
    compiled, function = dovetail.compile(make(), dynamic=dynamic), make()
    for length in (5, 5, 3, 5, 5, 8, 8, 8, 3):
        x = torch.randn(length, 4)
        assert torch.equal(compiled(x), function(x))
    assert compiled.stats.eager_calls <= 3
    assert compiled.stats.captures <= 6


def test_a_table_that_is_thrown_away_is_made_again() -> None:
    net: Any = _table_in_an_attribute()
    compiled, x = dovetail.compile(net), torch.randn(5, 4)
    for call in range(9):
        if call in (4, 6):
            net.waves = None
        assert torch.equal(compiled(x), x * _waves(5))
    assert compiled.stats.eager_calls == 3


def test_under_a_limit_no_call_makes_tables_in_eager_mode() -> None:
    waves = functools.lru_cache(None)(_waves)
    compiled = dovetail.compile(lambda x: x * waves(len(x)), memory_limit="1MiB")
    assert torch.equal(compiled(torch.ones(5, 4)), torch.ones(5, 4) * _waves(5))
    assert compiled.stats.eager_calls == 0
    with pytest.raises(PythonSideEffect, match=r"left a tensor in .*Rotary\.waves"):
        dovetail.compile(_table_in_an_attribute(), memory_limit="1MiB")(torch.ones(5, 4))


def test_a_remembered_tensor_that_is_written_goes_on() -> None:
    def make() -> Callable[[torch.Tensor], torch.Tensor]:
        @functools.lru_cache(None)
        def total(size: int) -> torch.Tensor:
            return torch.zeros(size)

        def add(x: torch.Tensor) -> torch.Tensor:
            total(3).add_(x)
            return total(3) * 2

        return add

    compiled, function = dovetail.compile(make()), make()
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(3)), function(torch.ones(3)))
    assert compiled.stats.eager_calls == 1


def test_a_failure_leaves_module_generator_and_gradients_alone() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            if torch.rand(()).item() > 2:
                return x
            return self.linear(x)

    net = Fails()
    parameter, buffer, state = net.linear.weight, net.count, torch.get_rng_state()
    versions = (parameter._version, buffer._version)
    with pytest.raises(DataDependentControlFlow) as caught:
        dovetail.compile(net)(torch.ones(1, 2))
    assert "test_function.py" in str(caught.value)
    assert "in forward" in str(caught.value)
    assert net.linear.weight is parameter
    assert net.count is buffer
    assert buffer.item() == 0
    assert (parameter._version, buffer._version) == versions
    assert torch.equal(torch.get_rng_state(), state)
    assert parameter.grad is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dmup": "x"}, UnknownOption),
        ({"memory_limit": "6 gigs"}, BadOptionValue),
        ({"verify": 3}, BadOptionValue),
        ({"skip": ["nonsense"]}, BadOptionValue),
        ({"executors": ["warp"]}, BadOptionValue),
        ({"max_variants": 0}, BadOptionValue),
        ({"dynamic": "yes"}, BadOptionValue),
    ],
)
def test_bad_options_are_refused_before_anything_runs(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        dovetail.compile(lambda x: x, (torch.ones(1),), **options)


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(UnknownOption, match="did you mean 'verify'"):
        dovetail.compile(lambda x: x, verfy=1)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_of_other_kinds_are_refused() -> None:
    compiled = dovetail.compile(lambda x: x * 2)
    with pytest.raises(UnsupportedTensor, match="to_dense"):
        compiled(torch.eye(2).to_sparse())
    with pytest.raises(UnsupportedTensor, match="arg_0 is a sparse matrix, used for more than products"):
        compiled(torch.eye(2).to_sparse_csr())
    with pytest.raises(UnsupportedDevice, match="meta"):
        compiled(torch.ones(2, device="meta"))
    with pytest.raises(UnsupportedTensor, match="weight is not initialized yet"):
        dovetail.compile(torch.nn.LazyLinear(3))(torch.ones(2, 2))


def test_a_size_is_returned_as_a_size() -> None:
    size, doubled = dovetail.compile(lambda x: (x.shape, x * 2))(torch.ones(2, 3))
    assert type(size) is torch.Size
    assert size == doubled.shape


def test_each_way_in_which_written_inputs_share_memory_gets_a_graph_of_its_own() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = dovetail.compile(f)
    for expected_graphs, first, second in [
        (1, slice(0, 4), slice(8, 12)),
        (2, slice(0, 4), slice(2, 6)),
        (2, slice(2, 6), slice(4, 8)),
        (3, slice(0, 4), slice(1, 5)),
        (4, slice(0, 4), slice(0, 4)),
        (4, slice(4, 8), slice(0, 4)),
    ]:
        mine, theirs = torch.arange(12.0), torch.arange(12.0)
        assert torch.equal(compiled(mine[first], mine[second]), f(theirs[first], theirs[second]))
        assert torch.equal(mine, theirs)
        assert len(compiled.graphs) == expected_graphs


def test_interleaved_written_inputs_are_apart() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = dovetail.compile(f)
    for base in (torch.arange(8.0), torch.arange(16.0)):
        x, y = base[:8:2], base[1:8:2]
        assert torch.equal(compiled(x, y), 2 * torch.tensor([0.0, 2, 4, 6]) + y)
    assert len(compiled.graphs) == 1
    assert compiled.graphs[0].plan.extras == ()


def test_a_changed_input_shape_is_changed_in_the_callers_tensor() -> None:
    x = torch.arange(6.0).view(2, 3)
    y = dovetail.compile(lambda x: x.t_().mul_(2)[0])(x)
    assert (tuple(x.shape), x.stride()) == ((3, 2), (1, 3))
    assert torch.equal(x, torch.arange(6.0).view(2, 3).t() * 2)
    assert torch.equal(y, x[0])
    assert y.data_ptr() == x.data_ptr()


def test_an_output_of_unknown_class_is_refused() -> None:
    class Box:
        pass

    with pytest.raises(UnsupportedOutput, match="Box"):
        dovetail.compile(lambda x: (x, Box()))(torch.ones(1))


def test_a_generator_made_inside_is_refused_and_one_from_outside_runs_on_as_in_eager() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(2, generator=torch.Generator().manual_seed(5))

    with pytest.raises(GeneratorMadeInside, match=r"test_function\.py"):
        dovetail.compile(inside)(torch.zeros(2))
    assert isinstance(torch.Generator(), torch.Generator)

    generator = torch.Generator().manual_seed(5)

    def outside(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(2, generator=generator)

    compiled = dovetail.compile(outside, (torch.zeros(2),))
    drawn = [compiled(torch.zeros(2)) for _ in range(3)]
    generator.manual_seed(5)
    assert all(torch.equal(outside(torch.zeros(2)), value) for value in drawn)


def test_a_closed_over_tensor_that_only_backward_meets_is_written_there() -> None:
    count = torch.zeros(3)

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            count.add_(1)
            return grads[0] * 2

    compiled = dovetail.compile(lambda x: Counted.apply(x).sum())
    for expected in (1, 2, 3):
        x = torch.ones(3, requires_grad=True)
        compiled(x).backward()
        assert torch.equal(count, torch.full((3,), float(expected)))
        assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_inference_tensors_are_written_and_share_memory() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    with torch.inference_mode():
        mine, theirs = torch.arange(6.0), torch.arange(6.0)
        assert torch.equal(dovetail.compile(f)(mine[:4], mine[2:]), f(theirs[:4], theirs[2:]))
        assert torch.equal(mine, theirs)


def test_shared_memory_and_symbolic_sizes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (x + y).sum() + z

    compiled = dovetail.compile(f, dynamic=True)
    for size, other in ((4, 3), (4, 5), (6, 3), (4, 3), (4, 7)):
        for step in (2, size):
            mine, theirs, z = torch.arange(16.0), torch.arange(16.0), torch.arange(float(other))
            result = compiled(mine[:size], mine[step : step + size], z)
            assert torch.equal(result, f(theirs[:size], theirs[step : step + size], z))
            assert torch.equal(mine, theirs)
    assert len(compiled.graphs) == 5


def test_a_gradient_that_the_code_reads_is_refused_and_not_taken_for_none() -> None:
    def step(weight: torch.Tensor, rate: float) -> torch.Tensor:
        return weight * 1 if weight.grad is None else weight - rate * weight.grad

    weight = torch.ones(2, requires_grad=True)
    compiled = dovetail.compile(step)
    assert torch.equal(compiled(weight, 0.5), torch.ones(2))
    weight.grad = torch.ones(2)
    with pytest.raises(GradientAccess, match=r"(?s)gradient \(`\.grad`\) of arg_0.*pass the gradient as an argument"):
        compiled(weight, 0.5)
    inner = dovetail.compile(lambda x: torch.autograd.grad(x.square().sum(), x)[0])
    assert torch.equal(inner(weight), torch.full((2,), 2.0))


def test_an_attribute_that_is_set_is_the_modules() -> None:
    net = torch.nn.Dropout(0.5)
    compiled = dovetail.compile(net)
    compiled.training = False
    assert not net.training
    assert torch.equal(compiled(torch.ones(8)), torch.ones(8))
    twin = copy.deepcopy(compiled)
    twin.p = 0.25
    assert net.p == 0.5
    assert twin.p == 0.25


@pytest.mark.parametrize("door", [dovetail.compile, dovetail.compile_step])
def test_plain_objects_as_arguments_count_by_value(door: Any) -> None:
    def f(x: torch.Tensor, size: torch.Size, part: Fraction, path: Path) -> torch.Tensor:
        return x * size.numel() * float(part) * len(path.name)

    compiled = door(f)
    for length in (2, 3, 2, 3, 2, 3):
        x = torch.ones(length)
        for part in (Fraction(1, 2), Fraction(2, 3)):
            arguments = (x, x.shape, part, Path("/a/name"))
            assert torch.equal(compiled(*arguments), f(*arguments))
    assert compiled.stats.captures <= 4


def test_one_tensor_in_two_places_keeps_its_program() -> None:
    held = torch.ones(2)
    containers = [held, held, [held]]
    compiled = dovetail.compile(lambda x: x + containers[0] + containers[1] * containers[2][0])
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert compiled.stats.captures == 1
    containers[1] = torch.zeros(2)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))

    written = dovetail.compile(lambda a, b: a.add_(1) * b)
    for call in range(6):
        x = torch.full((3,), float(call))
        expected = (x + 1) * (x + 1 if call % 2 else 5.0)
        assert torch.equal(written(x, x if call % 2 else torch.full((3,), 5.0)), expected)
    assert written.stats.captures == 2
    assert written.stats.variants[1].reason == "which tensors are the same object changed"


class Unfit(Exception):
    """Of a user's."""


@pytest.mark.parametrize("calls_before", [0, 1])
def test_code_that_raises_raises_what_it_raises_in_eager_mode(calls_before: int) -> None:
    seen = []

    def program(x: torch.Tensor, way: str) -> torch.Tensor:
        seen.append(way)
        if way == "own":
            raise Unfit(x.shape)
        return x @ x if way == "shapes" else x * 2

    compiled, x = dovetail.compile(program), torch.ones(2, 3)
    for _ in range(calls_before):
        compiled(x, "fine")
    for _ in range(2):
        for kind, way in ((Unfit, "own"), (RuntimeError, "shapes")):
            with pytest.raises(kind):
                compiled(x, way)
        assert torch.equal(compiled(x, "fine"), x * 2)
    assert seen.count("own") == 2, "as often as in eager mode"
