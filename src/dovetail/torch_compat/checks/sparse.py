"""Checks of `torch_compat.sparse`."""

from __future__ import annotations

import warnings

import torch

from dovetail.torch_compat import sparse
from dovetail.torch_compat.checks.difference import first_difference


def _matrices() -> list[torch.Tensor]:
    dense = torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 0.0], [0.0, 4.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layouts in beta
        blocks = [dense.to_sparse_bsr((2, 1)), dense.to_sparse_bsc((2, 1))]
        return [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), *blocks]


def check_form_of() -> str | None:
    """Every layout is told by name; dense tensors, and matrices that require a gradient, have no form."""
    found = [form.layout for x in _matrices() if (form := sparse.form_of(x)) is not None]
    known = ["coalesced", "csr", "csc", "bsr", "bsc"]
    others = [sparse.form_of(x) for x in (torch.ones(2, 2), _matrices()[0].requires_grad_())]
    return first_difference(("the layouts", found, known), ("others", others, [None, None]))


def check_parts_of() -> str | None:
    """The matrix that the parts make is the matrix, in the same memory."""
    for matrix in _matrices():
        form, parts = sparse.form_of(matrix), list(sparse.parts_of(matrix).values())
        assert form is not None, "these have a form"
        made = form.made_of(parts)
        found = (made.layout, made.to_dense().tolist(), [x.data_ptr() for x in sparse.parts_of(made).values()])
        known = (matrix.layout, matrix.to_dense().tolist(), [x.data_ptr() for x in parts])
        if found != known:
            return first_difference((f"the {form.layout} matrix", found, known))
    return None


def check_turned() -> str | None:
    """The transposed matrix has the transposed numbers."""
    pairs = [(sparse.turned(x).to_dense().tolist(), x.to_dense().t().tolist()) for x in _matrices()]
    return first_difference(("transposed", [x for x, _ in pairs], [x for _, x in pairs]))


def check_same_matrix() -> str | None:
    """Another object with the same numbers."""
    pairs = [(sparse.same_matrix(x), x) for x in _matrices()]
    found = [(a is b, a.to_dense().tolist()) for a, b in pairs]
    return first_difference(("the matrix", found, [(False, b.to_dense().tolist()) for _, b in pairs]))


def check_cast_matrix() -> str | None:
    """The cast matrix has the layout, and whether its indices are sorted stays known."""
    made = [(sparse.cast_matrix(x, torch.float64), x) for x in _matrices()]
    found = [(a.dtype, a.layout, a.to_dense().tolist()) for a, _ in made]
    known = [(torch.float64, b.layout, b.to_dense().tolist()) for _, b in made]
    return first_difference(("cast", found, known), ("sorted", made[0][0].is_coalesced(), True))


def check_sum_of_pairs() -> str | None:
    """Pairs are added up, and say whether their indices are sorted as they were told to."""
    place, one = torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0])
    made = sparse.sum_of_pairs([place, one, place, one], [3], [1, 2])
    flags = [sparse.sum_of_pairs([place, one], [3], [flag]).is_coalesced() for flag in (1, 2)]
    return first_difference(("the sum", made.to_dense().tolist(), [2.0, 4.0, 0.0]), ("the flags", flags, [True, False]))


CHECKS = (check_form_of, check_parts_of, check_turned, check_same_matrix, check_cast_matrix, check_sum_of_pairs)
