"""The network learns digits, and learns the same with dovetail as without."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    sys.path.insert(0, str(_EXAMPLES))
    try:
        yield importlib.import_module("digits_cnn")
    finally:
        sys.path.remove(str(_EXAMPLES))


def test_images_to_test_with_are_no_images_to_train_with(example: ModuleType) -> None:
    (images, labels), (test_images, test_labels) = example.digits()
    assert len(images) == len(labels) == 1347
    assert len(test_images) == len(test_labels) == 450
    assert images.shape[1:] == test_images.shape[1:] == (1, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    seen = {image.numpy().tobytes() for image in images}
    assert not any(image.numpy().tobytes() in seen for image in test_images)


@pytest.mark.usefixtures("alone")
def test_both_ways_learn_the_same(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--compare", "--epochs", "3"])
    out = capsys.readouterr().out
    assert "all 63 losses and every bit of the weights are the same with dovetail and without" in out
    assert out.count("epoch  3: ") == 2
    found = [float(share) for share in re.findall(r"test accuracy ([\d.]+)% after", out)]
    assert len(found) == 2
    assert min(found) > 95


@pytest.mark.usefixtures("alone")
def test_a_difference_is_an_error(example: ModuleType) -> None:
    one = example.Training((1.0, 2.0), 0.5, "a", 1, (1.0,))
    other = example.Training((1.0, 2.5), 0.5, "a", 1, (1.0,))
    with pytest.raises(SystemExit, match="1 of 2 losses"):
        example.compared(one, other)
