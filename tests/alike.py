"""Whether results of any kind are the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def assert_alike(found: Any, wanted: Any) -> None:
    """Tensors are equal in each element, everything else in its type and value; NaN is NaN."""
    assert type(found) is type(wanted)
    if isinstance(found, Tensor):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    elif isinstance(found, list | tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    elif isinstance(found, dict):
        assert list(found) == list(wanted)
        for key in found:
            assert_alike(found[key], wanted[key])
    else:
        assert found == wanted or (found != found and wanted != wanted)
