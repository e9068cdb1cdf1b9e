"""The garbage collector is left as it was found."""

from __future__ import annotations

import gc

import pytest

from dovetail.passes.collection import collection_paused


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_pauses_and_is_left_as_it_was(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
        with pytest.raises(ValueError, match="inside"), collection_paused():
            raise ValueError("inside")
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()
