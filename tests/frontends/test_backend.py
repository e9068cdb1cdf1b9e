"""`torch.compile(backend="dovetail")`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.testing import CompileCounterWithBackend

import dovetail


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch.compiler.reset()


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))


def _step(model: Any, call: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    leaf = x.clone().requires_grad_()
    result = call(leaf)
    result.square().mean().backward()
    assert leaf.grad is not None
    return result.detach(), leaf.grad


def test_the_backend_is_registered_under_its_name() -> None:
    assert "dovetail" in torch._dynamo.list_backends()
    assert torch.equal(torch.compile(lambda x: x + 1, backend="dovetail")(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(("dynamic", "count"), [(None, 2), (True, 1)])
def test_dynamic_batches_need_at_most_two_compilations(dynamic: bool | None, count: int) -> None:
    counter = CompileCounterWithBackend("dovetail")
    eager, model = _net(), _net()
    compiled = torch.compile(model, backend=counter, dynamic=dynamic)
    for rows in (3, 5, 7, 9, 2, 17, 4):
        x = torch.randn(rows, 8)
        for expected, actual in zip(_step(eager, eager, x), _step(model, compiled, x), strict=True):
            assert torch.equal(expected, actual)
            assert expected.stride() == actual.stride()
    assert counter.frame_count == count
    assert all(torch.equal(a, b) for a, b in zip(eager.buffers(), model.buffers(), strict=True))


def test_mark_dynamic() -> None:
    counter = CompileCounterWithBackend("dovetail")
    compiled = torch.compile(lambda x: x.sin().sum(1), backend=counter)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), x.sin().sum(1))
    assert counter.frame_count == 1


def test_graph_breaks_and_python_control_flow() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        return y * 2 if y.sum() > 0 else y - 1

    x = torch.randn(3, requires_grad=True)
    result = torch.compile(f, backend="dovetail")(x)
    assert torch.equal(result, f(x))
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, torch.autograd.grad(f(x).sum(), x)[0])


def test_options_reach_the_backend(tmp_path: Any) -> None:
    compiled = torch.compile(_net(), backend="dovetail", options={"dump": str(tmp_path), "verify": 2})
    compiled(torch.randn(4, 8))
    assert list(tmp_path.glob("*/000-recorded.py"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"dmup": 1}}, "there is no option 'dmup'"),
        ({"options": {"keep_grads": False}}, "give it to dovetail.compile_step"),
        ({"options": {"dynamic": True}}, r"torch\.compile\(dynamic=True\)"),
        ({"mode": "max-autotune"}, "modes are for inductor"),
    ],
)
def test_bad_arguments_are_refused_with_the_way_out(arguments: dict[str, Any], message: str) -> None:
    model = _net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BackendCompilerFailed, match=message):
        torch.compile(model, backend="dovetail", **arguments)(torch.randn(4, 8))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_an_operator_without_a_fake_kernel_is_refused_by_name() -> None:
    with torch.library._scoped_library("dovetail_test", "FRAGMENT") as library:
        library.define("nameless(Tensor x) -> Tensor")
        library.impl("nameless", lambda x: x.clone(), "CPU")

        def f(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.dovetail_test.nameless(x) + 1

        with pytest.raises(dovetail.DovetailError, match=r"nameless\.default has no fake kernel"):
            dovetail.compile(f)(torch.ones(2))


def test_overlap_of_written_inputs_that_changes_between_calls() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = torch.compile(f, backend="dovetail")
    assert torch.equal(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 3.0))
    base = torch.ones(6)
    assert torch.equal(compiled(base[:4], base[2:]), torch.tensor([3.0, 3, 4, 4])[[2, 3, 0, 1]])
    assert torch.equal(base, torch.tensor([2.0, 2, 2, 2, 1, 1]))
    assert torch.equal(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 3.0))


def test_calls_beyond_the_limit_of_variants_run_in_eager_mode_with_a_warning() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = torch.compile(f, backend="dovetail", options={"max_variants": 2})
    compiled(torch.ones(4), torch.ones(4))
    mine, theirs = torch.ones(6), torch.ones(6)
    compiled(mine[:4], mine[2:])
    f(theirs[:4], theirs[2:])
    with pytest.warns(dovetail.DovetailWarning, match="max_variants"):
        result = compiled(mine[1:5], mine[:4])
    assert torch.equal(result, f(theirs[1:5], theirs[:4]))
    assert torch.equal(mine, theirs)


def test_default_dtype_threads_and_determinism_are_respected() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.compile(lambda x: x + torch.ones(2), backend="dovetail")(torch.ones(2)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    threads = torch.get_num_threads()
    torch.compile(lambda x: x * 2, backend="dovetail")(torch.ones(2))
    assert torch.get_num_threads() == threads


def test_a_graph_that_turns_gradients_on_is_called_with_gradients_off_and_in_inference_mode() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            y = x * 3
        return y, x.sin()

    x, compiled = torch.ones(3, requires_grad=True), torch.compile(f, backend="dovetail")
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            for actual, expected in zip(compiled(x), f(x), strict=True):
                assert actual.requires_grad == expected.requires_grad
                assert actual.is_inference() == expected.is_inference()
                assert torch.equal(actual, expected)
