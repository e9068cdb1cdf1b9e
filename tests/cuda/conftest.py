"""Every test here runs on the device, with kernels that repeat their bits where torch has them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
import torch

from dovetail.errors import UntestedDevice


def _device() -> str | None:
    return os.environ.get("DOVETAIL_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else None)


@pytest.fixture
def device() -> Iterator[str]:
    """The default device of the test."""
    chosen = _device()
    if chosen is None:
        pytest.skip("there is no GPU")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        torch.set_default_device(chosen)  # Dynamo does not follow `with torch.device(...)` around it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntestedDevice)
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield chosen
    finally:
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        torch.compiler.reset()
