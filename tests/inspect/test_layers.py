"""Repeated layers have one name; what only looks alike keeps its own."""

from __future__ import annotations

import pytest

from dovetail.inspect.layers import Layers


def _blocks(prefix: str, numbers: range, inside: tuple[str, ...] = ("attn", "mlp.0", "mlp.1")) -> list[str]:
    return [f"{prefix}{number}.{name}" for number in numbers for name in inside]


def test_blocks_are_one() -> None:
    layers = Layers([*_blocks("h.", range(12)), "head", ""])
    assert layers.fold("h.0.attn") == layers.fold("h.11.attn") == "h.*.attn"
    assert layers.fold("h.3") == "h.*"
    assert (layers.fold("head"), layers.fold(""), layers.fold("h")) == ("head", "", "h")


def test_a_block_of_another_kind_stands_apart() -> None:
    layers = Layers([*_blocks("h.", range(4)), "h.0.extra"])
    assert layers.fold("h.0.attn") == "h.0.attn"
    assert layers.fold("h.1.attn") == layers.fold("h.3.attn") == "h.1-3.attn"


def test_neighbours_without_modules_inside_are_told_apart_by_what_they_do() -> None:
    marks = {"0": {"addmm"}, "1": {"relu"}, "2": {"addmm"}, "3": {"addmm"}, "4": {"relu"}}
    layers = Layers(marks)
    assert [layers.fold(name) for name in marks] == ["0", "1", "2-3", "2-3", "4"]


def test_levels_fold_from_within() -> None:
    paths = [f"stages.{stage}.blocks.{block}.mlp" for stage, count in enumerate((2, 2, 6, 2)) for block in range(count)]
    layers = Layers(paths)
    assert {layers.fold(path) for path in paths} == {"stages.*.blocks.*.mlp"}


def test_a_gap_or_a_number_that_is_no_index_ends_a_run() -> None:
    layers = Layers([*_blocks("h.", range(2)), *_blocks("h.", range(4, 6)), "h.06.attn"])
    assert [layers.fold(f"h.{n}.attn") for n in (0, 1, 4, 5)] == ["h.0-1.attn"] * 2 + ["h.4-5.attn"] * 2
    assert layers.fold("h.06.attn") == "h.06.attn"


@pytest.mark.parametrize("path", ["unknown", "h.99.attn", "h.0.attn.deeper.still", "..", "h..0", "²", "h.²"])
def test_any_path_has_a_name(path: str) -> None:
    layers = Layers([*_blocks("h.", range(3)), "h.²", ".", "²"])
    assert layers.fold(path).count(".") == path.count(".")
