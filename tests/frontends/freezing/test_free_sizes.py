"""Which sizes a frozen program leaves free, and what it says of those that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


class TwoSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.linear(x) * mask[:, :, None]).flatten(1)


def _agrees(model: nn.Module, frozen: Any, *args: Tensor) -> None:
    with torch.no_grad():
        wanted = model(*args)
    found = frozen(*args)
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


def test_the_first_size_is_free() -> None:
    model = TwoSizes()
    frozen = dovetail.freeze(model, (torch.rand(3, 5, 4), torch.rand(3, 5)))
    for rows in (3, 1, 2, 9):
        _agrees(model, frozen, torch.rand(rows, 5, 4), torch.rand(rows, 5))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*x has shape \[3, 6, 4\]"):
        frozen(torch.rand(3, 6, 4), torch.rand(3, 6))
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-003"):
        frozen(torch.rand(3, 5, 4), torch.rand(2, 5))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*sizes above 1"):
        frozen(torch.rand(0, 5, 4), torch.rand(0, 5))


def test_an_example_of_one_row() -> None:
    model = TwoSizes()
    frozen = dovetail.freeze(model, (torch.rand(1, 5, 4), torch.rand(1, 5)))
    for rows in (1, 2, 9):
        _agrees(model, frozen, torch.rand(rows, 5, 4), torch.rand(rows, 5))


SEQUENCE = {"x": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
BATCH, LENGTH = torch.export.Dim("batch"), torch.export.Dim("length", min=2, max=16)


@pytest.mark.parametrize(
    "shapes",
    [
        SEQUENCE,
        {"x": {0: BATCH, 1: LENGTH}, "mask": {0: BATCH, 1: LENGTH}},
        (("batch", "length", None), ("batch", "length")),
        {"x": {0: "batch", -2: "length"}, "mask": ("batch", "length")},
    ],
)
def test_sizes_by_name(shapes: Any) -> None:
    model = TwoSizes()
    frozen = dovetail.freeze(model, (torch.rand(3, 3, 4), torch.rand(3, 3)), dynamic_shapes=shapes)
    for rows, length in ((3, 3), (3, 5), (2, 9), (1, 4)):
        _agrees(model, frozen, torch.rand(rows, length, 4), torch.rand(rows, length))
    if shapes == {"x": {0: BATCH, 1: LENGTH}, "mask": {0: BATCH, 1: LENGTH}}:
        with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*relies on"):
            frozen(torch.rand(2, 17, 4), torch.rand(2, 17))
        with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-003"):
            frozen(torch.rand(2, 1, 4), torch.rand(2, 1))
    else:
        _agrees(model, frozen, torch.rand(1, 1, 4), torch.rand(1, 1))


def test_static() -> None:
    model = TwoSizes()
    frozen = dovetail.freeze(model, (torch.rand(3, 5, 4), torch.rand(3, 5)), dynamic_shapes="static")
    _agrees(model, frozen, torch.rand(3, 5, 4), torch.rand(3, 5))
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-003"):
        frozen(torch.rand(2, 5, 4), torch.rand(2, 5))


class Fixes(nn.Module):
    """Does something else for each number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.shape[0])):
            x = x + 1
        return x


def test_what_is_fixed_is_said_and_is_the_reason_of_a_refusal() -> None:
    frozen = dovetail.freeze(Fixes(), (torch.rand(3, 2),))
    assert torch.equal(frozen(torch.zeros(3, 2)), torch.full((3, 2), 3.0))
    (note,) = frozen.specialized
    assert "dimension 0 of x is fixed to 3" in note
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*dimension 0 of x is fixed to 3"):
        frozen(torch.zeros(4, 2))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-002.*'batch'.*fixed to 3"):
        dovetail.freeze(Fixes(), (torch.rand(3, 2),), dynamic_shapes={"x": {0: "batch"}})


@pytest.mark.parametrize(
    ("example", "why"),
    [
        (torch.rand(6, 8)[:3, :4], "fixed to 3: elements of the example have gaps between them"),
        (torch.rand(6, 4)[::2], "fixed to 3: elements of the example have gaps between them"),
        (torch.rand(4).expand(3, 4), "fixed to 3: elements of the example share memory"),
        (torch.rand(6).unfold(0, 4, 1), "fixed to 3: elements of the example share memory"),
        (torch.rand(0, 4), "fixed to 0: it is empty in the example"),
    ],
    ids=["columns", "steps", "expanded", "windows", "empty"],
)
def test_what_the_example_fixes_is_said(example: Tensor, why: str) -> None:
    model = nn.Linear(4, 2)
    frozen = dovetail.freeze(model, (example,))
    assert frozen.specialized == (f"dimension 0 of input is {why}",)
    assert torch.equal(frozen(example), model(example).detach())
    with pytest.raises(dovetail.DovetailError, match=why):
        frozen(torch.rand(7, 4))
    with pytest.raises(dovetail.DovetailError, match=why.split(": ")[1]):
        dovetail.freeze(model, (example,), dynamic_shapes={"input": {0: "batch"}})


_WRITES: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda y: y.add_(y.mean(1, keepdim=True)),
    "activation": lambda y: y.relu_(),
    "column": lambda y: y[:, 0].fill_(3),
    "range": lambda y: y[:, :, 1:3].zero_(),
    "rows": lambda y: y.flatten(0, 1).add_(1),
    "heads": lambda y: y.view(y.shape[0], -1, 2, 2).transpose(1, 2).mul_(2),
    "indexed": lambda y: y.index_fill_(2, torch.tensor([0]), 2.0),
}


