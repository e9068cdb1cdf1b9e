"""dovetail's own primitives."""

from __future__ import annotations

import pytest
import torch

from dovetail.ir.prim import Prim
from dovetail.ops import prims

aten = torch.ops.aten


@pytest.mark.parametrize(
    "prim",
    [
        prims.GET_RNG_STATE,
        prims.SET_RNG_STATE,
        prims.MANUAL_SEED,
        prims.COPY_TO_LAYOUT,
        prims.functional_form(aten.normal_.default, (0,)),
        prims.in_grad_mode(aten.mkldnn_rnn_layer.default),
        prims.over_parameters(aten.gru.input),
        prims.view_scatter(aten.unbind.int, 2),
        prims.view_scatter(aten.unfold.default, None),
    ],
    ids=lambda prim: prim.name,
)
def test_the_text_of_a_primitive_gives_the_primitive(prim: Prim) -> None:
    assert eval(prim.python, {"prims": prims, "torch": torch}) is prim
    assert prim.name.isidentifier()
    assert prim.__name__ == prim.name


def test_generator_state() -> None:
    before = torch.get_rng_state()
    try:
        prims.MANUAL_SEED(7)
        state = prims.GET_RNG_STATE()
        first = torch.rand(3)
        prims.SET_RNG_STATE(state)
        assert torch.equal(torch.rand(3), first)
        assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(7)))
    finally:
        torch.set_rng_state(before)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((2, 3), (0, 1)), ((2, 3), (8, 2)), ((0, 3), (3, 1)), ((), ())],
)
def test_copy_to_layout(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    source = torch.arange(3.0).expand(shape) if shape else torch.tensor(4.0)
    result = prims.COPY_TO_LAYOUT(source, shape, stride, torch.float64, torch.device("cpu"))
    assert isinstance(result, torch.Tensor)
    assert (result.shape, result.stride(), result.dtype) == (shape, stride, torch.float64)
    assert torch.equal(result, source.double())


@pytest.mark.parametrize("stride", [(0, 1), (1, 1), (0, 0), (1, 0)])
def test_copy_into_a_tensor_whose_elements_share_bytes(stride: tuple[int, int]) -> None:
    target = torch.zeros(4).as_strided((2, 3), stride)
    memory = torch.arange(5.0, 9.0)
    source = memory.as_strided((2, 3), stride)
    assert prims.copy_into(target, source) is not None
    assert torch.equal(target, source)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3),
        torch.randn(3, 2).t(),
        torch.randn(1, 3).expand(2, 3),
        torch.randn(4, 6)[1::2, ::2],
        torch.randn(0, 3),
        torch.tensor(2.0),
    ],
    ids=lambda tensor: str(tuple(tensor.stride())),
)
def test_clone_with_strides(tensor: torch.Tensor) -> None:
    clone = prims.clone_with_strides(tensor)
    assert torch.equal(clone, tensor)
    assert clone.stride() == tensor.stride()
    assert clone.numel() == 0 or clone.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_a_functional_form_returns_fresh_results_then_contents() -> None:
    op = aten._native_batch_norm_legit.default
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    form = prims.functional_form(op, (3, 4))
    results = form(x, None, None, mean, var, True, 0.1, 1e-5)
    assert torch.equal(mean, torch.zeros(3))
    expected = op(x, None, None, mean, var, True, 0.1, 1e-5)
    for actual, wanted in zip(results, [*expected, mean, var], strict=True):  # type: ignore[call-overload]
        assert torch.equal(actual, wanted)


def test_a_functional_form_takes_written_arguments_by_keyword_and_in_lists() -> None:
    out = [torch.zeros(2), torch.zeros(1)]
    results = prims.functional_form(aten.split_copy.Tensor_out, (3,))(torch.arange(3.0), 2, out=out)
    assert [t.tolist() for t in results] == [[0.0, 1.0], [2.0]]  # type: ignore[attr-defined]
    assert [t.tolist() for t in out] == [[0.0, 0.0], [0.0]]


def test_forms_know_draws_and_other_libraries() -> None:
    assert prims.functional_form(aten.normal_.default, (0,)).draws
    assert not prims.functional_form(aten.put_.default, (0,)).draws
    with torch.library._scoped_library("dovetail_prims", "FRAGMENT") as library:
        library.define("write(Tensor(a!) x) -> ()")
        assert prims.functional_form(torch.ops.dovetail_prims.write.default, (0,)).effect


def test_one_primitive_per_operator() -> None:
    assert prims.view_scatter(aten.unbind.int, 1) is prims.view_scatter(aten.unbind.int, 1)
    assert prims.view_scatter(aten.unbind.int, 1) is not prims.view_scatter(aten.unbind.int, 2)


def test_in_grad_mode_turns_the_grad_mode_on_and_autograd_off() -> None:
    seen: list[bool] = []
    with torch.library._scoped_library("dovetail_prims", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")

        def look(x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_grad_enabled())
            return x.clone()

        library.impl("look", look, "CPU")
        form = prims.in_grad_mode(torch.ops.dovetail_prims.look.default)
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            assert form(x).requires_grad is False  # type: ignore[attr-defined]
    assert seen == [True]
