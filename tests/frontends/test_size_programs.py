"""Random programs that compute with symbolic sizes, and with numbers off tensors, through both doors."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from tests.alike import assert_alike
from tests.rotation import rotated
from tests.size_programs import followed, source_of


@pytest.mark.filterwarnings("ignore::dovetail.errors.DovetailWarning")
@pytest.mark.parametrize("seed", rotated(list(range(240)), 40))
def test_random_programs_of_sizes(seed: int) -> None:
    door: Any = dovetail.compile_step if seed % 2 else dovetail.compile
    text = source_of(seed, has_data=seed % 3 == 0, keeps=seed % 2 == 1)
    wanted = followed(seed, text, lambda function: function)
    found = followed(seed, text, lambda function: door(function, dynamic=True), most=len(wanted))
    assert repr(found) == repr(wanted), text
    assert_alike(found, wanted)
