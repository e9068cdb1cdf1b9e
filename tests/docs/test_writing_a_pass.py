"""The pass that the page writes passes the tests that the page writes for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.blocks import ROOT, run_blocks

_PAGE = ROOT / "docs" / "writing-a-pass.md"


@pytest.mark.usefixtures("alone")
def test_the_tests_of_the_page_pass() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_blocks(_PAGE, namespace)
    tests = [name for name in namespace if name.startswith("test_")]
    assert len(tests) == 5
    for name in tests:
        namespace[name]()
