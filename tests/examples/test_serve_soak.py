"""The load on the server for some seconds: `python -m tests.serve_soak` has minutes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_NEEDED = ("starlette", "uvicorn", "prometheus_client", "transformers")
pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in _NEEDED), reason="pip install dovetail[examples]"
)
for name in ("httpx", "psutil"):
    pytest.importorskip(name)
serve_soak: Any = pytest.importorskip("tests.serve_soak")


def test_clients_of_all_kinds(tmp_path: Path) -> None:
    report = serve_soak.soak(4.0, seed=5, folder=tmp_path)
    assert not report.wrong, report
    assert report.exit_status == 0
    assert {"plain: length", "at the end: length"} <= set(report.counts)
