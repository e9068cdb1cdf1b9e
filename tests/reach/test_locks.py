"""Locks that libraries make when they are first used: making them is no read of a call, and none stays locked."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_the_lock_of_progress_bars() -> None:
    code = """
        import joblib.externals.loky.backend  # gives locks names that are drawn
        import torch, tqdm, dovetail

        def branch(x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

        def bar(x):
            for _ in tqdm.tqdm(range(2), disable=True):
                x = x + 1
            return x

        x = torch.ones(3)
        for function in (branch, bar):
            assert torch.equal(dovetail.compile(function)(x), function(x))
        assert tqdm.tqdm.get_lock().acquire(False) is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
