"""Warn as the line of the user's that led here."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from dovetail.errors.base import DovetailWarning

_FOLDERS = f"{Path(str(torch.__file__)).parent}/", f"{Path(__file__).parent.parent}/", "<dovetail"


def warn(warning: DovetailWarning | str) -> None:
    """Issue a warning for the innermost line that is neither dovetail's nor torch's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_passed_over(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, DovetailWarning if isinstance(warning, str) else None, stacklevel=level)


def _is_passed_over(filename: str) -> bool:
    return filename.startswith(_FOLDERS) or filename.endswith("/contextlib.py")
