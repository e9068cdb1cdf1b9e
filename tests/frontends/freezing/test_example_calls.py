"""Forms in which the example of a call is given, and what is said of wrong ones."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import BadOptionValue, NotFreezable


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, scale: float = 1.0) -> dict[str, Any]:
        y = self.linear(x) * scale
        return {"y": y if mask is None else y * mask, "rows": 2}

    def encode(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Anything(nn.Module):
    def forward(self, **parts: Tensor) -> Tensor:
        return torch.cat(list(parts.values()), 1)


X, MASK = torch.randn(2, 4), torch.ones(2, 3).tril()
FORMS: dict[str, Callable[[nn.Module], Any]] = {
    "beside": lambda model: dovetail.freeze(model, (X,), example_kwargs={"mask": MASK}),
    "alone": lambda model: dovetail.freeze(model, example_kwargs={"x": X, "mask": MASK}),
    "mapping": lambda model: dovetail.freeze(model, {"x": X, "mask": MASK}),
    "both": lambda model: dovetail.freeze(model, {"x": X}, example_kwargs={"mask": MASK}),
    "other_mapping": lambda model: dovetail.freeze(model, UserDict(x=X, mask=MASK)),
    "method": lambda model: dovetail.freeze(model, {"forward": ((X,), {"mask": MASK})}),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_call(form: str, tmp_path: Path) -> None:
    model = Masked().eval()
    frozen = FORMS[form](model)
    frozen.save(tmp_path / "model.dovetail")
    x, mask = torch.randn(5, 4), torch.rand(5, 3)
    for program in (frozen, dovetail.load(tmp_path / "model.dovetail")):
        found, wanted = program(x=x, mask=mask), model(x, mask=mask)
        assert torch.equal(found["y"], wanted["y"])
        assert found["rows"] == 2
        assert torch.equal(program(x, mask=mask)["y"], wanted["y"])


def test_numbers_by_name_are_part_of_the_program() -> None:
    model = Masked().eval()
    frozen = dovetail.freeze(model, {"x": X, "scale": 0.5})
    assert torch.equal(frozen(X, scale=0.5)["y"], model(X, scale=0.5)["y"])
    with pytest.raises(dovetail.DovetailError, match="DT-FREEZE-003"):
        frozen(X, scale=0.25)


DEFAULT = torch.arange(3.0)


class Shifted(nn.Module):
    def forward(self, x: Tensor, /, by: dict[str, Tensor] = {"by": DEFAULT}, *, scale: Tensor = DEFAULT) -> Tensor:  # noqa: B006
        return x + by["by"] * scale


class Placed(nn.Module):
    def forward(self, x: Tensor, n: int = 2, by: Tensor = DEFAULT, /) -> Tensor:
        return x * n + by


@torch.no_grad()
def test_tensors_that_are_defaults_are_arguments() -> None:
    """A call can give others, as those of the example can; the batch stays free beside a default of its size."""
    x, other = torch.randn(3, 3), torch.randn(3)
    model = Shifted()
    frozen = dovetail.freeze(model, (x,))
    for rows in (3, 5, 1):
        x = torch.randn(rows, 3)
        assert torch.equal(frozen(x), model(x))
        assert torch.equal(frozen(x, {"by": other}), model(x, {"by": other}))
        assert torch.equal(frozen(x, scale=other), model(x, scale=other))
    placed = dovetail.freeze(Placed(), (x,))
    assert torch.equal(placed(x), Placed()(x))
    assert torch.equal(placed(x, 2, other), Placed()(x, 2, other))


class Settings:
    def __init__(self, factor: Any) -> None:
        self.factor = factor
        self.itself = self


CHANGES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "object": (Settings(2.0), lambda s: s.factor, lambda s: setattr(s, "factor", 3.0)),
    "inside": (Settings(Settings([2.0])), lambda s: s.factor.factor[0], lambda s: s.factor.factor.insert(0, 3.0)),
    "namespace": (SimpleNamespace(factor=2.0), lambda s: s.factor, lambda s: setattr(s, "factor", 3.0)),
    "tensor": (Settings(torch.ones(3)), lambda s: s.factor, lambda s: setattr(s, "factor", torch.zeros(3))),
    "array": (np.ones(3, np.float32), torch.from_numpy, lambda a: a.fill(2)),
    "set": ({1, 2}, len, lambda s: s.add(3)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_arguments_that_are_changed_in_place(kind: str) -> None:
    """The program is for what they held in the example."""
    argument, read, change = CHANGES[kind]

    class Reads(nn.Module):
        def forward(self, x: Tensor, given: Any) -> Tensor:
            return x * read(given)

    model, x = Reads(), torch.randn(2, 3)
    frozen = dovetail.freeze(model, (x, argument))
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(frozen(x, argument), model(x, argument))
    change(argument)
    with pytest.raises(dovetail.DovetailError, match=r"DT-FREEZE-003.* given holds something else than in the example"):
        frozen(x, argument)


def test_examples_whose_elements_share_memory() -> None:
    """Only tensors with equal elements there can take their place."""
    model, row = nn.ReLU(), torch.randn(1, 4)
    for example in (row.expand(3, 4), torch.randn(9).as_strided((3, 4), (2, 1))):
        frozen = dovetail.freeze(model, (example,))
        for same in (example, example.contiguous(), example.t().contiguous().t()):
            assert torch.equal(frozen(same), model(same))
        with pytest.raises(
            dovetail.DovetailError, match=r"DT-FREEZE-003.* elements of it that share memory would diff"
        ):
            frozen(torch.randn(3, 4))
        assert torch.equal(frozen.export().module()(example), model(example))


def test_names_that_forward_takes_as_they_come() -> None:
    frozen = dovetail.freeze(Anything(), {"a": X, "b": MASK})
    assert torch.equal(frozen(a=X, b=MASK), torch.cat([X, MASK], 1))


def test_sizes_by_the_names_of_arguments() -> None:
    shapes = {"x": {0: "batch"}, "mask": {0: "batch"}}
    frozen = dovetail.freeze(Masked().eval(), {"x": X, "mask": MASK}, dynamic_shapes=shapes)
    assert frozen(torch.randn(7, 4), mask=torch.rand(7, 3))["y"].shape == (7, 3)


def test_results_of_a_class_of_the_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = transformers.BertModel(config).eval()
    words = transformers.BatchEncoding({"input_ids": torch.randint(0, 99, (2, 5)), "attention_mask": torch.ones(2, 5)})
    frozen = dovetail.freeze(model, words)
    with torch.no_grad():
        wanted = model(**words)
    found = frozen(**words)
    assert type(found) is type(wanted)
    assert torch.equal(found.last_hidden_state, wanted.last_hidden_state)


@pytest.mark.parametrize(
    ("given", "named", "told"),
    [
        ((), None, r"holds no argument(?s:.*)arguments by their names"),
        ((X,), [("mask", MASK)], "it names arguments of forward"),
        ((X,), {3: MASK}, "it names arguments of forward"),
        ((X,), {"masks": MASK}, "forward cannot be called so"),
        ({"forward": ((X,), {})}, {"mask": MASK}, "example_inputs names the arguments of each method"),
        ({"encode": X}, None, r'\{"encode": \(\(argument'),
        (X, None, "arguments by their names"),
    ],
)
def test_wrong_forms(given: Any, named: Any, told: str) -> None:
    with pytest.raises(BadOptionValue, match=told):
        dovetail.freeze(Masked(), given, example_kwargs=named)


def test_a_name_that_is_neither_a_method_nor_an_argument() -> None:
    with pytest.raises(NotFreezable, match=r"(?s)'masks' cannot be frozen.*by their names"):
        dovetail.freeze(Masked(), {"masks": MASK})
