"""`compare_with`: what it finds on calls that a user gives, and which calls it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadOptionValue, FrozenIsFixed


class Scores(nn.Module):
    """Results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, shift: float = 0.0) -> dict[str, Any]:
        scores = self.layer(x)
        return {"scores": scores, "best": scores.argmax(-1), "parts": (x.sum(), [x - 1])}


class Changed(Scores):
    """The same with some results changed."""

    def forward(self, x: Tensor, shift: float = 0.0) -> dict[str, Any]:
        found = super().forward(x)
        scores = found["scores"].clone()
        scores[0] = scores[0].flip(0) + 1
        return {**found, "scores": scores, "best": scores.argmax(-1)}


def test_equal_programs() -> None:
    torch.manual_seed(0)
    model = Scores().eval()
    frozen = dovetail.freeze(model, (torch.randn(3, 4),))
    report = frozen.compare_with(model, [torch.randn(5, 4), (torch.randn(2, 4),), {"x": torch.randn(3, 4)}])
    assert report.calls == 3
    assert [one.name for one in report.results] == ["scores", "best", "parts.0", "parts.1.0"]
    for one in report.results:
        assert (one.largest, one.relative, one.agreement, one.unlike) == (0, 0, 1, 0)
        assert one.least_cosine == pytest.approx(1)
    scores, best = report.results[:2]
    assert (scores.rows, best.rows) == (10, 0)
    assert str(report).startswith("3 calls\nscores: 10 rows, cosine at least 1.000000")


def test_differences_are_what_they_are() -> None:
    torch.manual_seed(0)
    model = Scores().eval()
    frozen, x = dovetail.freeze(model, (torch.randn(3, 4),)), torch.randn(6, 4)
    other = Changed().eval()
    other.load_state_dict(model.state_dict())
    found = {one.name: one for one in frozen.compare_with(other, [x]).results}
    with torch.no_grad():
        ours, theirs = model(x)["scores"].double(), other(x)["scores"].double()
    scores = found["scores"]
    assert scores.largest == pytest.approx(float((ours - theirs).abs().max()))
    assert scores.relative == pytest.approx(float((ours - theirs).norm() / theirs.norm()))
    cosines = torch.cosine_similarity(ours, theirs)
    assert scores.least_cosine == pytest.approx(float(cosines.min()))
    assert scores.mean_cosine == pytest.approx(float(cosines.mean()))
    same = float((ours.argmax(1) == theirs.argmax(1)).double().mean())
    assert scores.agreement == pytest.approx(same)
    assert found["best"].agreement == pytest.approx(same)


class Unbounded(nn.Module):
    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.number)


def test_elements_that_are_finite_in_one_only_are_counted() -> None:
    frozen = dovetail.freeze(Unbounded(float("inf")), (torch.ones(2, 3),))
    x = torch.tensor([[1.0, -1.0, 2.0], [3.0, 1.0, 2.0]])
    (one,) = frozen.compare_with(Unbounded(0.0), [x]).results
    assert (one.unlike, one.largest) == (1, 0)
    assert "1 elements are infinite or NaN in one only" in str(frozen.compare_with(Unbounded(0.0), [x]))
    for other, unlike in (("inf", 0), ("-inf", 1), ("nan", 1)):
        (one,) = frozen.compare_with(Unbounded(float(other)), [x]).results
        assert (one.unlike, one.largest) == (unlike, 0)
    nans = dovetail.freeze(Unbounded(float("nan")), (x,))
    assert nans.compare_with(Unbounded(float("nan")), [x]).results[0].unlike == 0


class WritesAndDraws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) + torch.rand_like(x)


def test_both_get_the_same_arguments_and_numbers() -> None:
    model, x = WritesAndDraws(), torch.zeros(2, 3)
    frozen = dovetail.freeze(model, (x.clone(),))
    (one,) = frozen.compare_with(model, [x]).results
    assert one.largest == 0
    assert torch.equal(x, torch.zeros(2, 3))


@dataclass
class Pair:
    low: Tensor
    high: Tensor


class Span(NamedTuple):
    low: Tensor
    high: Tensor


class Paired(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(x.amin(), x.amax())


@pytest.mark.parametrize("kind", [Pair, Span])
def test_a_loaded_program_is_compared_by_field(kind: type, tmp_path: Path) -> None:
    frozen = dovetail.freeze(Paired(kind), (torch.randn(3),))
    frozen.save(tmp_path / "pair.dovetail")
    report = dovetail.load(tmp_path / "pair.dovetail").compare_with(Paired(kind), [torch.randn(3)])
    assert [one.name for one in report.results] == ["low", "high"]


def test_methods_and_refusals() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

        def twice(self, x: Tensor) -> Tensor:
            return x * 2

    model, x = Both(), torch.ones(2, 3)
    frozen = dovetail.freeze(model, {"forward": ((x,), {}), "twice": ((x,), {})})
    assert frozen.compare_with(model.twice, [x], method="twice").results[0].largest == 0
    with pytest.raises(FrozenIsFixed, match="compare thrice, which was not frozen"):
        frozen.compare_with(model, [x], method="thrice")
    with pytest.raises(FrozenIsFixed, match="run thrice, which was not frozen"):
        frozen.program_name(x, method="thrice")
    with pytest.raises(BadOptionValue, match="there is nothing to compare"):
        frozen.compare_with(model, [])
    with pytest.raises(BadOptionValue, match="'reference' cannot be 5"):
        frozen.compare_with(5, [x])  # type: ignore[arg-type]
    with pytest.raises(BadOptionValue, match="'calls' cannot be None"):
        frozen.compare_with(model, None)  # type: ignore[arg-type]
    with pytest.raises(BadOptionValue, match="'discard_originals' cannot be 'no'"):
        dovetail.freeze(model, {"twice": ((x,), {})}, discard_originals="no")  # type: ignore[arg-type]
    with pytest.raises(BadOptionValue, match=r"what gives .*\(3, 2\)"):
        frozen.compare_with(lambda x: x.t(), [x])

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count

    counts = Counts()
    with pytest.raises(FrozenIsFixed, match="its calls change its state"):
        dovetail.freeze(counts, (x,)).compare_with(counts, [x])
