"""What C++ asks of data while it runs: the program asks it in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail
from dovetail.errors import DataDependentControlFlow, UnexpectedSize

DRAWN = torch.Generator().manual_seed(0)
ROWS = torch.randn(4, 6, generator=DRAWN)

COVARIANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "cov": torch.cov,
    "no correction": lambda x: torch.cov(x, correction=0),
    "weights": lambda x: torch.cov(x, fweights=torch.arange(1, x.shape[1] + 1), aweights=x[0].abs()),
    "one row": lambda x: torch.cov(x[0]),
    "corrcoef": torch.corrcoef,
}


@pytest.mark.parametrize("name", COVARIANCES)
def test_covariances(name: str) -> None:
    function = COVARIANCES[name]
    compiled = dovetail.compile(function)
    for rows in (ROWS, ROWS + 1, ROWS.t().contiguous()):
        mine, other = rows.clone().requires_grad_(), rows.clone().requires_grad_()
        found, expected = compiled(mine), function(other)
        assert torch.equal(found, expected)
        found.sin().sum().backward()
        expected.sin().sum().backward()
        assert torch.equal(mine.grad, other.grad)  # type: ignore[arg-type]


def test_a_covariance_without_freedom_is_refused_when_it_runs() -> None:
    """Eager mode warns there, and goes on with another number."""
    compiled = dovetail.compile(lambda x, weights: torch.cov(x, aweights=weights))
    weights = torch.ones(6)
    assert torch.equal(compiled(ROWS, weights), torch.cov(ROWS, aweights=weights))
    with pytest.raises(UnexpectedSize):
        compiled(ROWS, -weights)
    with pytest.raises(UnexpectedSize):
        compiled(ROWS, torch.eye(6)[0])


def test_spectra_turned_back_into_signals() -> None:
    spectrum = torch.randn(5, 8, dtype=torch.complex64, generator=DRAWN)
    compiled = dovetail.compile(lambda x, window: torch.istft(x, 8, window=window, center=False, length=8))
    window = torch.ones(8)
    for scale in (1, 2):
        expected = torch.istft(spectrum * scale, 8, window=window, center=False, length=8)
        assert torch.equal(compiled(spectrum * scale, window), expected)
    with pytest.raises(UnexpectedSize):  # eager mode raises: the windows do not add up
        compiled(spectrum, window * 0)


SQUARE = torch.randn(3, 3, generator=DRAWN)


def _hermitian(x: Tensor) -> Tensor:
    made = torch.complex(x, x.t() + 1)
    return made + made.mH


VECTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "svd": lambda x: torch.linalg.svd(torch.complex(x, x.t()), full_matrices=False)[0],
    "eig": lambda x: torch.linalg.eig(torch.complex(x, x.t()))[1],
    "eigh": lambda x: torch.linalg.eigh(_hermitian(x))[1],
}


@pytest.mark.parametrize("name", VECTORS)
def test_losses_that_depend_on_phases_raise_in_backward(name: str) -> None:
    vectors = VECTORS[name]
    for loss in (lambda x: vectors(x).real.sum(), lambda x: vectors(x).abs().square()[0].sin().sum()):
        found = _gradient(dovetail.compile(loss))
        assert found == _gradient(loss)
    assert _gradient(lambda x: vectors(x).real.sum()) == "ill-defined"


def _gradient(loss: Callable[[Tensor], Tensor]) -> Any:
    x = SQUARE.clone().requires_grad_()
    try:
        return torch.autograd.grad(loss(x), x)[0].tolist()
    except RuntimeError as error:
        return "ill-defined" if "ill-defined" in str(error) else str(error)


CUTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "narrow": lambda x, n: torch.narrow(x, 0, n[0], 2),
    "method": lambda x, n: x.narrow(start=n[0], length=2, dim=0).sin(),
    "by a number": lambda x, n: x.narrow(0, int(n[0]), 2) * 2,
    "split": lambda x, n: [part.sum(0) for part in torch.tensor_split(x, n)],
    "split by columns": lambda x, n: [part.sum(1) for part in x.tensor_split(n, dim=1)],
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts_at_places_that_data_decide(name: str) -> None:
    function = CUTS[name]
    compiled = dovetail.compile(function)
    for places in ([1, 2], [0, 3], [2, 4]):
        given = torch.tensor(places)
        found, expected = compiled(ROWS, given), function(ROWS, given)
        pairs = zip(found, expected, strict=True) if isinstance(found, list) else [(found, expected)]
        for a, b in pairs:
            assert torch.equal(a, b)
            assert a.stride() == b.stride()


def test_places_from_the_end() -> None:
    compiled = dovetail.compile(CUTS["narrow"])
    assert torch.equal(compiled(ROWS, torch.tensor([-3])), ROWS[1:3])
    with pytest.raises(UnexpectedSize):
        compiled(ROWS, torch.tensor([-1]))
    with pytest.raises(UnexpectedSize):
        compiled(ROWS, torch.tensor([3]))


def test_how_many_parts_there_are_is_not_for_data_to_decide() -> None:
    with pytest.raises(DataDependentControlFlow):
        dovetail.compile(torch.tensor_split)(ROWS, torch.tensor(3))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss_with_lengths_in_tensors(reduction: str) -> None:
    def loss(logits: Tensor, targets: Tensor, lengths: Tensor, wanted: Tensor) -> Tensor:
        return F.ctc_loss(logits.log_softmax(2), targets, lengths, wanted, reduction=reduction)

    compiled = dovetail.compile(loss)
    logits = torch.randn(12, 3, 5, generator=DRAWN)
    targets = torch.randint(1, 5, (3, 4), generator=DRAWN)
    for lengths, wanted in (([12, 11, 12], [2, 3, 4]), ([12, 12, 12], [1, 1, 2]), ([10, 11, 12], [4, 2, 3])):
        mine, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        given = (targets, torch.tensor(lengths), torch.tensor(wanted))
        found, expected = compiled(mine, *given), loss(other, *given)
        assert torch.equal(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(mine.grad, other.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("driver", ["gelss", "gelsd"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_least_squares_have_residuals_at_full_rank(driver: str, batch: tuple[int, ...]) -> None:
    def solve(a: Tensor, b: Tensor) -> Any:
        return torch.linalg.lstsq(a, b, driver=driver)

    compiled = dovetail.compile(solve)
    a, b = torch.randn(*batch, 5, 3, generator=DRAWN), torch.randn(*batch, 5, 2, generator=DRAWN)
    for given in (a, a * 2):
        for found, expected in zip(compiled(given, b), solve(given, b), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
    with pytest.raises(UnexpectedSize):
        compiled(torch.ones_like(a), b)
