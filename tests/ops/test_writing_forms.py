"""The forms that operators have for writing, and that they give the same bits."""

from __future__ import annotations

import pytest
import torch

from dovetail.ops.prims import functional_form, view_scatter
from dovetail.ops.writing_forms import out_form, replaces_a_part, view_of_copy, writing_form
from tests.ops.writing_forms import compare_all
from tests.rotation import rotated

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "form", "written", "fresh"),
    [
        (aten.add.Tensor, aten.add_.Tensor, (0,), 0),
        (aten.index_put.default, aten.index_put_.default, (0,), 0),
        (aten._foreach_addcdiv.ScalarList, aten._foreach_addcdiv_.ScalarList, (0,), 0),
        (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.default, (3, 4), 3),
        (functional_form(aten.normal_.default, (0,)), aten.normal_.default, (0,), 0),
    ],
)
def test_writing_forms(target: object, form: object, written: tuple[int, ...], fresh: int) -> None:
    found = writing_form(target, torch.float32)  # type: ignore[arg-type]
    assert found is not None
    assert (found.target, found.written, found.fresh) == (form, written, fresh)


def test_what_has_no_form() -> None:
    assert writing_form(aten.mm.default, torch.float32) is None
    assert writing_form(aten.mul.Scalar, torch.bfloat16) is None  # it rounds differently
    assert writing_form(aten._foreach_mul.Scalar, torch.bfloat16) is None
    assert writing_form(aten.mul.Tensor, torch.complex64) is None
    assert out_form(aten.index_put.default, "cpu") is None  # makes a result first, and copies it
    assert out_form(aten.binary_cross_entropy.default, "cpu") is None
    losses = (aten.huber_loss.default, aten.mse_loss.default, aten.smooth_l1_loss.default)
    assert all(out_form(loss, "cpu") is None for loss in losses)  # they resize what they are given


def test_views_behind_copies_and_parts() -> None:
    assert out_form(aten.mm.default, "cpu") is aten.mm.out
    assert view_of_copy(aten.permute_copy.default) is aten.permute.default
    assert view_of_copy(aten.add.Tensor) is None
    parts = (aten.slice_scatter.default, view_scatter(aten.view.dtype, None), aten.scatter_add.default)
    assert all(replaces_a_part(target) for target in parts)
    assert not replaces_a_part(aten.add.Tensor)


NAMES = ["add", "cumsum", "index_", "masked_fill", "nn.functional.silu", "sub", "addmm"]


@pytest.mark.parametrize("name", rotated(NAMES, 3))
def test_operators_give_the_same_bits_where_they_write(name: str) -> None:
    compare = compare_all(samples=2, dtypes=(torch.float32, torch.bfloat16), only=name)
    assert compare.compared
    assert compare.found == {}
