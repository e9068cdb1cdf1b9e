"""How far a frozen method's results are from a model's, on calls that the user gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.artifact.named_result import named_leaves
from dovetail.errors import BadOptionValue
from dovetail.frontends.freezing.pool import copies_of
from dovetail.frontends.structure import flatten, unflatten


@dataclass(frozen=True, slots=True)
class ResultComparison:
    """One tensor of the results, over all calls. A row is what belongs to one index of the first dimension.

    name: `output` for the only one, else keys and places joined by points. rows: how many floating-point rows were
    compared. largest: the largest difference of two elements. relative: the Euclidean norm of all differences over that
    of the model's results. least_cosine, mean_cosine: of rows, the cosine of the angle between the two. agreement: the
    share of places along all dimensions but the last where both have their largest element at the same index (of
    classes: equal predictions); of other dtypes, the share of equal elements. unlike: how many elements are infinite
    or NaN in one, and something else in the other; they count nowhere else.
    """

    name: str
    rows: int
    largest: float
    relative: float
    least_cosine: float
    mean_cosine: float
    agreement: float
    unlike: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `FrozenModule.compare_with` found. calls: how many were made. results: each tensor of the results."""

    calls: int
    results: tuple[ResultComparison, ...]

    def __str__(self) -> str:
        lines = [f"{self.calls} calls"]
        for one in self.results:
            lines.append(
                f"{one.name}: {one.rows} rows, cosine at least {one.least_cosine:.6f}"
                f" (mean {one.mean_cosine:.6f}), relative error {one.relative:.2e}, largest difference"
                f" {one.largest:.2e}, {one.agreement:.2%} agree"
                + (f", {one.unlike} elements are infinite or NaN in one only" if one.unlike else "")
            )
        return "\n".join(lines)


@dataclass(slots=True)
class _Sums:
    """What is added up of one tensor of the results."""

    largest: float = 0.0
    difference: float = 0.0
    whole: float = 0.0
    cosines: list[float] = field(default_factory=list)
    agree: int = 0
    places: int = 0
    unlike: int = 0

    def add(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Take in one call's tensors, of the same shape."""
        if not expected.is_floating_point():
            self.agree += int((found == expected).sum())
            self.places += expected.numel()
            return
        found, expected = found.double(), expected.double()
        finite = found.isfinite() & expected.isfinite()
        alike = finite | (found == expected) | (found.isnan() & expected.isnan())
        self.unlike += int((~alike).sum())
        if expected.numel() and expected.dim():
            same = found.argmax(-1) == expected.argmax(-1)
            self.agree += int(same.sum())
            self.places += same.numel()
        found, expected = found.where(finite, 0.0), expected.where(finite, 0.0)
        gap = found - expected
        self.largest = max(self.largest, float(gap.abs().max()) if gap.numel() else 0.0)
        self.difference += float(gap.square().sum())
        self.whole += float(expected.square().sum())
        if expected.numel():
            rows = expected.shape[0] if expected.dim() else 1
            a, b = found.reshape(rows, -1), expected.reshape(rows, -1)
            norms = a.norm(dim=1) * b.norm(dim=1)
            cosines = torch.where(norms > 0, (a * b).sum(1) / norms, (a == b).all(1).double())
            self.cosines += cosines.tolist()

    def as_result(self, name: str) -> ResultComparison:
        """The sums as they are told."""
        count = len(self.cosines)
        relative = math.sqrt(self.difference / self.whole) if self.whole else (math.inf if self.difference else 0.0)
        return ResultComparison(
            name=name,
            rows=count,
            largest=self.largest,
            relative=relative,
            least_cosine=min(self.cosines, default=1.0),
            mean_cosine=sum(self.cosines) / count if count else 1.0,
            agreement=self.agree / self.places if self.places else 1.0,
            unlike=self.unlike,
        )


def compare(
    found: Callable[..., Any], expected: Callable[..., Any], calls: Iterable[Any], *, writes: bool = False
) -> Comparison:
    """Make each call with both, without gradients, and compare what they give; see `FrozenModule.compare_with`.

    Both draw the same numbers. writes: calls write their arguments; each gets copies then.
    Raises: BadOptionValue where there is no call, or results differ in structure or shapes.
    """
    _check_arguments(expected, calls)
    sums: dict[str, _Sums] = {}
    count = 0
    with torch.no_grad():
        for call in calls:
            drawn = torch.get_rng_state()
            ours = _given(found, call, writes)
            torch.set_rng_state(drawn)
            theirs = _given(expected, call, writes)
            if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in ours):
                shapes = [{name: tuple(t.shape) for name, t in results.items()} for results in (theirs, ours)]
                raise BadOptionValue(
                    option="reference",
                    value=f"what gives {shapes[0]}",
                    reason=f"the frozen method gives {shapes[1]}",
                    expected="the model that was frozen, in the mode that it was frozen in",
                )
            for name, tensor in ours.items():
                sums.setdefault(name, _Sums()).add(tensor, theirs[name])
            count += 1
    if not count:
        reason = "there is nothing to compare"
        raise BadOptionValue(option="calls", value=calls, reason=reason, expected="at least one call's arguments")
    return Comparison(count, tuple([one.as_result(name) for name, one in sums.items()]))


def _check_arguments(reference: object, calls: object) -> None:
    if not callable(reference):
        expected = "the model that was frozen, or the bound method of it"
        raise BadOptionValue(option="reference", value=reference, reason="it cannot be called", expected=expected)
    if not isinstance(calls, Iterable):
        reason = "it holds no calls"
        raise BadOptionValue(option="calls", value=calls, reason=reason, expected="a list of calls' arguments")


def _given(function: Callable[..., Any], call: Any, writes: bool) -> dict[str, torch.Tensor]:
    """The tensors that a call gives. writes: it gets copies of what it can write."""
    leaves, structure = flatten(_arguments(call))
    tensors = {str(place): leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    if writes:
        copied = copies_of(tensors)
        leaves = [copied.get(str(place), leaf) for place, leaf in enumerate(leaves)]
    args, kwargs = unflatten(leaves, structure)
    return _tensors(function(*args, **kwargs))


def _arguments(call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(call, Mapping):
        return (), dict(call)
    return (call if isinstance(call, tuple) else (call,)), {}


def _tensors(results: object) -> dict[str, torch.Tensor]:
    """The tensors of results, by name."""
    return {name: leaf for name, leaf in named_leaves(results) if isinstance(leaf, torch.Tensor)}