@pytest.mark.parametrize("made_by", ["linear", "product", "argument"])
@pytest.mark.parametrize("write", _WRITES)
def test_tensors_of_free_sizes_are_written_in_place(write: str, made_by: str) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = {"linear": self.linear, "product": lambda x: x * 2, "argument": lambda x: x}[made_by](x)
            _WRITES[write](y)
            return y.sum(1), y + x

    model = Writes()
    frozen = dovetail.freeze(model, (torch.rand(2, 5, 4),), dynamic_shapes={"x": {0: "batch", 1: "length"}})
    for shape in ((2, 5, 4), (3, 7, 4), (1, 5, 4), (6, 1, 4), (1, 1, 4)):
        x = torch.randn(shape)
        ours, theirs = x.clone(), x.clone()
        with torch.no_grad():
            for found, wanted in zip((*frozen(ours), ours), (*model(theirs), theirs), strict=True):
                assert torch.equal(found, wanted)


def test_a_branch_on_a_size_is_a_guard() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.shape[0] < 6 else x.sin()

    frozen = dovetail.freeze(Branches(), (torch.rand(3, 2),))
    for rows in (1, 2, 5):
        _agrees(Branches(), frozen, torch.rand(rows, 2))
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*relies on.*< 6"):
        frozen(torch.rand(6, 2))


def test_one_row_may_be_another_program() -> None:
    class Special(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cos() if x.shape[0] == 1 else x.squeeze(0) * 2

    frozen = dovetail.freeze(Special(), (torch.rand(3, 2),))
    for rows in (1, 2, 3):
        _agrees(Special(), frozen, torch.rand(rows, 2))


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"y": {0: "batch"}}, "no argument 'y'"),
        ({"x": {3: "batch"}}, "no dimension 3"),
        ({"x": {0: "size", 1: "size"}}, "'size' is 3 and 5"),
        ({"x": {0: 2.5}}, "names no size"),
        ({"x": {0: 4}}, "dimension 0 of x is 3 in the example inputs, and was said to be 4"),
        ({"x": "batch"}, "the entry for x is a str"),
        ({"x": {0: torch.export.Dim("batch", min=8)}}, "outside its range"),
        ("dynamic", "a str does not describe"),
        ((None, None, None), "3 entries for 2"),
    ],
)
def test_bad_shapes(shapes: Any, reason: str) -> None:
    with pytest.raises(dovetail.DovetailError, match=f"(?s)DT-FREEZE-002.*{reason}"):
        dovetail.freeze(TwoSizes(), (torch.rand(3, 5, 4), torch.rand(3, 5)), dynamic_shapes=shapes)


def test_sizes_inside_of_containers() -> None:
    class Reads(nn.Module):
        def forward(self, batch: dict[str, Tensor], scales: list[Tensor]) -> Tensor:
            return batch["x"] * scales[0] + scales[1]

    batch = {"x": torch.rand(3, 4), "other": torch.rand(2)}
    scales = [torch.rand(3, 1), torch.rand(4)]
    shapes = {"batch": {"x": {0: "rows"}}, "scales": [{0: "rows"}, None]}
    frozen = dovetail.freeze(Reads(), (batch, scales), dynamic_shapes=shapes)
    for rows in (3, 5, 1):
        given = ({"x": torch.rand(rows, 4), "other": torch.rand(2)}, [torch.rand(rows, 1), torch.rand(4)])
        assert torch.equal(frozen(*given), Reads()(*given))
    for wrong in ({"batch": {"z": {0: "rows"}}}, {"scales": [{0: "rows"}]}):
        with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-002"):
            dovetail.freeze(Reads(), (batch, scales), dynamic_shapes=wrong)


def test_sizes_that_depend_on_data() -> None:
    class Selects(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            chosen = x[x > 0]
            return chosen * 2, x.nonzero()

    frozen = dovetail.freeze(Selects(), (torch.randn(4, 3),))
    for rows in (4, 6, 1):
        x = torch.randn(rows, 3)
        for found, wanted in zip(frozen(x), Selects()(x), strict=True):
            assert torch.equal(found, wanted)


def test_a_kernel_that_takes_no_free_sizes_is_the_reason() -> None:
    class Mixed(nn.Module):  # under autocast a recurrent layer is taken apart, for the length of the example
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x)[0]

    model = Mixed()
    x = torch.rand(2, 3, 4)
    with torch.no_grad():
        try:
            expected = model(x)
        except RuntimeError as error:
            pytest.skip(f"no bfloat16 recurrent kernel on this processor: {error}"[:120])
    frozen = dovetail.freeze(model, (torch.rand(2, 3, 4),))
    assert torch.equal(frozen(x), expected)
    with pytest.raises(dovetail.DovetailError, match=r"(?s)DT-FREEZE-003.*every size is fixed"):
        frozen(torch.rand(3, 3, 4))


class _Beginning(nn.Module):
    """Reads as much of a buffer as it gets rows: at its whole length, that is no view any more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.table.narrow(0, 0, x.shape[0]) * x


def test_sizes_are_tried_within_their_range() -> None:
    model = _Beginning()
    shapes = {"x": {0: torch.export.Dim("rows", max=7)}}
    frozen = dovetail.freeze(model, (torch.rand(5, 3),), dynamic_shapes=shapes)
    for rows in (1, 2, 7):
        x = torch.rand(rows, 3)
        assert torch.equal(frozen(x), model(x))
