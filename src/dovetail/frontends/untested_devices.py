"""A warning for the first tensor on a kind of device that dovetail has never been run on."""

from __future__ import annotations

import threading

import torch

from dovetail.errors import UntestedDevice
from dovetail.errors.base import warn

_UNTESTED = ("cuda",)
_SAID = threading.Lock()  # taken for good once the warning was given


def tell_if_untested(device: torch.device) -> None:
    """Warn, once in a process, about a device of a kind that no test has run on.

    Warns: UntestedDevice. Where a filter makes it an error, each call raises it.
    """
    if device.type not in _UNTESTED or not _SAID.acquire(blocking=False):
        return
    try:
        warn(UntestedDevice(str(device)))
    except UntestedDevice:
        _SAID.release()
        raise
