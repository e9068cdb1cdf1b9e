"""A way to run reproducers without starting a process for each."""

from __future__ import annotations

import io
import runpy
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.inspect import minify_script


@pytest.fixture
def scripts_run_here() -> Iterator[None]:
    """Reproducers are run in this process, for tests of what is said of them: to start one takes seconds."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        out = io.StringIO()
        with redirect_stdout(out), pytest.raises(SystemExit) as ended:
            runpy.run_path(command[1], run_name="__main__")
        return subprocess.CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), "")

    with pytest.MonkeyPatch.context() as patch:
        here = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(minify_script, "subprocess", here)
        yield
