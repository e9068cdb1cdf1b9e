"""Recording the allocator's events takes no more than it needs."""

from __future__ import annotations

import subprocess
import sys

_RECORD = """
import sys
from dovetail.torch_compat.profiler import self_check
assert self_check() is None
print(any(name.split(".")[:2] == ["torch", "_inductor"] for name in sys.modules))
"""


def test_recording_does_not_import_inductor() -> None:
    done = subprocess.run([sys.executable, "-c", _RECORD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
