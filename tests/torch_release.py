"""Which torch the tests run on, for what an older one lacks."""

from __future__ import annotations

import torch

from dovetail.torch_compat.version import TESTED, release_of

_RELEASE = release_of(torch.__version__)
assert _RELEASE is not None

BEFORE_2_12 = _RELEASE < (2, 12)
BEFORE_2_13 = _RELEASE < (2, 13)
IS_TESTED = _RELEASE == TESTED
# Its matmul of three dimensions and two, so a linear layer without bias, asks for sizes as numbers.
MATMUL_FIXES_SIZES = BEFORE_2_13
