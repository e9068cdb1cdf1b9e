"""What cannot be compiled says so by name, or is left to eager; it never breaks inside and is never wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DataDependentControlFlow, PythonSideEffect, UnsupportedTensor

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings(
        "ignore:Sparse invariant checks are implicitly disabled:UserWarning"
    ),  # before torch 2.13
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
]


def _sparse() -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (2, 2), check_invariants=True
    )


def _jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)


MATRIX = torch.arange(4.0).reshape(2, 2)

# A program, its arguments, and what the message says.
KINDS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], str]] = {
    "sparse argument": (lambda s, x: s * x, lambda: (_sparse(), MATRIX), "sparse matrix"),
    "csr argument": (lambda s, x: s * x, lambda: (_sparse().to_sparse_csr(), MATRIX), "sparse matrix"),
    "sparse inside": (lambda x: torch.sparse.mm(x.to_sparse(), x), lambda: (MATRIX,), "torch.sparse_coo tensor"),
    "sparse result": (lambda x: x.to_sparse(), lambda: (MATRIX,), "torch.sparse_coo tensor"),
    "jagged argument": (lambda n: (n * 2).values(), lambda: (_jagged(),), "nested tensor"),
}


@pytest.mark.parametrize("name", KINDS)
def test_tensors_of_other_layouts(name: str) -> None:
    program, arguments, message = KINDS[name]
    with pytest.raises(UnsupportedTensor, match=message):
        dovetail.compile(program)(*arguments())


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("jagged")])
def test_dynamo_leaves_sparse_tensors_to_eager(name: str) -> None:
    program, arguments, _ = KINDS[name]
    actual, expected = torch.compile(program, backend="dovetail")(*arguments()), program(*arguments())
    assert actual.layout is expected.layout
    assert torch.equal(actual.to_dense(), expected.to_dense())


@pytest.mark.parametrize("compiled", [dovetail.compile, dovetail.compile_step])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_where_plain_ones_were(compiled: Callable[[Any], Any], layout: torch.layout) -> None:
    called = compiled(lambda x: x * 2)
    for _ in range(4):
        called(MATRIX)
    with pytest.raises(UnsupportedTensor, match=r"nested|NestedTensor"):
        called(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout))
    assert torch.equal(called(MATRIX), MATRIX * 2)


def test_quantized_tensors() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()

    with pytest.raises(UnsupportedTensor, match="quantized tensor"):
        dovetail.compile(f)(torch.ones(3))


def test_a_module_whose_parameters_are_not_there_yet() -> None:
    layer = nn.LazyLinear(3)
    with pytest.raises(UnsupportedTensor, match=r"(?s)weight is not initialized yet.*call the module once"):
        dovetail.compile(layer)(torch.ones(2, 4))
    assert torch.compile(layer, backend="dovetail")(torch.ones(2, 4)).shape == (2, 3)


def test_a_hook_on_an_argument() -> None:
    """In eager it stays on the tensor: the second call has two."""

    def f(x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 2)
        return x * 3

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(PythonSideEffect, match="gradient hook on the input"):
        dovetail.compile(f)(x)
    compiled = torch.compile(f, backend="dovetail", fullgraph=True)
    gradients = [torch.autograd.grad(compiled(x).sum(), x)[0] for _ in range(2)]
    assert [gradient[0].item() for gradient in gradients] == [6.0, 12.0]


NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero() * 2,
    "mask": lambda x: x[x > 1] * 2,
    "unique": torch.unique,
    "bincount": lambda x: x.bincount(minlength=5) * 2,
    "branch": lambda x: x * 2 if x.sum().item() > 3 else x,
    "repeat": lambda x: x.repeat_interleave(x),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_sizes_and_branches_that_depend_on_numbers(name: str) -> None:
    x = torch.tensor([1, 2, 7])
    if name == "branch":
        with pytest.raises(DataDependentControlFlow):
            dovetail.compile(NUMBERS[name])(x)
    else:
        assert torch.equal(dovetail.compile(NUMBERS[name])(x), NUMBERS[name](x))
    assert torch.equal(torch.compile(NUMBERS[name], backend="dovetail")(x), NUMBERS[name](x))
